#!/usr/bin/env python3
"""python3 bench/compile/run.py [COMPILER...]

User seconds to compile the programs next to this file, the median of three (default: g++ and clang++).
empty.cpp is what the compiler needs for nothing; nan means that a program does not compile.
"""

import pathlib
import resource
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FLAGS = ["-std=c++20", "-ffp-contract=off", f"-I{HERE.parents[1] / 'include'}", "-c", "-o", "/dev/null"]
LEVELS = [["-O0"], ["-O2", "-march=native"]]


def seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    if subprocess.run(command, stderr=subprocess.DEVNULL).returncode:
        return float("nan")
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main():
    sources = sorted(HERE.glob("*.cpp"))
    width = max(len(source.name) for source in sources)
    for compiler in sys.argv[1:] or ["g++", "clang++"]:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
        print(version.splitlines()[0])
        for source in sources:
            cells = []
            for level in LEVELS:
                times = [seconds([compiler, *level, *FLAGS, str(source)]) for _ in range(3)]
                cells.append(f"{statistics.median(times):6.2f} s {' '.join(level)}")
            print(f"  {source.name:{width}}", *cells, sep="  ", flush=True)


if __name__ == "__main__":
    main()
