#!/bin/sh
# sh cmake/test.sh [CTEST OPTION...]
#
# Installs what is missing, configures, builds, and runs the tests; `-L fast` runs only the fast ones.
# The last line printed is ctest's summary. GDN_BUILD_DIR names another build directory than build.
set -eu
cd "$(dirname "$0")/.."
build=${GDN_BUILD_DIR:-build}

# Status 3: no TPU compiler. The tests that need it fail and say so; the others run.
sh cmake/setup.sh "$build" || [ $? = 3 ]

jobs=$(nproc)
cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 -DGDN_MPI=ON
cmake --build "$build" -j "$jobs"

# The long tests (every mutant, every argument of a function) run when asked for: -L long.
[ $# -gt 0 ] || set -- -LE long

log=$build/ctest.log
{ ctest --test-dir "$build" -j "$jobs" --output-on-failure "$@" || echo "ctest: status $?"; } | tee "$log"
status=0
if grep -q '^ctest: status' "$log"; then
  status=1
fi
grep 'tests passed' "$log" || { echo "no tests were run"; status=1; }
exit $status
