#!/bin/sh
# Tries schedules of the emitted layer (backward=1: of the core's backward; scan=1: of the dh scan) on the TPU compiler and prints them, fewest
# cycles first:
#   sh cmake/tune.sh [states=1 | backward=1 | scan=1] [key=value ..]        keys: bench/tune/emit.cpp
# Each point takes about ten seconds. The winners belong into Schedule::fastest (include/gdn/mosaic/schedule.hpp).
set -eu
cd "$(dirname "$0")/.."
sh cmake/setup.sh build >&2
mkdir -p build/tune
g++ -std=c++20 -O1 -ffp-contract=off -Iinclude bench/tune/emit.cpp -o build/tune/emit
for order in 102 012 210; do
  for tick in 2 5 8 11 14 18; do
    build/tune/emit build/tune/point.mlir order=$order tick=$tick "$@"
    build/venv/bin/python cmake/tpu_compile.py --target tpu7x build/tune/point.mlir |
      sed -n "s|.*: \([0-9]*\) bundles / \([0-9]*\) cycles per step.*|\2 cycles \1 bundles  order=$order tick=$tick $*|p"
  done
done | sort -n
