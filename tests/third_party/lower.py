#!/usr/bin/env python3
"""Lowers TPU kernels that this project did not write, for the simulator to run.

    python lower.py DIRECTORY [NAME...]

Kernels of JAX (jax.experimental.pallas.ops.tpu) and of tokamax are traced on small inputs. Every pallas_call met on the way is lowered for
the TPU by JAX itself, and run on the CPU by Pallas' TPU interpret mode. DIRECTORY/CASE gets
    program.mlir    JAX's StableHLO program, its kernel as text (generic form) where JAX has bytecode
    case.txt        class, and the arrays: "input bf16 2x128 FILE" in the order of the program, "output .." likewise
    FILE            elements of an array, little-endian, row-major
and DIRECTORY/cases.txt lists the cases; what could not be lowered or interpreted is listed there with the reason.

Kernels ask for the chip while they are traced: they are told it is a TPU7x. Nothing here needs one.
"""

import base64
import functools
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import sys
import types
import typing

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import core
from jax._src.interpreters import mlir
from jax._src.lax import lax as lax_internal
from jax._src.lib import tpu
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax._src.pallas import pallas_call as pallas
from jax._src.pallas.mosaic import tpu_info
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.pallas.mosaic.interpret import utils as interpreter_utils
from jax._src.state import types as state
from jax.experimental.pallas import tpu as pltpu

# ------------------------------------------------------------------------------------------ the host has no chip

tpu_info.get_device_kind = lambda: "TPU7x"
tpu_info.get_num_device_cores = lambda: 1
for cached in (tpu_info.get_tpu_info, tpu_info.is_tpu_device):
    getattr(cached, "cache_clear", lambda: None)()

# ------------------------------------------------------------------------------------------ what jax 0.10.2's interpreter lacks

read_ref, swap_ref = interpreter.get, interpreter.swap


def read_through_views(token, device, core_index, space, buffer, transforms, *args, **keywords):
    """It reads no reshaped and no bitcast ref: read what stands before the view, then view that."""
    plain = 0
    while plain < len(transforms) and hasattr(transforms[plain], "indices"):
        plain += 1
    token, value = read_ref(token, device, core_index, space, buffer, transforms[:plain], *args, **keywords)
    for view in transforms[plain:]:
        if isinstance(view, state.ReshapeTransform):
            value = value.reshape(view.shape)
        elif isinstance(view, state.BitcastTransform):
            value = widened(value, np.dtype(view.dtype))
        else:
            value = value[interpreter_utils.to_range([jax.tree.map(int, view)])]
    return token, value


def widened(value, dtype):
    """Rows 2r and 2r + 1 of 16 bits are row r of 32, the first in the low half; likewise for four rows of 8."""
    rows = dtype.itemsize // value.dtype.itemsize
    *outer, second, last = value.shape
    parts = value.reshape(*outer, second // rows, rows, last)
    return np.ascontiguousarray(np.moveaxis(parts, -2, -1)).view(dtype)[..., 0]


def swap_by_selection(token, device, core_index, space, buffer, transforms, value, mask, **keywords):
    """It takes most masked stores for out of bounds: write back what the mask leaves alone."""
    if mask is not None:
        token, old = read_ref(token, device, core_index, space, buffer, transforms)
        value = np.where(np.asarray(mask), np.asarray(value), old)
    return swap_ref(token, device, core_index, space, buffer, transforms, value, None, **keywords)


for patched, original in ((read_through_views, read_ref), (swap_by_selection, swap_ref)):
    patched.__wrapped__ = original.__wrapped__
interpreter.get, interpreter.swap = read_through_views, swap_by_selection

# ------------------------------------------------------------------------------------------ what a TPU does and a CPU does not


def dot_of_a_tpu(context, left, right, *, precision, **parameters):
    """Operands of dots are rounded to bf16, unless the kernel asks for more."""
    asked = precision if isinstance(precision, tuple) else (precision, precision)
    if all(p in (None, jax.lax.Precision.DEFAULT) for p in asked):
        left, right = (hlo.reduce_precision(x, exponent_bits=8, mantissa_bits=7) if a.dtype == jnp.float32 else x
                       for x, a in zip((left, right), context.avals_in))
    return dot_of_a_cpu(context, left, right, precision=precision, **parameters)


dot_of_a_cpu = lax_internal._dot_general_lower
mlir.register_lowering(jax.lax.dot_general_p, dot_of_a_tpu, platform="cpu")

# ------------------------------------------------------------------------------------------ from a function to its kernels


def kernels_met(function, arguments, handle):
    """Runs a function of arrays equation by equation; `handle` runs its pallas_calls."""

    def run(jaxpr, constants, values):
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *values]))
        read = lambda v: v.val if isinstance(v, core.Literal) else known[v]
        for equation in jaxpr.eqns:
            operands = [read(v) for v in equation.invars]
            inner = next((equation.params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in equation.params), None)
            if equation.primitive is pallas.pallas_call_p:
                results = handle(equation.params, operands)
            elif isinstance(inner, core.ClosedJaxpr) and equation.primitive.name not in ("scan", "while", "cond"):
                results = run(inner.jaxpr, inner.consts, operands)
            else:
                results = equation.primitive.bind(*operands, **equation.params)
                if not equation.primitive.multiple_results:
                    results = [results]
            known.update(zip(equation.outvars, results))
        return [read(v) for v in jaxpr.outvars]

    closed = jax.make_jaxpr(function)(*arguments)
    run(closed.jaxpr, closed.consts, jax.tree.leaves(arguments))


