#!/usr/bin/env python3
"""How large the error of the chunk forward may be: its numeric contract emulated in numpy, independent of the library.

    python3 hard_inputs.py DIR && python3 p1_emulation.py DIR [--classes P1 PF] [--chain] > errors.csv

Prints kind, draw, class, and the errors (max |error| / max |reference|, float64 token recurrence) of the output, of the output stored as
bf16, and of the final state; then the means over the draws of a kind. Core call with scale 1 (q is scaled already), chunks of 64 rows.

    x = g log2 e   c = prefix sums of x   G = exp2(min(c_i - c_j, 0))   N = strict(G . k k^T) diag(beta)   M = (I + N)^-1
    r = M (v - gf . (k S))   o = gf . (q S) + (causal(G . q k^T) diag(beta)) r   S' = glast S + (k (gb beta))^T r
    gf = exp2(c), gb = exp2(c_last - c), glast = exp2(c_last)

Every operation is rounded to f32, subnormals to zero. A P1 dot rounds its operands to bf16. Sums of dots are taken in float64 and rounded
to f32 once; --chain rounds after every term, k ascending, as the contract says (ten times slower). In P1 that flips a few bf16 roundings
(means over 8 draws move by 5 % at most, on "same"); in PF it is the larger part of the error.
In class P1 c is one f32, summed by shift-adds 1, 2, 4, ..; in class PF x = max(x, -256) is split in multiples of 2^-10 and a rest.
"""
import argparse
import csv
import pathlib
import sys

import numpy as np

from hard_inputs import bf16, read

CHUNK, BLOCK = 64, 16
LOG2E = np.float32(1.4426950408889634)


def f32(x):
    """Rounds to f32, subnormals to zero of their sign."""
    with np.errstate(under="ignore"):
        y = np.asarray(x).astype(np.float32)
    return np.where(np.abs(y) < np.float32(2.0**-126), np.copysign(np.float32(0), y), y)


def exp2(x):
    with np.errstate(under="ignore"):
        return f32(np.exp2(x.astype(np.float64)))


class Dots:
    """a [.., m, k] times b [.., k, n] in a precision class."""

    def __init__(self, precision, chain):
        self.operand = bf16 if precision == "P1" else f32
        self.chain = chain

    def in_two_parts(self, a, b):
        """a b, where a is hi + lo in class P1."""
        return f32(self(a, b) + self(f32(a - bf16(a)), b)) if self.operand is bf16 else self(a, b)

    def __call__(self, a, b):
        a, b = (self.operand(x).astype(np.float64) for x in (a, b))
        if not self.chain:
            return f32(a @ b)
        acc = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
        for k in range(a.shape[-1]):  # the product is exact in float64
            acc = f32(acc + a[..., :, k, None] * b[..., k, None, :])
        return acc


def transposed(x):
    return np.swapaxes(x, -1, -2)


def prefix_sums(x):
    """Inclusive along the last axis, by shift-adds 1, 2, 4, .."""
    shift = 1
    while shift < x.shape[-1]:
        x = np.concatenate([x[..., :shift], f32(x[..., shift:] + x[..., :-shift])], -1)
        shift *= 2
    return x


def unit_lower_inverse(N, dot):
    """(I + N)^-1, N [.., 64, 64] strictly lower: diagonal blocks column by column in f32, then merged in pairs, the last in two parts."""
    n = N.shape[-1]
    M = np.broadcast_to(np.eye(n, dtype=np.float32), N.shape).copy()
    for s in range(0, n, BLOCK):
        block, t = M[..., s : s + BLOCK, s : s + BLOCK], N[..., s : s + BLOCK, s : s + BLOCK]
        for j in range(BLOCK - 1):  # row j is final: subtract it from the rows below
            block[..., j + 1 :, :] = f32(block[..., j + 1 :, :] - f32(t[..., j + 1 :, j, None] * block[..., None, j, :]))
    size = BLOCK
    while size < n:
        for s in range(0, n, 2 * size):
            top, low = slice(s, s + size), slice(s + size, s + 2 * size)
            inner = dot.in_two_parts if 2 * size == n else dot
            M[..., low, top] = -dot(M[..., low, low], inner(N[..., low, top], M[..., top, top]))
        size *= 2
    return M


