// The Python module taut._native.
#include <nanobind/nanobind.h>

NB_MODULE(_native, m) { m.doc() = "taut's native core"; }
