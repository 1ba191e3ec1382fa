#!/usr/bin/env python3
"""python3 bench/compile/run.py [COMPILER...]

User seconds to compile the programs next to this file, the median of three (default: g++ and clang++). empty.cpp is what a compiler
needs for nothing, headers.cpp for reading the front door, forward.cpp for one forward call on the CPU, emit.cpp and simulate.cpp for
the same call on those machines. Exit status: 1 if a program does not compile.
"""

import pathlib
import resource
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FLAGS = ["-std=c++20", "-ffp-contract=off", f"-I{HERE.parents[1] / 'include'}", "-c", "-o", "/dev/null"]
LEVELS = [["-O0"], ["-O2", "-march=native"]]
ORDER = ["empty", "headers", "forward", "emit", "simulate"]


def seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(command, check=True, capture_output=True, text=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main():
    failed = False
    for compiler in sys.argv[1:] or ["g++", "clang++"]:
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
        print(version.splitlines()[0])
        print(f"  {'':14}" + "".join(f"{' '.join(level):>20}" for level in LEVELS))
        for name in ORDER:
            print(f"  {name + '.cpp':14}", end="", flush=True)
            for level in LEVELS:
                try:
                    times = [seconds([compiler, *level, *FLAGS, str(HERE / f"{name}.cpp")]) for _ in range(3)]
                    print(f"{statistics.median(times):18.2f} s", end="", flush=True)
                except subprocess.CalledProcessError as e:
                    failed = True
                    error = next((line for line in e.stderr.splitlines() if "error" in line), "no message")
                    print(f"  does not compile: {error}", end="", flush=True)
                    break
            print()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
