"""One executor per backend: the same Graph and Plan, other kernels."""
