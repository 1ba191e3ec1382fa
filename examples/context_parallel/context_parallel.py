"""A Gated DeltaNet layer whose rows are cut over devices: TPU kernels that gdn emitted, collectives of JAX.

Part r of P holds tokens [r L, (r + 1) L). What a part does to the state before it is affine, S -> Phi S + s, so no part waits for another:
    1. s from zeros and M of every chunk (layer_forward_states), then Phi (transition)
    2. (Phi, s) of the parts are composed in log2 P rounds of ppermute: the state before every part
    3. the forward of every part from that state (layer_forward)
The convolution's last inputs go to the next part first, the halo. Backward the same with Phi^T and D, the gradient of the state before a
part if that of the state behind it were 0 (state_gradient), from the last part on; then layer_backward, whose halo goes the other way.

Kernels keep a token's heads side by side in one row, [B, T, H W]: reshaping that to [B, T, H, W] is a copy on a TPU.
"""

import functools
import json
import pathlib
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

AXIS, CHUNK, CHANNELS, TAPS = "row", 64, 128, 4
DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "i32": jnp.int32}


class Kernels:
    """The programs in a directory (kernels.cpp) as functions of named arrays; a result if it is the only one, else a dict of them."""

    def __init__(self, directory, simulator):
        for name, kernel in json.loads(pathlib.Path(directory, "kernels.json").read_text()).items():
            simulate = [simulator, "run", str(pathlib.Path(directory, f"{name}.mlir"))]
            setattr(self, name, functools.partial(self.call, name, kernel, simulate))

    @staticmethod
    def call(name, kernel, simulate, **arrays):
        types = dict(kernel["operands"])
        order = [list(types).index(operand) for operand, _ in kernel["operands"]]  # an array of several windows is several operands
        results = [described(type) for _, type in kernel["results"]]
        fits = lambda x, type: (x.shape, x.dtype) == (described(type).shape, described(type).dtype)
        wrong = [f"{x} is {arrays[x].dtype}{list(arrays[x].shape)}, not {type}" for x, type in types.items() if not fits(arrays[x], type)]
        if wrong:
            raise ValueError(f"{name}: {'; '.join(wrong)}")
        on_tpu = jax.ffi.ffi_call("tpu_custom_call", results, custom_call_api_version=1, legacy_backend_config=kernel["backend_config"])
        simulated = functools.partial(run, [*simulate, *types.values()], results)
        with jax.named_scope(name):
            made = jax.lax.platform_dependent(
                *(arrays[operand] for operand in types),
                tpu=lambda *x: on_tpu(*(x[i] for i in order)),
                cpu=functools.partial(jax.pure_callback, simulated, results),
            )
        return made[0] if len(made) == 1 else {result: array for (result, _), array in zip(kernel["results"], made)}


def described(type):
    *shape, dtype = type.split("x")
    return jax.ShapeDtypeStruct([int(n) for n in shape], DTYPES[dtype])