def gates(g, precision):
    """G [.., C, C], gf, gb [.., C], glast [..] from g [.., C]."""
    x = f32(g * LOG2E)
    if precision == "P1":
        parts = [prefix_sums(x)]
    else:
        x = np.maximum(x, np.float32(-256))
        h = f32(np.rint(x * np.float32(1024)) * np.float32(2.0**-10))
        parts = [prefix_sums(h), prefix_sums(f32(x - h))]

    def decay(select):
        sums = [select(c) for c in parts]
        return exp2(np.minimum(sums[0] if len(sums) == 1 else f32(sums[0] + sums[1]), np.float32(0)))

    return (decay(lambda c: f32(c[..., :, None] - c[..., None, :])), decay(lambda c: c), decay(lambda c: f32(c[..., -1:] - c)),
            decay(lambda c: c[..., -1]))


def chunk_forward(q, k, v, g, beta, S, precision, dot):
    """One chunk of all heads: q, k [H,C,K], v [H,C,V], g, beta [H,C], S [H,K,V] -> o, S'."""
    G, gf, gb, glast = gates(g, precision)
    row = beta[:, None, :]
    N = f32(f32(np.tril(G, -1) * dot(k, transposed(k))) * row)
    E = f32(f32(np.tril(G) * dot(q, transposed(k))) * row)
    M = unit_lower_inverse(N, dot)
    r = dot(M, f32(v - f32(gf[..., None] * dot(k, S))))
    o = f32(f32(gf[..., None] * dot(q, S)) + dot(E, r))
    return o, f32(f32(glast[:, None, None] * S) + dot(transposed(f32(k * f32(gb * beta)[..., None])), r))


def per_value_head(x, heads):
    """[T,H,..] -> [heads,T,..], key heads repeated."""
    return np.repeat(np.swapaxes(x, 0, 1), heads // x.shape[1], axis=0)


def emulate(q, k, v, g, beta, precision, chain=False):
    """out [T,Hv,V] and the final state [Hv,K,V] in f32."""
    tokens, heads = g.shape
    dot = Dots(precision, chain)
    padding = -tokens % CHUNK
    arrays = [per_value_head(np.concatenate([x, np.zeros((padding, *x.shape[1:]), np.float32)]), heads) for x in (q, k, v, g, beta)]
    S, out = np.zeros((heads, k.shape[2], v.shape[2]), np.float32), []
    for first in range(0, tokens, CHUNK):
        o, S = chunk_forward(*(x[:, first : first + CHUNK] for x in arrays), S, precision, dot)
        out.append(o)
    return np.swapaxes(np.concatenate(out, 1), 0, 1)[:tokens], S


def recurrence(q, k, v, g, beta):
    """The rule, token by token, float64."""
    heads = g.shape[1]
    q, k, v, g, beta = (per_value_head(x.astype(np.float64), heads) for x in (q, k, v, g, beta))
    S, out = np.zeros((heads, k.shape[2], v.shape[2])), np.zeros(v.shape)
    for t in range(v.shape[1]):
        S = S * np.exp(g[:, t])[:, None, None]
        r = beta[:, t, None] * (v[:, t] - np.einsum("hk,hkv->hv", k[:, t], S))
        S += k[:, t, :, None] * r[:, None, :]
        out[:, t] = np.einsum("hk,hkv->hv", q[:, t], S)
    return np.swapaxes(out, 0, 1), S


def max_error(x, reference):
    return float(np.abs(x - reference).max() / np.abs(reference).max())


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("inputs", type=pathlib.Path)
    options.add_argument("--classes", nargs="+", default=["P1", "PF"], choices=["P1", "PF"])
    options.add_argument("--chain", action="store_true", help="round every partial sum of a dot")
    args = options.parse_args()
    paths = sorted(args.inputs.glob("*-*.bin"))
    if not paths:
        sys.exit(f"no hard inputs in {args.inputs}: write them with hard_inputs.py {args.inputs}")

    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["kind", "draw", "class", "out", "out_bf16", "state"])
    errors = {}
    for path in paths:
        kind, draw = path.stem.rsplit("-", 1)
        arrays = read(path)
        out, state = recurrence(*arrays)
        for precision in args.classes:
            o, S = emulate(*arrays, precision, args.chain)
            found = (max_error(o, out), max_error(bf16(o), out), max_error(S, state))
            errors.setdefault((kind, precision), []).append(found)
            table.writerow([kind, draw, precision, *(f"{e:.3e}" for e in found)])
    for (kind, precision), found in errors.items():
        table.writerow([kind, "mean", precision, *(f"{e:.3e}" for e in np.mean(found, axis=0))])


if __name__ == "__main__":
    main()
