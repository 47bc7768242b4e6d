"""Attention for JAX, under jit, grad and vmap.

>>> import pysm120.jax
>>> grad = jax.grad(lambda q: pysm120.jax.attention(q, k, v, causal=True).sum())  # doctest: +SKIP

The computation is a callback on the host (`jax.pure_callback`): JAX copies the arrays to host memory, the library
computes on a GPU or on the virtual SM120, and JAX copies the results back. Needs the package jax.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pysm120.ops import attention as forward
from pysm120.ops import attention_backward as backward
from pysm120.ops.attention_call import LAYOUTS
from pysm120.ops.options import flag, one_of
from pysm120.ops.plan import Form
from pysm120.ops.traced import Rules, differentiated, gradients_of, results_of
from pysm120.runtime.device import Device

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    message = "pysm120.jax needs the package jax, which is not installed: pip install 'pysm120[jax]'"
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
    device: Any


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
    causal, causal_align, window, softcap, scale, precision, layout, out_dtype, return_lse, device
        As in `pysm120.attention`. They are constants of a compiled function.
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
        ``kv_lengths`` are checked in the call; JAX wraps that error in its own.

    Notes
    -----
    Reverse mode differentiates with respect to q, k, v, sinks and a mask that is not
    bool, by `pysm120.attention_backward`. alibi_slopes are constants: their gradient
    is 0. Forward mode and second derivatives are not supported.

    ``jax.vmap`` makes one call with a larger batch. With sinks, alibi_slopes or a mask
    it makes one call for each element.

    """
    given = {
        "q": q,
        "k": k,
        "v": v,
        "sinks": sinks,
        "alibi_slopes": alibi_slopes,
        "mask": mask,
        "kv_lengths": kv_lengths,
        "diagonals": diagonals,
    }
    given = {name: _as_jax(x, name) for name, x in given.items() if x is not None}
    window = tuple(window) if isinstance(window, list) else window
    call = _Call(
        Rules(causal, causal_align, window, softcap, scale, precision),
        one_of(layout, "layout", tuple(LAYOUTS)),
        out_dtype,
        flag(return_lse, "return_lse"),
        flag(deterministic, "deterministic"),
        device,
    )
    _forms(call, given)  # errors before JAX traces anything
    if deterministic and mask is not None and given["mask"].dtype != np.bool_:
        batch, heads, rows = (given["q"].shape[layout.index(x)] for x in "BHS")
        keys = given["k"].shape[layout.index("S")]
        given["mask"] = jnp.broadcast_to(given["mask"], (batch, heads, rows, keys))
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


def _form(x: Any) -> Form:
    return Form.like(tuple(x.shape), np.dtype(x.dtype))


def _forms(call: _Call, given: Mapping[str, Any]) -> list[Form]:
    """Return the forms of out and lse, after the checks of `pysm120.attention`."""
    return results_of(call.rules, call.layout, call.out_dtype, {name: _form(x) for name, x in given.items()})


def _struct(form: Any) -> Any:
    return jax.ShapeDtypeStruct(form.shape, form.dtype)


# ---- the function and its gradient ---------------------------------------------------------


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(call: _Call, given: _Arrays) -> Any:
    """Return out and lse."""
    return _callback(functools.partial(_compute, call), _forms(call, given), given)


def _attend_forward(call: _Call, given: _Arrays) -> Any:
    """Return the results, and what the gradient needs."""
    out, lse = _attend(call, given)
    return (out, lse), (given, out, lse)


def _attend_backward(call: _Call, kept: Any, slopes: Any) -> Any:
    """Return the gradients of the arrays; None means 0."""
    given, out, lse = kept
    arrays = {**given, "out": out, "lse": lse, "dout": slopes[0].astype(given["q"].dtype)}
    arrays |= {"dlse": slopes[1]} if call.uses_lse else {}
    forms = gradients_of(
        call.rules,
        call.layout,
        {name: _form(x) for name, x in arrays.items()},
        differentiated(given),
        deterministic=call.deterministic,
    )
    compute = functools.partial(_compute_gradients, call)
    made = _callback(compute, list(forms.values()), arrays)
    gradients = dict.fromkeys(given)
    for name, x in zip(forms, made, strict=True):
        gradients[name] = x.astype(given[name].dtype)
    return (gradients,)


_attend.defvjp(_attend_forward, _attend_backward)


# ---- on the host ---------------------------------------------------------------------------


def _callback(compute: Callable[[_Arrays], tuple[Any, ...]], forms: list[Any], given: _Arrays) -> Any:
    """Let JAX call a function of ndarrays."""
    ranks = {name: len(x.shape) for name, x in given.items()}

    def run(arrays: _Arrays) -> tuple[Any, ...]:
        return _batched(compute, {name: np.asarray(x) for name, x in arrays.items()}, ranks)

    return jax.pure_callback(run, tuple(map(_struct, forms)), given, vmap_method="expand_dims")


def _batched(
    compute: Callable[[_Arrays], tuple[Any, ...]], arrays: _Arrays, ranks: Mapping[str, int]
) -> tuple[Any, ...]:
    """Compute arrays with the dimensions that jax.vmap put in front, of size 1 where an array does not have them."""
    front = {name: x.shape[: x.ndim - ranks[name]] for name, x in arrays.items()}
    lead = np.broadcast_shapes(*front.values())
    if not lead:
        return compute(arrays)
    whole = {name: np.broadcast_to(x, lead + x.shape[len(lead) :]) for name, x in arrays.items()}
    if whole.keys() <= _BATCHED:
        made = compute({name: x.reshape(-1, *x.shape[len(lead) + 1 :]) for name, x in whole.items()})
        return tuple(x.reshape(*lead, -1, *x.shape[1:]) for x in made)
    each = [compute({name: x[at] for name, x in whole.items()}) for at in np.ndindex(lead)]
    return tuple(np.stack(x).reshape(lead + x[0].shape) for x in zip(*each, strict=True))


def _compute(call: _Call, arrays: _Arrays) -> tuple[Any, ...]:
    """Return out and lse of ndarrays."""
    more: Any = {"layout": call.layout, "out_dtype": call.out_dtype, "device": call.device}
    made: tuple[Any, ...] = forward.attention(**arrays, **call.rules._asdict(), return_lse=True, **more)
    return made


def _compute_gradients(call: _Call, arrays: _Arrays) -> tuple[Any, ...]:
    """Return the gradients of ndarrays."""
    wanted = differentiated(arrays)
    more: Any = {"layout": call.layout, "deterministic": call.deterministic, "device": call.device}
    return backward.attention_backward(
        **arrays, **call.rules._asdict(), return_dsinks="sinks" in wanted, return_dmask="mask" in wanted, **more
    )
