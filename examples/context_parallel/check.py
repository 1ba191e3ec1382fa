"""Checks context_parallel.py.

    python check.py KERNELS [--tokens 16384 --heads 16 64 --type bf16]      KERNELS: the program made of kernels.cpp

1. Compiled ahead of time for 4 devices of each TPU generation, the layer and its gradient: kernels and collectives are as expected,
   and no array of channels is written between the kernels but q and k, cut out of qkv for the scans, and the gradient of qkv.
2. On 4 CPU devices, kernels in the simulator: the same as on one device, and as token by token in float64 with JAX's own gradient.

Sizes that are given are compiled, not run.
"""

import argparse
import collections
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1", ALLOW_MULTIPLE_LIBTPU_LOAD="1")
os.environ["NPROC"] = "64"  # threads of the CPU devices: a kernel in the simulator holds one while its operands come by another

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import context_parallel

PARTS = 4
TOPOLOGIES = {"tpu7x": "tpu7x:2x1x1", "v6e": "v6e:2x2", "v5e": "v5e:2x2"}  # a chip of tpu7x is two devices
HEAD = context_parallel.CHANNELS


def emitted(kernels, directory, type, target, *sizes):
    directory.mkdir()
    subprocess.run([kernels, "emit", directory, type, target, *map(str, sizes)], check=True)
    return context_parallel.Kernels(directory, kernels)


def shapes(B, T, Hk, Hv, type):
    """The layer's arguments, and the cotangents of its results."""
    act, D = context_parallel.DTYPES[type], HEAD * (2 * Hk + Hv)
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    row = lambda width, tokens=T, dtype=act: jax.ShapeDtypeStruct((B, tokens, width), dtype)
    parameters = {"conv_weights": f32(4, D), "conv_bias": f32(1, D), "A_log": f32(1, Hv), "dt_bias": f32(1, Hv)}
    states = {"initial": f32(B, Hv, HEAD, HEAD), "conv_initial": row(D, 3)}
    ids = jax.ShapeDtypeStruct((B, T), jnp.int32)
    return (row(D), row(Hv), row(Hv), parameters, states, ids), (row(HEAD * Hv), states["initial"])


def with_gradient(layer):
    def both(arguments, cotangents):
        *differentiable, ids = arguments
        results, pull = jax.vjp(lambda *x: layer(*x, ids), *differentiable)
        return results, pull(cotangents)

    return both


# ---------------------------------------------------------------------------------------------- compiled for TPUs


def compiled(function, mesh, *arguments):
    """XLA's optimised program. The executable's own as_text() knows not every operation of a newer libtpu."""
    cut, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, context_parallel.AXIS), ()))
    shardings = (cut, cut, cut, whole, whole, cut), (cut, whole)
    with tempfile.TemporaryDirectory() as dump:
        jax.jit(function, in_shardings=shardings).lower(*arguments).compile(compiler_options={"xla_dump_to": dump})
        (program,) = pathlib.Path(dump).glob("*.after_optimizations.txt")
        return program.read_text()


def counts(program):
    """Kernels and collectives of a program, by name."""
    found = collections.Counter(re.findall(r'custom_call_target="tpu_custom_call".*?op_name="[^"]*/(\w+)/cond/[^"]*"', program))
    found.update(re.findall(r" (collective-permute)(?:-start)?\(", program))
    return found


def written(program, least):
    """Elements of all arrays of more than `least` elements that XLA makes itself, in HBM: copies, and what it computes."""
    total = 0
    entry = program[program.index("\nENTRY ") :]
    for arrays, operation in re.findall(r"\n\s+(?:ROOT )?%\S+ = (.*?) ([a-z][\w-]*)\(", entry):
        # Copies with a start go to the VMEM and come back; async operations hold scratch of collectives.
        if operation in ("parameter", "custom-call", "get-tuple-element", "tuple", "bitcast") or operation.startswith(("copy-", "async-")):
            continue
        sizes = [math.prod(map(int, shape.split(","))) for shape in re.findall(r"\w+\[([\d,]+)\]", arrays)]
        total += sum(size for size in sizes if size > least)
    return total


