"""Attention for JAX, under jit, grad and vmap.

>>> import pysm120.jax
>>> grad = jax.grad(lambda q: pysm120.jax.attention(q, k, v, causal=True).sum())  # doctest: +SKIP

A call is one custom call of XLA, which `bindings/xla/sm120_xla.c` handles. Arrays on a GPU are used where they are, on
XLA's stream. Arrays on the CPU are copied to a GPU or to the virtual SM120, and the results back. Needs the package
jax.
"""

import ctypes
import functools
import itertools
import os
import re
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops.attention_call import LAYOUTS, Rules
from pysm120.ops.options import flag, one_of
from pysm120.ops.plan import Form
from pysm120.ops.traced import ARRAYS, Traced, attend, differentiate, differentiated, shape_of_scores
from pysm120.runtime.context import Resource
from pysm120.runtime.device import Device, as_device
from pysm120.runtime.ffi import cast, companion, ffi, lib

try:
    import jax
    import jax.ffi
    import jax.numpy as jnp
except ImportError as error:
    message = "pysm120.jax needs the package jax, which is not installed or too old: pip install 'pysm120[jax]'"
    raise ImportError(message) from error

_Arrays = dict[str, Any]
# Arrays whose first dimension is the batch: calls of jax.vmap over these alone are one call with a larger batch.
_BATCHED = {"q", "k", "v", "kv_lengths", "diagonals", "out", "lse", "dout", "dlse"}


class _Call(NamedTuple):
    """What is the same for every value of the arrays."""

    rules: Rules
    layout: str
    out_dtype: Any
    uses_lse: bool
    deterministic: bool
    device: str  # as the handlers know it


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    causal_align: str = "bottom-right",
    window: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    sinks: Any = None,
    alibi_slopes: Any = None,
    mask: Any = None,
    kv_lengths: Any = None,
    diagonals: Any = None,
    scale: float | None = None,
    precision: str | None = None,
    layout: str = "BSHD",
    out_dtype: npt.DTypeLike | None = None,
    return_lse: bool = False,
    deterministic: bool = False,
    device: Device | str | None = None,
) -> Any:
    """Return softmax(scale * q k^T + mask) v as arrays of JAX.

    Parameters
    ----------
    q, k, v, sinks, alibi_slopes, mask, kv_lengths, diagonals : array
        As in `pysm120.attention`; arrays of JAX, also traced ones, or what
        ``jax.numpy.asarray`` takes.
    causal, causal_align, window, softcap, scale, precision, layout, out_dtype, return_lse
        As in `pysm120.attention`. They are constants of a compiled function.
    device : Device or str, optional
        Where arrays on the CPU are computed, as in `pysm120.attention`. Arrays on a GPU
        are computed there.
    deterministic : bool
        As in `pysm120.attention_backward`. A mask that is not bool is then broadcast
        in memory, and JAX sums its gradient.

    Returns
    -------
    out : jax.Array, shape (B, Sq, H, Dv)
    lse : jax.Array, float32, shape (B, H, Sq)
        With ``return_lse``.

    Raises
    ------
    TypeError, ValueError
        As in `pysm120.attention`, when the function is traced. Values of
        ``kv_lengths`` on the CPU are checked in the call; JAX wraps that error in its
        own.

    Notes
    -----
    Reverse mode differentiates with respect to q, k, v, sinks and a mask that is not
    bool, by `pysm120.attention_backward`. alibi_slopes are constants: their gradient
    is 0. Forward mode and second derivatives are not supported.

    ``jax.vmap`` makes one call with a larger batch. With sinks, alibi_slopes or a mask
    it makes one call for each element.

    """
    arrays = zip(ARRAYS, (q, k, v, sinks, alibi_slopes, mask, kv_lengths, diagonals), strict=True)
    given = {name: _as_jax(x, name) for name, x in arrays if x is not None}
    window = tuple(window) if isinstance(window, list) else window
    call = _Call(
        Rules(causal, causal_align, window, softcap, scale, precision),
        one_of(layout, "layout", tuple(LAYOUTS)),
        out_dtype,
        flag(return_lse, "return_lse"),
        flag(deterministic, "deterministic"),
        _device_name(device),
    )
    _traced(call, given).forms(_forms(given))  # errors before JAX traces anything
    if deterministic and mask is not None and given["mask"].dtype != np.bool_:
        given["mask"] = jnp.broadcast_to(given["mask"], shape_of_scores(given, layout))
    out, lse = _attend(call, given)
    return (out, lse) if return_lse else out


def _as_jax(x: Any, name: str) -> Any:
    """Return an argument as an array of JAX."""
    try:
        return jnp.asarray(x)
    except TypeError:
        message = f"{name} is a {type(x).__name__}, not an array of JAX or what jax.numpy.asarray takes"
        raise TypeError(message) from None


# ---- forms, which JAX needs when it traces ------------------------------------------------


def _forms(given: Mapping[str, Any]) -> dict[str, Form]:
    return {name: Form.like(tuple(x.shape), np.dtype(x.dtype)) for name, x in given.items()}


def _traced(call: _Call, given: Mapping[str, Any]) -> Traced:
    """Return the operation of a call: the gradient if there is one of the result."""
    if "dout" in given:
        return differentiate(call.rules, call.layout, differentiated(given), deterministic=call.deterministic)
    return attend(call.rules, call.layout, call.out_dtype)


# ---- the function and its gradient ---------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: _Call, given: _Arrays) -> Any:
    """Return out and lse."""
    return _compute(call, given)


def _attend_forward(call: _Call, given: _Arrays) -> Any:
    """Return the results, and what the gradient needs."""
    out, lse = _attend(call, given)
    return (out, lse), (given, out, lse)


