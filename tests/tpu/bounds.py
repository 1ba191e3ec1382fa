#!/usr/bin/env python3
"""bounds.py REPORT: the large kernels take no more bundles and cycles a chunk than is promised, on the target they are tuned for, and
those that work row by row no more cycles than the memory takes for their arrays.

REPORT is what tpu_compile.py wrote of the emitted programs. Counts of the compiler are the same on every machine: code that runs once is
spread over the chunks, waits for memory are not in them.
"""
import json
import math
import pathlib
import re
import sys

HEADS, CHUNKS = 64, 256
# program: bundles and cycles of a chunk, over all 64 value heads
BOUNDS = {
    "layer_forward.bf16.skewed.full_size": (12_000, 12_800),
    "layer_forward_states.bf16.skewed.full_size": (10_000, 10_700),
    "transition.bf16.p3.skewed.full_size": (115 * HEADS, 126 * HEADS),
    "transition.bf16.p3.skewed.full_size_norm": (115 * HEADS, 126 * HEADS),
    "state_gradient.bf16.p3.skewed.full_size": (160 * HEADS, 176 * HEADS),
    "state_gradient.bf16.p3.skewed.full_size_norm": (160 * HEADS, 176 * HEADS),
    "backward.bf16.skewed.full_size": (190 * HEADS, 209 * HEADS),
}
# program: bytes that a grid step reads and writes
NORMS = 256 * HEADS * 128 * 2
BYTES = {
    "glu_rows.bf16.lifted": 256 * 1024 * 3 * 2,
    "glu_rows.bf16.lifted.limit": 256 * 1024 * 3 * 2,
    "glu_rows_backward.bf16.lifted": 256 * 1024 * 5 * 2,
    "glu_rows_backward.bf16.lifted.limit": 256 * 1024 * 5 * 2,
    "unsort_rows_backward.bf16.lifted": 128 * 4096 * 3 * 2,
    "unsort_rows_backward.bf16.lifted.limit": 128 * 4096 * 3 * 2,
    "gated_norm.bf16.lifted.full_size": 3 * NORMS,
    "gated_norm.bf16.lifted.full_size_without": 3 * NORMS,
    "gated_norm_backward.bf16.lifted.full_size": 5 * NORMS,
}
BYTES_PER_SECOND, CYCLES_PER_SECOND = 3.7e12, 2.2e9


def cycles_of_a_whole_block(r):
    """Cycles of a step without the body for the block that the limit lies in: a step runs that one or the other."""
    partial = sum(b["bundles"] for b in r["branches"] if re.search(r"scmp\.ge\.s32\.totalorder \S+, (128|256)$", b["skipped_if"]))
    if ".limit" in r["file"] and not partial:
        raise ValueError(f"{r['file']}: no body for the block of the limit was found")
    return r["cycles_per_step"] - partial


def main():
    rows = {pathlib.Path(r["file"]).stem: r for r in json.loads(pathlib.Path(sys.argv[1]).read_text()) if r["target"] == "tpu7x"}
    failed = False
    for name in [*BOUNDS, *BYTES]:
        r = rows.get(name)
        if r is None or not r["compiled"]:
            print(f"{name}: {'was not emitted' if r is None else r['error']}")
            failed = True
            continue
        if name in BYTES:
            counts, bounds = [cycles_of_a_whole_block(r)], [int(BYTES[name] / BYTES_PER_SECOND * CYCLES_PER_SECOND)]
        else:
            bounds = BOUNDS[name]
            counts = [(r[f"{what}_per_step"] * math.prod(r["grid"]) + r[f"once_{what}"]) / CHUNKS for what in ("bundles", "cycles")]
        what = ("bundles", "cycles")[-len(counts):]
        over = [f"{c:.0f} {w}; expected at most {b}" for c, b, w in zip(counts, bounds, what) if c > b]
        print(f"{name}: " + ", ".join(over or [f"{c:.0f} {w}" for c, w in zip(counts, what)]))
        failed |= bool(over)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
