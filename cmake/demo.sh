#!/bin/sh
# sh cmake/demo.sh [TEXT] [--json FILE] [--tokens N] [--output DIRECTORY]
#
# Installs what is missing, builds examples/demo.cpp, and runs a Gated DeltaNet layer of 16 key and 64 value heads on a text (default:
# one that every Debian has): on the CPU, in the simulator, and through the TPU compiler. Prints a table; --json writes its numbers.
# The emitted kernels stay in DIRECTORY (default: gdn_demo_output). Exit status: 0 if all bits agree and every kernel compiles.
# GDN_BUILD_DIR names another build directory than build.
set -eu
here=$(pwd)
source=$(cd "$(dirname "$0")/.." && pwd)

usage() {
  sed -n '2,7s/^# \{0,1\}//p' "$0"
  exit 2
}
absolute() {
  case $1 in
    /*) echo "$1" ;;
    *) echo "$here/$1" ;;
  esac
}

text=
json=
tokens=4096
output=$here/gdn_demo_output
while [ $# -gt 0 ]; do
  case $1 in
    --json | --tokens | --output)
      [ $# -ge 2 ] || usage
      case $1 in
        --json) json=$(absolute "$2") ;;
        --tokens) tokens=$2 ;;
        --output) output=$(absolute "$2") ;;
      esac
      shift 2
      ;;
    -*) usage ;;
    *)
      [ -z "$text" ] || usage
      text=$(absolute "$1")
      shift
      ;;
  esac
done
if [ -z "$text" ]; then
  for candidate in /usr/share/common-licenses/GPL-3 /usr/share/common-licenses/Apache-2.0 "$source/README.md"; do
    [ -n "$text" ] || [ ! -r "$candidate" ] || text=$candidate
  done
fi
[ -r "$text" ] || { echo "demo: cannot read $text"; exit 1; }

cd "$source"
build=${GDN_BUILD_DIR:-build}

# working WHAT COMMAND..: runs the command, and says every ten seconds that it is still at work.
working() {
  what=$1
  shift
  echo "$what"
  (
    n=0
    while sleep 10; do
      n=$((n + 10))
      echo "  $n s"
    done
  ) &
  clock=$!
  status=0
  "$@" || status=$?
  kill $clock 2>/dev/null
  wait $clock 2>/dev/null || true
  return $status
}

# Status 3: no TPU compiler; the report says so.
working "Setting up" sh cmake/setup.sh "$build" || [ $? = 3 ]
if [ ! -f "$build/build.ninja" ]; then
  working "Configuring" cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 --log-level=WARNING
fi
working "Building the demo (a minute or two)" cmake --build "$build" --target demo
mkdir -p "$output"
"$build/examples/demo" "$text" "$output" --tokens "$tokens"
python3 cmake/demo_report.py "$output" "$text" --python "$build/venv/bin/python" ${json:+--json "$json"}