def _attend_backward(call: _Call, kept: Any, slopes: Any) -> Any:
    """Return the gradients of the arrays; None means 0."""
    given, out, lse = kept
    arrays = {**given, "out": out, "lse": lse, "dout": slopes[0].astype(given["q"].dtype)}
    arrays |= {"dlse": slopes[1]} if call.uses_lse else {}
    made = _compute(call, arrays)
    gradients = dict.fromkeys(given)
    for name, x in zip(differentiated(given), made, strict=True):
        gradients[name] = x.astype(given[name].dtype)
    return (gradients,)


_attend.defvjp(_attend_forward, _attend_backward)


# ---- the custom call -----------------------------------------------------------------------


def _compute(call: _Call, given: _Arrays) -> tuple[Any, ...]:
    """Return the results of an operation, also under jax.vmap."""
    compute = jax.custom_batching.custom_vmap(functools.partial(_call, call))
    compute.def_vmap(functools.partial(_compute_many, call))
    made: tuple[Any, ...] = compute(given)
    return made


def _compute_many(call: _Call, size: int, are_batched: tuple[dict[str, bool]], given: _Arrays) -> Any:
    """Compute arrays of which some have one more dimension in front; return the results, which all have it."""
    made = _compute_each(call, size, are_batched[0], given)
    return made, (True,) * len(made)


def _compute_each(call: _Call, size: int, is_batched: Mapping[str, bool], given: _Arrays) -> tuple[Any, ...]:
    """Compute them in one call with a larger batch, or one after the other."""
    if given.keys() <= _BATCHED:
        whole = {name: x if is_batched[name] else jnp.broadcast_to(x, (size, *x.shape)) for name, x in given.items()}
        made = _compute(call, {name: x.reshape(-1, *x.shape[2:]) for name, x in whole.items()})
        return tuple(x.reshape(size, -1, *x.shape[1:]) for x in made)
    moving = {name: x for name, x in given.items() if is_batched[name]}
    each: tuple[Any, ...] = jax.lax.map(lambda x: _compute(call, {**given, **x}), moving)
    return each


def _call(call: _Call, given: _Arrays) -> tuple[Any, ...]:
    """Make the custom call."""
    forms, traced = _forms(given), _traced(call, given)
    plan, places = traced.plan(forms)
    forms |= traced.forms(forms)
    inputs, results = ([name for name, _ in x] for x in (places[: len(plan.reads)], places[len(plan.reads) :]))
    lengths, most = -1, 0
    if "kv_lengths" in given:
        lengths, most = inputs.index("kv_lengths"), forms["k"].shape[call.layout.index("S")]
    made = jax.ffi.ffi_call(_NAME, tuple(jax.ShapeDtypeStruct(forms[x].shape, forms[x].dtype) for x in results))(
        *(given[name] for name in inputs),
        args=np.frombuffer(bytes(ffi.buffer(plan.args)), np.int64),
        places=np.array([(word, _bytes(forms[name])) for name, word in places], np.int64).reshape(-1),
        options=np.array(["dout" in given, lengths, most], np.int64),
        device=call.device,
    )
    return tuple(made)


def _bytes(form: Form) -> int:
    return int(np.prod(form.shape)) * form.dtype.itemsize


# ---- the handlers --------------------------------------------------------------------------

_NAME = "pysm120_attention"


def _xla_version() -> tuple[int, int]:
    """Return the version of XLA's FFI by its header: that of JAX 0.6 does not state it to handlers."""
    header = (Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text(encoding="utf-8")
    major, minor = (re.findall(rf"^#define XLA_FFI_API_{x} (\d+)$", header, re.MULTILINE) for x in ("MAJOR", "MINOR"))
    if not (major and minor):
        message = "the header c_api.h in jaxlib states no version of XLA's FFI, but pysm120 knows 0.x"
        raise ImportError(message)
    return int(major[0]), int(minor[0])


def _load() -> Any:
    """Open the library of the handlers and register them."""
    handlers = ctypes.CDLL(str(companion("libsm120_xla.so")))
    if handlers.sm120_xla_version() != lib.sm120_version():
        message = "libsm120_xla.so is not of the version of libsm120: build the library again"
        raise ImportError(message)
    major, minor = _xla_version()
    if major != 0:
        message = f"the FFI of XLA in jaxlib has version {major}.{minor}, but pysm120 knows 0.x"
        raise ImportError(message)
    handlers.sm120_xla_set_version(minor)
    handlers.sm120_xla_set_device.argtypes = (ctypes.c_char_p, ctypes.c_void_p)
    for platform, handler in (("cpu", handlers.sm120_xla_on_host), ("CUDA", handlers.sm120_xla_on_gpu)):
        jax.ffi.register_ffi_target(_NAME, jax.ffi.pycapsule(handler), platform=platform)
    return handlers


_handlers = _load()
_numbers = itertools.count()
# What the handlers call a Device, and what takes the name back when it is closed.
_named: weakref.WeakKeyDictionary[Device, tuple[str, Resource]] = weakref.WeakKeyDictionary()


def _device_name(device: Device | str | None) -> str:
    """Return what the handlers call a device. They open the device of a name themselves, also in another process."""
    found = as_device(device)
    if not isinstance(device, Device):
        return device or ""
    if found not in _named:
        name = f"#{os.getpid()}-{next(_numbers)} {found}"
        known = name.encode()
        if not _handlers.sm120_xla_set_device(known, int(cast("uintptr_t", found.handle.pointer))):
            message = "too many devices are open in this process: close some"
            raise RuntimeError(message)
        _named[found] = name, Resource(found, "name", functools.partial(_handlers.sm120_xla_set_device, known, None))
    return _named[found][0]