def run(command, results, *arrays):
    """The kernel in gdn's simulator: for a host without TPUs."""
    done = subprocess.run(command, input=b"".join(np.asarray(x).tobytes() for x in arrays), capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    sizes = [r.dtype.itemsize * int(np.prod(r.shape)) for r in results]
    parts = np.split(np.frombuffer(done.stdout, np.uint8), np.cumsum(sizes))
    return [part.view(r.dtype).reshape(r.shape) for part, r in zip(parts, results)]


# ---------------------------------------------------------------------------------------------- between parts


def shifted(x, distance):
    """x of the part `distance` before this one, 0 where there is none."""
    parts = jax.lax.axis_size(AXIS)
    return jax.lax.ppermute(x, AXIS, [(p, p + distance) for p in range(parts) if 0 <= p + distance < parts])


def of_part(part, x):
    """x of one part, on all of them."""
    return jax.lax.psum(jnp.where(jax.lax.axis_index(AXIS) == part, x, 0), AXIS)


def composed(phi, x, outer, step):
    """y <- phi y + x from part to part, from the first one on (step 1) or the last (step -1), which has y = outer: y before and behind this part."""
    parts, part = jax.lax.axis_size(AXIS), jax.lax.axis_index(AXIS)
    place = part if step > 0 else parts - 1 - part
    dot = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    x = jnp.where(place == 0, dot(phi, outer) + x, x)
    distance = 1
    while distance < parts:  # Hillis and Steele
        phi_before, x_before = shifted((phi, x), step * distance)
        x = dot(phi, x_before) + x
        phi = jnp.where(place < distance, phi, dot(phi, phi_before))
        distance *= 2
    return jnp.where(place == 0, outer, shifted(x, step)), x


def find_documents(ids):
    """ids [B, L] of a part (<= 0 is padding; another id begins another document) as kernels read them (gdn/kernels/documents.hpp);
    which rows [B] continue a document of a part before, or the states; which of the part's last inputs [B, taps - 1] the next part sees."""
    B, T = ids.shape
    ids = jnp.maximum(ids, 0)
    valid = ids > 0

    def so_far(ids, axis):  # the id of the last valid token up to each
        return jax.lax.associative_scan(lambda a, b: jnp.where(b > 0, b, a), ids, axis=axis)

    def earlier(x, distance, first):
        return jnp.pad(x, ((0, 0), (distance, 0)), constant_values=first)[:, :T]

    id_so_far = so_far(ids, 1)
    id_before = earlier(id_so_far, 1, 0)
    document = 1 + jnp.cumsum(valid & (id_before > 0) & (ids != id_before), axis=1, dtype=jnp.int32)
    word = document << 8
    for d in range(TAPS):
        sees = valid & earlier(valid, d, True) & (earlier(document, d, 1) == document)
        word |= sees.astype(jnp.int32) << d
    boundary = jnp.pad(document[:, CHUNK - 1 :: CHUNK], ((0, 0), (1, 0)), constant_values=1)

    part = jax.lax.axis_index(AXIS)
    of_parts = so_far(jax.lax.all_gather(id_so_far[:, -1], AXIS), 0)
    id_before = jnp.where(part == 0, 0, of_parts[part - 1])
    first_id = jnp.max(jnp.where(document == 1, ids, 0), axis=1)
    continues = (id_before == 0) | (first_id == 0) | (id_before == first_id)
    in_halo = (valid & (document == document[:, -1:]))[:, 1 - TAPS :]
    return {"documents": word.reshape(B, T // CHUNK, 1, CHUNK), "boundary": boundary.reshape(-1)}, continues, in_halo


def keep(rows, x):
    """x, or 0 in the rows [B] or [B, n] that are not to be kept."""
    return jnp.where(rows.reshape(rows.shape + (1,) * (x.ndim - rows.ndim)), x, 0)


# ---------------------------------------------------------------------------------------------- one part


def convolved(kernels, x, which):
    """The layer's q (0) or k (1) behind the convolution."""
    width = (x["qkv"].shape[2] - CHANNELS * x["a"].shape[2]) // 2
    columns = {name: x[name][..., which * width : (which + 1) * width] for name in ("qkv", "conv_weights", "conv_bias", "conv_initial")}
    return kernels.causal_conv(x=columns["qkv"], weights=columns["conv_weights"], conv_bias=columns["conv_bias"], initial=columns["conv_initial"],
                               documents=x["documents"])


def forward(kernels, qkv, a, b, parameters, states, ids):
    """(out, final state), and what the backward reads beside the arguments."""
    plan, continues, in_halo = find_documents(ids)
    halo = keep(continues, shifted(keep(in_halo, qkv[:, 1 - TAPS :]), 1))
    halo = jnp.where(jax.lax.axis_index(AXIS) == 0, states["conv_initial"], halo)
    x = dict(qkv=qkv, a=a, b=b, conv_initial=halo, **parameters, **plan)

    first = kernels.layer_forward_states(**x)
    phi = keep(continues, kernels.transition(k=convolved(kernels, x, 1), **kernels.gates(**x), t_inv=first["t_inv"], **plan))
    before, behind = composed(phi, first["final_state"], states["initial"], 1)
    second = kernels.layer_forward(initial_state=keep(continues, before), **x)

    saved = dict(halo=halo, phi=phi, t_inv=first["t_inv"], residual=second["residual"], chunk_states=second["chunk_states"])
    return (second["out"], of_part(jax.lax.axis_size(AXIS) - 1, behind)), saved


def backward(kernels, qkv, a, b, parameters, ids, saved, d_out, d_final):
    """Gradients of qkv, a, b, parameters and states."""
    plan, continues, in_halo = find_documents(ids)
    x = dict(qkv=qkv, a=a, b=b, conv_initial=saved["halo"], t_inv=saved["t_inv"], d_out=d_out, **parameters, **plan)

    d = kernels.state_gradient(q=convolved(kernels, x, 0), k=convolved(kernels, x, 1), **kernels.gates(**x), **x)
    d_behind, d_initial = composed(saved["phi"].swapaxes(2, 3), keep(continues, d), d_final, -1)
    d = kernels.layer_backward(d_final=d_behind, residual=saved["residual"], chunk_states=saved["chunk_states"], **x)

    d_halo = keep(in_halo, shifted(keep(continues, d["d_conv_initial"]), -1))
    d_qkv = jnp.concatenate([d["dq"], d["dk"], d["dv"]], axis=2) + jnp.pad(d_halo, ((0, 0), (qkv.shape[1] - TAPS + 1, 0), (0, 0)))
    of_parameters = {"conv_weights": d["d_conv_weights"], "conv_bias": d["d_conv_bias"], "A_log": d["dA_log"], "dt_bias": d["ddt_bias"]}
    d_parameters = {name: jax.lax.psum(x.sum(axis=0), AXIS).reshape(parameters[name].shape) for name, x in of_parameters.items()}
    d_states = {"initial": of_part(0, d_initial), "conv_initial": of_part(0, d["d_conv_initial"])}
    return d_qkv, d["da"], d["db"], d_parameters, d_states


# ---------------------------------------------------------------------------------------------- all parts


def layer(kernels, mesh):
    """A function of qkv [B, T, D], a and b [B, T, Hv], parameters {conv_weights [taps, D], conv_bias [1, D], A_log and dt_bias [1, Hv]}, states
    before the rows {initial [B, Hv, K, V], conv_initial [B, taps - 1, D]} and documents ids [B, T], to out [B, T, Hv V] and the final state. What
    has tokens is cut along T over the mesh's axis "row"; the rest is the same on all devices. JAX can take its gradient."""
    cut, whole = PartitionSpec(None, AXIS), PartitionSpec()
    on_parts = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
    forward_of_all = on_parts(functools.partial(forward, kernels), in_specs=(cut, cut, cut, whole, whole, cut), out_specs=((cut, whole), cut))
    backward_of_all = on_parts(functools.partial(backward, kernels), in_specs=(cut, cut, cut, whole, cut, cut, cut, whole),
                               out_specs=(cut, cut, cut, whole, whole))

    @jax.custom_vjp
    def layer(qkv, a, b, parameters, states, ids):
        return forward_of_all(qkv, a, b, parameters, states, ids)[0]

    def forward_and_saved(qkv, a, b, parameters, states, ids):
        results, saved = forward_of_all(qkv, a, b, parameters, states, ids)
        return results, (qkv, a, b, parameters, ids, saved)

    layer.defvjp(forward_and_saved, lambda saved, cotangents: (*backward_of_all(*saved, *cotangents), None))
    return layer
