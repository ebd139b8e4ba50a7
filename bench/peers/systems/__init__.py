"""One file per system, with the exports that common.py names."""