def lower(parameters, operands):
    """JAX's program for one pallas_call, with the kernel as text."""
    call = jax.jit(lambda *values: pallas.pallas_call_p.bind(*values, **parameters))
    module = call.trace(*operands).lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")
    calls = []

    def visit(op):
        if op.name == "stablehlo.custom_call" and op.attributes["call_target_name"].value == "tpu_custom_call":
            calls.append(op)
        return ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(visit)
        (op,) = calls
        config = json.loads(op.attributes["backend_config"].value)
        inside = config["custom_call_config"]
        inside["body"] = base64.b64encode(kernel_text(base64.b64decode(inside["body"])).encode()).decode()
        op.attributes["backend_config"] = ir.StringAttr.get(json.dumps(config))
        return module.operation.get_asm(enable_debug_info=False)


def kernel_text(body):
    context = mlir.make_ir_context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        return ir.Module.parse(body).operation.get_asm(enable_debug_info=True, print_generic_op_form=True)


def interpret(parameters, operands):
    parameters = {**parameters, "interpret": pltpu.InterpretParams()}
    results = jax.jit(lambda *values: pallas.pallas_call_p.bind(*values, **parameters))(*operands)
    return [np.asarray(r) for r in results]


# ------------------------------------------------------------------------------------------ cases

NAMES = {"bool": "i1", "float32": "f32", "bfloat16": "bf16", "int32": "i32", "uint32": "i32", "int8": "i8"}


def write_case(directory, precision, program, inputs, outputs):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "program.mlir").write_text(program)
    lines = [f"class {precision}"]
    for kind, arrays in (("input", inputs), ("output", outputs)):
        for i, array in enumerate(arrays):
            array = np.asarray(array)
            file = f"{kind}{i}"
            array.tofile(directory / file)
            lines.append(f"{kind} {NAMES[array.dtype.name]} {'x'.join(map(str, array.shape)) or '-'} {file}")
    (directory / "case.txt").write_text("\n".join(lines) + "\n")


def write_kernels(root, name, precision, function, arguments, listing):
    count = 0

    def handle(parameters, operands):
        nonlocal count
        case = f"{name}_{count}" if count else name
        count += 1
        operands = [jnp.asarray(o) for o in operands]
        program = lower(parameters, operands)
        outputs = interpret(parameters, operands)
        write_case(root / case, precision, program, operands, outputs)
        listing.append(f"case {case}")
        print(f"{case}: lowered and interpreted", flush=True)
        return outputs

    try:
        kernels_met(function, arguments, handle)
        if not count:
            raise RuntimeError("no pallas_call was met")
    except Exception as error:  # whatever JAX or a package raises: the runner reports it by name
        interpreter.reset_tpu_interpret_mode_state()
        reason = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
        listing.append(f"failed {name} {type(error).__name__}: {reason[-1].strip()}")
        print(listing[-1], flush=True)


