#!/bin/sh
# sh cmake/setup.sh [BUILD_DIR]
#
# Installs what Debian 12 lacks for building and testing: packages of the distribution (as root or through
# sudo), and a Python environment in BUILD_DIR/venv (default build/venv) with the TPU compiler. Does nothing
# if all is there. Exit status: 0 all there, 1 packages are missing, 3 only the TPU compiler is missing.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}

packages="g++ clang cmake ninja-build ccache libxsimd-dev catch2 libeigen3-dev libbenchmark-dev libfmt-dev
  python3 python3-venv"
if [ "$(uname -m)" = x86_64 ]; then
  packages="$packages g++-aarch64-linux-gnu qemu-user"
fi

missing=
for package in $packages; do
  case $(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true) in
    ii*) ;;
    *) missing="$missing $package" ;;
  esac
done
if [ -n "$missing" ]; then
  echo "setup: installing$missing"
  if [ "$(id -u)" = 0 ]; then
    sudo=
  elif command -v sudo >/dev/null; then
    sudo=sudo
  else
    echo "setup: not root and no sudo; please install:$missing"
    exit 1
  fi
  $sudo apt-get update -qq
  # shellcheck disable=SC2086  # a list of words
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing || {
    echo "setup: could not install$missing"
    exit 1
  }
fi

if cmp -s cmake/requirements.txt "$build/venv/requirements.txt"; then
  echo "setup: all there"
  exit 0
fi
echo "setup: making $build/venv with $(grep -c == cmake/requirements.txt) Python packages (0.5 GB)"
mkdir -p "$build"
rm -rf "$build/venv"
alone=$(sed -n 's/^# alone: //p' cmake/requirements.txt)
if python3 -m venv "$build/venv" && "$build/venv/bin/pip" install -q --disable-pip-version-check -r cmake/requirements.txt &&
  "$build/venv/bin/pip" install -q --disable-pip-version-check --no-deps --ignore-requires-python "$alone"; then
  cp cmake/requirements.txt "$build/venv/requirements.txt"
  echo "setup: done"
else
  echo "setup: the TPU compiler (libtpu) and jaxlib could not be installed; the tests that need them will fail"
  exit 3
fi
