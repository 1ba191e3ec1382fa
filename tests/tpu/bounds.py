#!/usr/bin/env python3
"""bounds.py REPORT: the large kernels take no more bundles and cycles a chunk than is promised, on the target they are tuned for.

REPORT is what tpu_compile.py wrote of the emitted programs. Counts of the compiler are the same on every machine: code that runs once is
spread over the chunks, waits for memory are not in them.
"""
import json
import math
import pathlib
import sys

HEADS, CHUNKS = 64, 256
# program: bundles and cycles of a chunk, over all 64 value heads
BOUNDS = {
    "layer_forward.bf16.skewed.full_size": (12_000, 12_800),
    "layer_forward_states.bf16.skewed.full_size": (10_200, 10_800),
    "transition.bf16.p3.skewed.full_size": (115 * HEADS, 126 * HEADS),
    "state_gradient.bf16.p3.skewed.full_size": (160 * HEADS, 176 * HEADS),
    "backward.bf16.lifted.full_size": (350 * HEADS, 385 * HEADS),
}


def main():
    rows = {pathlib.Path(r["file"]).stem: r for r in json.loads(pathlib.Path(sys.argv[1]).read_text()) if r["target"] == "tpu7x"}
    failed = False
    for name, bounds in BOUNDS.items():
        r = rows.get(name)
        if r is None or not r["compiled"]:
            print(f"{name}: {'was not emitted' if r is None else r['error']}")
            failed = True
            continue
        counts = [(r[f"{what}_per_step"] * math.prod(r["grid"]) + r[f"once_{what}"]) / CHUNKS for what in ("bundles", "cycles")]
        over = [f"{c:.0f} {what}; expected at most {b}" for c, b, what in zip(counts, bounds, ("bundles", "cycles")) if c > b]
        print(f"{name}: " + (", ".join(over) if over else f"{counts[0]:.0f} bundles, {counts[1]:.0f} cycles"))
        failed |= bool(over)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