class Draw:
    """Inputs, by numpy's generator."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def f32(self, *shape):
        return jnp.asarray(self.random.normal(size=shape), jnp.float32)

    def bf16(self, *shape):
        return self.f32(*shape).astype(jnp.bfloat16)

    def pages(self, rows, columns, of):
        return i32(self.random.permutation(of)[: rows * columns].reshape(rows, columns))


def i32(values):
    return jnp.asarray(values, jnp.int32)


KERNELS = []


def kernel(precision):
    """`precision`: exact (integers), f32 (sums in another order), bf16 (operands of dots are rounded to bf16)."""

    def register(make):
        KERNELS.append((make.__name__, precision, make))
        return make

    return register


@kernel("bf16")
def matmul_f32(draw):
    from jax.experimental.pallas.ops.tpu.matmul import matmul

    return functools.partial(matmul, block_shape=(128, 128), block_k=128), (draw.f32(256, 256), draw.f32(256, 256))


@kernel("f32")
def matmul_bf16(draw):
    from jax.experimental.pallas.ops.tpu.matmul import matmul

    return (functools.partial(matmul, block_shape=(128, 128), block_k=128, out_dtype=jnp.float32),
            (draw.bf16(256, 384), draw.bf16(384, 256)))


@kernel("bf16")
def flash_attention(draw):
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention as attention

    return functools.partial(attention, causal=True), tuple(draw.bf16(1, 2, 256, 128) for _ in range(3))


@kernel("bf16")
def flash_attention_segments_grad(draw):
    """Forward with residuals and segments, then dk and dv, then dq: three kernels."""
    from jax.experimental.pallas.ops.tpu import flash_attention as flash

    segments = i32(np.repeat([0, 1], [100, 156])[None])
    ids = flash.SegmentIds(segments, segments)
    loss = lambda q, k, v: jnp.sum(jnp.sin(flash.flash_attention(q, k, v, causal=True, segment_ids=ids)))
    return jax.grad(loss, argnums=(0, 1, 2)), tuple(draw.f32(1, 2, 256, 128) for _ in range(3))


@kernel("bf16")
def flash_attention_bias(draw):
    from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention as attention

    return attention, (*(draw.f32(2, 2, 128, 64) for _ in range(3)), draw.f32(2, 2, 128, 128))


def splash(local=False, attn_logits_soft_cap=None, **blocks):
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask as masks

    one = masks.LocalMask((256, 256), (100, 0), 0) if local else masks.CausalMask((256, 256))
    sizes = splash_attention_kernel.BlockSizes(block_q=128, block_kv=128, block_kv_compute=128, **blocks)
    return splash_attention_kernel.make_splash_mha(masks.MultiHeadMask([one, one]), head_shards=1, q_seq_shards=1, block_sizes=sizes,
                                                   attn_logits_soft_cap=attn_logits_soft_cap)


@kernel("bf16")
def splash_attention(draw):
    attention = splash()
    return lambda q, k, v: attention(q, k, v), tuple(draw.bf16(2, 256, 128) for _ in range(3))


@kernel("bf16")
def splash_attention_grad(draw):
    attention = splash(block_q_dkv=128, block_kv_dkv=128, block_kv_dkv_compute=128, block_q_dq=128, block_kv_dq=128)
    loss = lambda q, k, v: jnp.sum(jnp.sin(attention(q, k, v).astype(jnp.float32)))
    return jax.grad(loss, argnums=(0, 1, 2)), tuple(draw.bf16(2, 256, 128) for _ in range(3))


@kernel("bf16")
def splash_attention_local(draw):
    """A window of 100 tokens, logits through tanh, segments."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

    attention = splash(local=True, attn_logits_soft_cap=20.0)
    segments = i32(np.repeat([0, 1], [100, 156]))
    return (lambda q, k, v: attention(q, k, v, splash_attention_kernel.SegmentIds(segments, segments)),
            tuple(draw.bf16(2, 256, 128) for _ in range(3)))


def paged(draw, quantized=False, **options):
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
    from jax.experimental.pallas.ops.tpu.paged_attention import quantization_utils

    k, v = draw.f32(2, 16, 16, 128), draw.f32(2, 16, 16, 128)
    lengths, pages, q = i32([33, 20]), draw.pages(2, 4, 16), draw.f32(2, 4, 128)
    call = functools.partial(paged_attention, pages_per_compute_block=2, **options)
    if not quantized:
        return call, (q, k, v, lengths, pages)
    Quantized = quantization_utils.QuantizedTensor
    k, v = quantization_utils.quantize_to_int8(k), quantization_utils.quantize_to_int8(v)
    return (lambda q, kw, ks, vw, vs, *rest: call(q, Quantized(kw, ks), Quantized(vw, vs), *rest),
            (q, k.weight, k.scales, v.weight, v.scales, lengths, pages))


@kernel("bf16")
def paged_attention(draw):
    """Pages by make_async_copy, two blocks of them in turn."""
    return paged(draw)


@kernel("bf16")
def paged_attention_grid(draw):
    return paged(draw, inline_seq_dim=False)


@kernel("bf16")
def paged_attention_int8(draw):
    return paged(draw, quantized=True)


@kernel("bf16")
def ragged_paged_attention(draw):
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention as attention

    call = functools.partial(attention, num_kv_pages_per_block=2, num_queries_per_block=8)
    return call, (draw.bf16(24, 4, 128), draw.bf16(16, 16, 4, 128), i32([40, 20]), draw.pages(2, 4, 16), i32([0, 16, 20]), i32([2]))


