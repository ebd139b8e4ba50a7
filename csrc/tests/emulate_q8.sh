#!/bin/sh
# Without optimization: SIMDe compiles for minutes otherwise.
# Builds and runs emulate_q8.cc in the folder $1. Needs g++ and SIMDe (Debian: libsimde-dev).
set -e
here=$(cd "$(dirname "$0")/.." && pwd)
flags="-std=c++20 -Wno-psabi -fno-math-errno -ffp-contract=off -I$here"
g++ -O2 $flags -DTAUT_ISA_NS=scalar -DTAUT_ISA_scalar=1 -c "$here/kernels/linear_q8.cc" -o "$1/scalar.o"
g++ $flags -DTAUT_EMULATE -DTAUT_ISA_NS=avx512 -DTAUT_ISA_avx512=1 -c "$here/kernels/linear_q8.cc" -o "$1/avx512.o"
g++ $flags "$here/tests/emulate_q8.cc" "$1/scalar.o" "$1/avx512.o" -o "$1/emulate_q8"
"$1/emulate_q8"
