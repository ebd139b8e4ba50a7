#!/bin/sh
# Without optimization: SIMDe compiles for minutes otherwise.
# Builds and runs emulate_q8.cc in the folder $1. Needs g++ and SIMDe (Debian: libsimde-dev).
set -e
here=$(cd "$(dirname "$0")/.." && pwd)
flags="-std=c++20 -Wno-psabi -fno-math-errno -ffp-contract=off -I$here"
for kernel in linear_q8 linear_q4; do
  g++ -O2 $flags -DTAUT_ISA_NS=scalar -DTAUT_ISA_scalar=1 -c "$here/kernels/$kernel.cc" -o "$1/scalar_$kernel.o"
  g++ $flags -DTAUT_EMULATE -DTAUT_ISA_NS=avx512 -DTAUT_ISA_avx512=1 -c "$here/kernels/$kernel.cc" -o "$1/avx512_$kernel.o"
done
g++ $flags "$here/tests/emulate_q8.cc" "$1"/scalar_*.o "$1"/avx512_*.o -o "$1/emulate_q8"
"$1/emulate_q8"
