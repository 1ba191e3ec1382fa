#!/usr/bin/env python3
"""Eight families of inputs on which chunked gated delta rules lose digits; the draws on which our error bounds are stated.

    python3 hard_inputs.py OUT_DIR [--tokens 256] [--draws 8] [--key-heads 2] [--value-heads 8] [--dim 128]

writes OUT_DIR/<kind>-<draw>.bin: "GDNHARD1", four little-endian int32 (tokens, key heads, value heads, dim), then q, k, v, g, beta as
float32. q, k [tokens, key heads, dim] and v [tokens, value heads, dim] are bf16 values, q scaled by dim^-1/2, k of unit norm; g (natural
log of the decay, <= 0) and beta [tokens, value heads]. tests/support/hard_inputs.hpp reads them.

A draw is fixed by the order of calls on numpy's generator: every family draws q, k, v, g and beta first, then what replaces them.
"""
import argparse
import pathlib

import numpy as np

KINDS = ("rand", "slow", "strong", "beta1", "repeat", "same", "mixed", "wide")


def bf16(x):
    """Nearest even, as float32."""
    u = np.asarray(x, np.float32).view(np.uint32)
    return ((u + (0x7FFF + ((u >> 16) & 1))) & np.uint32(0xFFFF0000)).astype(np.uint32).view(np.float32)


def unit_rows(x):
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)


def hard_input(kind, draw=0, tokens=256, key_heads=2, value_heads=8, dim=128):
    """q, k, v, g, beta as float32."""
    rng = np.random.default_rng([KINDS.index(kind), draw])
    normal, gates = rng.standard_normal, (tokens, value_heads)

    q = normal((tokens, key_heads, dim))
    k = normal((tokens, key_heads, dim))
    v = normal((tokens, value_heads, dim))
    g = -np.exp(rng.uniform(np.log(1e-3), 0.0, gates))
    beta = 1 / (1 + np.exp(-normal(gates)))

    if kind == "slow":
        g = -1e-3
    elif kind == "strong":
        g = -8 * abs(normal(gates))
    elif kind == "beta1":  # hardly any decay, and every value is written as it is
        g, beta = -1e-4, 0.999
    elif kind == "repeat":  # four keys take turns
        few = normal((4, key_heads, dim))
        k = few[np.arange(tokens) % 4] + 0.05 * k
        g, beta = -1e-3, 0.98
    elif kind == "same":  # one key
        k = normal((1, key_heads, dim)) + 0.1 * k
        g, beta = -1e-2, 0.95
    elif kind == "mixed":  # one token in ten forgets nearly everything
        g = np.where(rng.random(gates) < 0.1, -20.0, -1e-3)
    elif kind == "wide":  # down to where a whole state vanishes in one token
        g = -316 * rng.random(gates) ** 4

    g, beta = (np.broadcast_to(x, gates).astype(np.float32) for x in (g, beta))
    return bf16(unit_rows(q) * dim**-0.5), bf16(unit_rows(k)), bf16(v), g, beta


def write(path, arrays):
    q, _, v, _, _ = arrays
    sizes = (q.shape[0], q.shape[1], v.shape[1], v.shape[2])
    with open(path, "wb") as file:
        file.write(b"GDNHARD1" + np.asarray(sizes, "<i4").tobytes())
        for x in arrays:
            file.write(np.ascontiguousarray(x, "<f4").tobytes())


def read(path):
    data = pathlib.Path(path).read_bytes()
    if data[:8] != b"GDNHARD1":
        raise ValueError(f"{path} is no file of hard inputs (it should begin with GDNHARD1)")
    tokens, key_heads, value_heads, dim = np.frombuffer(data, "<i4", 4, 8)
    shapes = [(tokens, key_heads, dim)] * 2 + [(tokens, value_heads, dim)] + [(tokens, value_heads)] * 2
    at, arrays = 24, []
    for shape in shapes:
        count = int(np.prod(shape))
        arrays.append(np.frombuffer(data, "<f4", count, at).reshape(shape))
        at += 4 * count
    if at != len(data):
        raise ValueError(f"{path} has {len(data)} bytes, its header says {at}")
    return arrays


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("out", type=pathlib.Path)
    options.add_argument("--tokens", type=int, default=256)
    options.add_argument("--draws", type=int, default=8)
    options.add_argument("--key-heads", type=int, default=2)
    options.add_argument("--value-heads", type=int, default=8)
    options.add_argument("--dim", type=int, default=128)
    args = options.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for kind in KINDS:
        for draw in range(args.draws):
            write(args.out / f"{kind}-{draw}.bin", hard_input(kind, draw, args.tokens, args.key_heads, args.value_heads, args.dim))


if __name__ == "__main__":
    main()