@kernel("f32")
def ragged_paged_attention_window(draw):
    """f32, windows of 12 tokens, logits through tanh."""
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention as attention

    call = functools.partial(attention, num_kv_pages_per_block=2, num_queries_per_block=8, sliding_window=12, soft_cap=20.0)
    return call, (draw.f32(24, 4, 128), draw.f32(16, 16, 4, 128), i32([40, 20]), draw.pages(2, 4, 16), i32([0, 16, 20]), i32([2]))


def grouped():
    return i32([100, 28, 0, 128])


@kernel("f32")
def megablox_gmm(draw):
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    return lambda a, b, sizes: gmm(a, b, sizes, jnp.float32, (128, 128, 128)), (draw.bf16(256, 256), draw.bf16(4, 256, 128), grouped())


@kernel("f32")
def megablox_gmm_in_place(draw):
    """Groups 1 and 2 of four are computed, into what is there."""
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

    return (lambda a, b, sizes, out: gmm(a, b, sizes, jnp.float32, (128, 128, 128), group_offset=i32(1), existing_out=out, transpose_rhs=True),
            (draw.bf16(256, 256), draw.bf16(2, 128, 256), i32([60, 68, 100, 28]), draw.f32(256, 128)))


@kernel("f32")
def megablox_tgmm(draw):
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    return lambda a, b, sizes: tgmm(a, b, sizes, jnp.float32, (128, 128, 128)), (draw.bf16(256, 256), draw.bf16(256, 128), grouped())


@kernel("exact")
def threefry(draw):
    from jax.experimental.pallas.ops.tpu.random.threefry import plthreefry_random_bits

    return lambda key: plthreefry_random_bits(key, 32, (256, 256)), (jnp.asarray([1, 2], jnp.uint32),)


@kernel("exact")
def philox(draw):
    from jax.experimental.pallas.ops.tpu.random.philox import philox_4x32_count

    return lambda key: philox_4x32_count(key, (256, 256)), (jnp.asarray([1, 2], jnp.uint32),)


def tokamax(module):
    """A module of tokamax, without the imports of the packages it stands in."""
    if not hasattr(typing, "override"):  # Python 3.11
        typing.override = lambda method: method
    parts = ("tokamax._src.ops." + module).split(".")
    for i in range(1, len(parts)):
        name = ".".join(parts[:i])
        if name in sys.modules:
            continue
        package = types.ModuleType(name)
        if i == 1:
            found = importlib.util.find_spec(name)
            if not found:
                raise ModuleNotFoundError("tokamax is not installed")
            package.__path__ = list(found.submodule_search_locations)
        else:
            package.__path__ = [os.path.join(sys.modules[".".join(parts[: i - 1])].__path__[0], parts[i - 1])]
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
        if i > 1:
            setattr(sys.modules[".".join(parts[: i - 1])], parts[i - 1], package)
    return importlib.import_module(".".join(parts))


@kernel("bf16")
def tokamax_gdn(draw):
    """Convolution, gates and gated delta rule of two one-token rows (kernel 1, token by token) and one of 15 (kernel 2, in chunks of 8),
    by emit_pipeline, with the states updated in place."""
    call = tokamax("causal_conv1d_gated_delta_rule.wrapper").fused_conv1d_gdn
    tokens, key_heads, heads, width, taps, rows = 20, 2, 4, 128, 4, 3
    channels = 2 * key_heads * width + heads * width
    arrays = dict(
        qkv=draw.bf16(tokens, channels), b=draw.bf16(tokens, heads), a=draw.bf16(tokens, heads),
        conv_state=draw.f32(rows + 1, taps - 1, channels), recurrent_state=draw.f32(rows + 1, heads, width, width) * 0.1,
        conv_weight=draw.f32(channels, 1, taps) * 0.5, a_log=-1 - jnp.abs(draw.f32(heads)), dt_bias=draw.f32(heads),
        query_start_loc=i32([0, 1, 2, 17]), state_indices=i32([1, 2, 3]), distribution=i32([2, 3, 3]), seq_lens=i32([5, 7, 15]))
    return (lambda *values: call(**dict(zip(arrays, values)), conv_bias=None, n_kq=key_heads, n_v=heads, d_k=width, d_v=width,
                                 kernel_size=taps, decode_tile_size=2, mixed_tile_size=8),
            tuple(arrays.values()))


def main(arguments):
    root = pathlib.Path(arguments[0])
    root.mkdir(parents=True, exist_ok=True)
    listing = []
    for seed, (name, precision, make) in enumerate(KERNELS):
        if arguments[1:] and name not in arguments[1:]:
            continue
        try:
            function, inputs = make(Draw(seed))
        except Exception as error:
            listing.append(f"failed {name} {type(error).__name__}: {error}")
            print(listing[-1], flush=True)
            continue
        write_kernels(root, name, precision, function, inputs, listing)
    (root / "cases.txt").write_text("\n".join(listing) + "\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