def complaints(program, gradient, B, T, Hk, Hv):
    expected = collections.Counter(["layer_forward_states", "causal_conv", "gates", "transition", "layer_forward"])
    # log2 rounds of Phi and s, the last one without Phi; s goes one part further; the halo.
    expected["collective-permute"] = permutes = 2 * math.ceil(math.log2(PARTS)) - 1 + 1 + 1
    # Larger than states, and than what a token has of each head, are rows of channels. Those of k, for the scans:
    rows = B * T // PARTS * HEAD * Hk
    if gradient:
        # Its q is convolved too; k and gates are not made twice. Gradients of q, k and v are put together.
        expected.update({"causal_conv": 1, "state_gradient": 1, "layer_backward": 1, "collective-permute": permutes})
        rows += B * T // PARTS * HEAD * (Hk + 2 * Hk + Hv)
    found, channels = counts(program), written(program, B * Hv * max(HEAD * HEAD, T // PARTS))
    for what in expected | found:
        if found[what] != expected[what]:
            yield f"{found[what]} {what}; expected {expected[what]}"
    if channels > rows:
        yield f"XLA writes {channels} elements of channels itself; expected at most {rows}"


def check_compiled(kernels, work, B, T, Hk, Hv, type):
    good = True
    arguments = shapes(B, T, Hk, Hv, type)
    for target, topology in TOPOLOGIES.items():
        mesh = Mesh(np.array(topologies.get_topology_desc(platform="tpu", topology_name=topology).devices), (context_parallel.AXIS,))
        layer = context_parallel.layer(emitted(kernels, work / target, type, target, B, T // PARTS, Hk, Hv), mesh)
        for name, function, gradient in (("layer", lambda x, _: layer(*x), False), ("layer and gradient", with_gradient(layer), True)):
            program = compiled(function, mesh, *arguments)
            kinds = ", ".join(f"{n} {what}" for what, n in counts(program).items())
            print(f"{topology}, {name}: {kinds}; {program.count(' copy(')} copies", flush=True)
            problems = list(complaints(program, gradient, B, T, Hk, Hv))
            copy = f"\n  %x = {type}[{B},{T // PARTS},{Hv},{HEAD}]{{3,2,1,0}} reshape(%y)"
            for lost, put in ((" collective-permute-start(", " add("), ("transition/cond/", "cond/"), ("\n  ROOT", f"{copy}\n  ROOT")):
                if not list(complaints(put.join(program.rsplit(lost, 1)), gradient, B, T, Hk, Hv)):
                    problems.append(f"{put!r} instead of {lost!r} is not noticed")
            good &= not problems
            for problem in problems:
                print(f"    {problem}")
    return good


# ---------------------------------------------------------------------------------------------- run


def token_by_token(qkv, a, b, parameters, states, ids):
    """The layer in the words of its definition."""
    (B, T, D), Hv = qkv.shape, a.shape[2]
    Hk = (D // HEAD - Hv) // 2
    document = np.ones((B, T), int)
    for row, row_ids in zip(document, ids):
        last, number = None, 1
        for t, id in enumerate(row_ids):
            number += id > 0 and last is not None and id != last
            last = id if id > 0 else last
            row[t] = number
    begins = np.diff(document, axis=1, prepend=1) > 0

    inputs = jnp.concatenate([states["conv_initial"], qkv], axis=1)
    document_of = np.pad(document, ((0, 0), (3, 0)), constant_values=1)
    valid_of = np.pad(ids > 0, ((0, 0), (3, 0)), constant_values=True)
    y = parameters["conv_bias"]
    for tap, weights in enumerate(parameters["conv_weights"]):
        seen = (document_of[:, tap : tap + T] == document) & valid_of[:, tap : tap + T]
        y = y + weights * jnp.where(seen[..., None], inputs[:, tap : tap + T], 0)
    heads = jax.nn.silu(y).reshape(B, T, D // HEAD, HEAD)
    q, k = (x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (heads[:, :, :Hk], heads[:, :, Hk : 2 * Hk]))
    q, k = (jnp.repeat(x, Hv // Hk, axis=2) for x in (q * HEAD**-0.5, k))
    decay = jnp.exp(-jnp.exp(parameters["A_log"]) * jax.nn.softplus(a + parameters["dt_bias"]))

    def step(S, x):
        q, k, v, decay, beta, begins, valid = x
        before = jnp.where(begins[:, None, None, None], 0, S) * decay[..., None, None]
        after = before + jnp.einsum("bhk,bhv->bhkv", k, beta[..., None] * (v - jnp.einsum("bhk,bhkv->bhv", k, before)))
        return jnp.where(valid[:, None, None, None], after, S), jnp.where(valid[:, None, None], jnp.einsum("bhk,bhkv->bhv", q, after), 0)

    tokens = [jnp.moveaxis(x, 1, 0).reshape(T // 64, 64, *x.shape[:1], *x.shape[2:])
              for x in (q, k, heads[:, :, 2 * Hk :], decay, jax.nn.sigmoid(b), begins, ids > 0)]
    final, out = jax.lax.scan(jax.checkpoint(lambda S, x: jax.lax.scan(step, S, x)), states["initial"], tokens)
    return jnp.moveaxis(out.reshape(T, B, Hv * HEAD), 0, 1), final


def random_arguments(B, T, type):
    """Numbers of a size at which parts matter to each other."""
    random = np.random.default_rng(7)
    arguments, cotangents = jax.tree.map(lambda x: random.standard_normal(x.shape).astype(x.dtype), shapes(B, T, 1, 2, type))
    arguments[3]["conv_weights"] /= 2
    arguments[3]["A_log"] = arguments[3]["A_log"] / 2 - 4
    return arguments[:5], cotangents


def named(results):
    (out, final), (d_qkv, d_a, d_b, d_parameters, d_states) = results
    arrays = dict(out=out, final=final, d_qkv=d_qkv, d_a=d_a, d_b=d_b, **{f"d_{name}": d for name, d in {**d_parameters, **d_states}.items()})
    for name, x in arrays.items():
        if x.is_fully_replicated and len({np.asarray(shard.data).tobytes() for shard in x.addressable_shards}) > 1:
            raise SystemExit(f"{name} is not the same on all devices")
    return {name: np.asarray(x, np.float64) for name, x in arrays.items()}


def differences(ours, theirs):
    """||ours - theirs|| / ||theirs|| of every array."""
    return {name: np.linalg.norm(ours[name] - theirs[name]) / np.linalg.norm(theirs[name]) for name in theirs}


# (id, tokens) of two rows. Documents cross cuts, end at one, and fill a part from there on; a part is padding alone; an id comes again within the
# taps, before a cut.
ONE_DOCUMENT = [[(1, 512)], [(3, 512)]]
DOCUMENTS = [[(1, 140), (2, 116), (0, 128), (2, 128)], [(0, 60), (1, 66), (2, 1), (1, 1), (1, 50), (4, 78), (6, 231), (5, 25)]]


def check_run(kernels, work, type, bound):
    good, layers = True, {}
    for parts in (PARTS, 1):
        mesh = Mesh(np.array(jax.devices()[:parts]), (context_parallel.AXIS,))
        programs = emitted(kernels, work / f"{type}_{parts}", type, "tpu7x", 2, 512 // parts, 1, 2)
        layers[parts] = jax.jit(with_gradient(context_parallel.layer(programs, mesh)))
    arguments, cotangents = random_arguments(2, 512, type)
    for name, documents in (("one document", ONE_DOCUMENT), ("documents", DOCUMENTS)):
        ids = np.array([np.concatenate([np.full(n, id, np.int32) for id, n in row]) for row in documents])
        together, alone = (named(layers[parts]((*arguments, ids), cotangents)) for parts in (PARTS, 1))
        with jax.enable_x64(True):
            wide, wide_cotangents = jax.tree.map(lambda x: x.astype(np.float64), (arguments, cotangents))
            exact = named(with_gradient(token_by_token)((*wide, ids), wide_cotangents))
            # Parts that do not hear of each other.
            deaf_ids = np.where(ids > 0, ids + 10 * (np.arange(512) * PARTS // 512), 0)
            deaf = named(with_gradient(token_by_token)((*wide, deaf_ids), wide_cotangents))
        for what, other in (("one device", alone), ("float64", exact)):
            errors = differences(together, other)
            worst = max(errors, key=errors.get)
            print(f"{type}, {name}, {PARTS} devices against {what}: at most {errors[worst]:.1e} ({worst})", flush=True)
            for array in [array for array, error in errors.items() if not error <= bound]:
                print(f"    {array} differs by {errors[array]:.1e}; expected at most {bound}")
                good = False
        for array, error in differences(deaf, exact).items():
            if not error > 2 * bound:
                print(f"    {array} of parts that do not hear of each other differs by {error:.1e}; expected more than {2 * bound}")
                good = False
    return good


def check_refusals(kernels, work):
    good = True

    def refused(expected, message):
        nonlocal good
        if expected not in message:
            print(f"    refused with {message!r}; expected {expected!r}")
            good = False

    def of_program(*words, **options):
        return subprocess.run([kernels, *words], capture_output=True, text=True, **options).stderr

    refused("usage: kernels emit DIRECTORY", of_program("emit", work))
    refused("a rank holds 100 tokens; expected a multiple of 64", of_program("emit", work, "f32", "tpu7x", "1", "100", "1", "2"))
    refused("no target v4; expected tpu7x, v6e or v5e", of_program("emit", work, "f32", "v4", "1", "64", "1", "2"))
    programs = emitted(kernels, work / "refusals", "f32", "tpu7x", 1, 64, 1, 2)
    refused("the input ends before the arrays are complete", of_program("run", work / "refusals" / "gates.mlir", "1x64x2xf32", input=""))
    layer = context_parallel.layer(programs, Mesh(np.array(jax.devices()[:1]), (context_parallel.AXIS,)))
    try:
        jax.eval_shape(layer, *shapes(1, 128, 1, 2, "f32")[0])
        refused("a row of two chunks", "")
    except ValueError as error:
        refused("qkv is float32[1, 128, 512], not 1x64x512xf32", str(error))
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=os.path.abspath, metavar="KERNELS")
    parser.add_argument("--tokens", type=int, help="of all parts together")
    parser.add_argument("--heads", type=int, nargs=2, default=(1, 2), metavar=("KEY", "VALUE"))
    parser.add_argument("--type", choices=("f32", "bf16"), default="f32")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", PARTS)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        good = check_compiled(options.kernels, work, 1, options.tokens or 2048, *options.heads, options.type)
        if not options.tokens:
            good &= check_refusals(options.kernels, work)
            good &= check_run(options.kernels, work, "f32", 1e-6)
            good &= check_run(options.kernels, work, "bf16", 1.5e-2)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
