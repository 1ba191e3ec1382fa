#!/usr/bin/env python3
"""demo_report.py DIRECTORY TEXT [--python PYTHON] [--json FILE]

Compiles the kernels that the demo has left in DIRECTORY for TPUs, with the TPU compiler that PYTHON has, and prints the demo's table
from that and from DIRECTORY/measured.json. --json writes the numbers of the table. Exit status: 1 if a bit differs or a kernel does
not compile.
"""

import argparse
import concurrent.futures
import hashlib
import json
import math
import os
import pathlib
import subprocess
import sys
import time

KERNELS = ["forward", "states_only"]
TARGETS = ["tpu7x", "v6e", "v5e"]
OUTPUTS = ["out", "state", "conv_state", "t_inv", "chunk_states", "residual"]
CHUNK = 64
TOOL = pathlib.Path(__file__).resolve().with_name("tpu_compile.py")


def why_not(python):
    """Why there is no TPU compiler, or None."""
    try:
        run = subprocess.run([python, "-c", "import jax, libtpu"], capture_output=True, text=True)
    except OSError as e:
        return f"{python}: {e.strerror}"
    return None if run.returncode == 0 else (run.stderr.strip().split("\n")[-1] or "jax and libtpu cannot be imported")


def compile_one(python, directory, kernel, target, chunks):
    """What the table says of a kernel: counts per chunk, code that runs once spread over the chunks."""
    about = {"kernel": kernel, "target": target, "compiled": False, "bundles_per_chunk": None, "cycles_per_chunk": None,
             "spill_stores": None, "vmem_bytes": None}
    stem = directory / f"{kernel}.{target}"
    report = stem.with_name(stem.name + ".json")
    report.unlink(missing_ok=True)
    tool = subprocess.run([python, TOOL, "--verify", "--target", target, "--jobs", "1", "--json", report, stem.with_name(stem.name + ".mlir")],
                          capture_output=True, text=True)
    if not report.exists():
        return about, tool.stderr.strip().split("\n")[-1]
    r = json.loads(report.read_text())[0]
    if not r["compiled"]:
        return about, r["error"]
    steps = math.prod(r["grid"])
    per_chunk = lambda what: round((r[f"{what}_per_step"] * steps + r[f"once_{what}"]) / chunks)
    about.update(compiled=True, bundles_per_chunk=per_chunk("bundles"), cycles_per_chunk=per_chunk("cycles"),
                 spill_stores=r["spill_stores"], vmem_bytes=r["vmem_bytes"])
    return about, None


def compile_all(python, directory, chunks):
    """[(row of the table, error)], with a line of progress whenever one is done, or nothing was for ten seconds."""
    work = [(kernel, target) for kernel in KERNELS for target in TARGETS]
    workers = min(2, os.cpu_count() or 1)  # each takes up to 1 GB
    print(f"TPU compiler: {len(work)} kernels", flush=True)
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(compile_one, python, directory, *item, chunks): item for item in work}
        futures, done = list(waiting), 0
        while waiting:
            finished, _ = concurrent.futures.wait(waiting, timeout=10, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in finished:
                done += 1
                print(f"  {done} of {len(work)}, {time.monotonic() - begin:.0f} s: {' for '.join(waiting.pop(future))}", flush=True)
            if not finished:
                print(f"  {done} of {len(work)}, {time.monotonic() - begin:.0f} s", flush=True)
    return [future.result() for future in futures]


def row(*cells):
    first, *rest = cells
    print(f"  {first:<32}" + "".join(f"{cell:>14}" for cell in rest))


def show(measured, text, digest, tpu, missing, directory):
    print(f"\nText: {text}, sha256 {digest}")
    print(f"Layer: {measured['key_heads']} key heads, {measured['heads']} value heads, 128 channels, convolution of 4 taps with bias, "
          f"chunks of {CHUNK} tokens\n")

    print(f"CPU ({measured['isa']}, {measured['threads']} threads), {measured['tokens']} tokens")
    row("", "f32", "bf16")
    row("time per token and head, us", *(f"{measured['cpu'][t]['us_per_token_head']:.3f}" for t in ("f32", "bf16")))
    for output, name in (("out", "error of out"), ("state", "error of the final state")):
        row(name, *(f"{measured['error'][t][output]:.1e}" for t in ("f32", "bf16")))
    print("  error: largest difference from the recurrence in float64 on the same inputs, over its largest value\n")

    print(f"Bits: elements in which CPU and simulator differ, f32 and bf16 together; {measured['simulated']} tokens in "
          f"{measured['documents']} document{'s' if measured['documents'] > 1 else ''}, with initial states")
    row("kernel, schedule", *OUTPUTS)
    cells = {(b["kernel"], b["schedule"], b["output"]): b for b in measured["bits"]}
    for kernel, schedule in dict.fromkeys((b["kernel"], b["schedule"]) for b in measured["bits"]):
        row(f"{kernel}, {schedule}", *(str(cells[kernel, schedule, o]["differing"]) if (kernel, schedule, o) in cells else "-" for o in OUTPUTS))
    compared = sum(b["elements"] for b in measured["bits"])
    print(f"  {sum(b['differing'] for b in measured['bits'])} of {compared} elements differ\n")

    print(f"TPU: bf16, {measured['tpu_tokens']} tokens with documents; forward writes out, states, t_inv and chunk states, states_only final states and t_inv")
    if missing:
        print(f"  not compiled: there is no TPU compiler ({missing})")
    else:
        row("kernel, generation", "compiled", "bundles/chunk", "cycles/chunk", "spill stores", "VMEM, MiB")
        for r, error in tpu:
            counts = [r["bundles_per_chunk"], r["cycles_per_chunk"], r["spill_stores"]]
            row(f"{r['kernel']}, {r['target']}", "yes" if r["compiled"] else "no",
                *(["-"] * 4 if error else [*map(str, counts), f"{r['vmem_bytes'] / 2**20:.1f}"]))
            if error:
                print(f"    {error}")
        print("  cycles: with the stalls that the compiler planned; waits for memory are in neither count")
    print(f"\nThe kernels are in {directory}: *.mlir are programs for a TPU, *.txt the same kernels for people.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    measured = json.loads(args.directory.joinpath("measured.json").read_text())
    digest = hashlib.sha256(args.text.read_bytes()).hexdigest()
    missing = why_not(args.python)
    if missing:
        empty = dict.fromkeys(["compiled", "bundles_per_chunk", "cycles_per_chunk", "spill_stores", "vmem_bytes"])
        tpu = [({"kernel": k, "target": t, **empty}, missing) for k in KERNELS for t in TARGETS]
    else:
        tpu = compile_all(args.python, args.directory, -(-measured["tpu_tokens"] // CHUNK))
    show(measured, args.text, digest, tpu, missing, args.directory)
    if args.json:
        bits = [{key: b[key] for key in ("kernel", "schedule", "output", "differing")} for b in measured["bits"]]
        args.json.write_text(json.dumps({
            "tokens": measured["tokens"], "heads": measured["heads"], "input_sha256": digest, "cpu": measured["cpu"],
            "error": measured["error"], "bits": bits, "tpu": [r for r, _ in tpu]}, indent=1) + "\n")
    bad = any(b["differing"] for b in measured["bits"]) or any(r["compiled"] is False for r, _ in tpu)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
