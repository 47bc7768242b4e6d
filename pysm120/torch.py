"""Attention for PyTorch: a custom operator, under autograd and torch.compile.

>>> import pysm120.torch
>>> out = pysm120.torch.attention(q, k, v, causal=True)  # doctest: +SKIP
>>> out.sum().backward()  # doctest: +SKIP

Tensors on a GPU are used where they are, on the current stream. Tensors on the CPU are copied to a GPU or to the
virtual SM120, and the results back. Needs the package torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pysm120.ops import attention as forward
from pysm120.ops import attention_backward as backward
from pysm120.ops.attention_call import Rules
from pysm120.ops.options import ends, flag
from pysm120.ops.plan import Form
from pysm120.ops.traced import ARRAYS, GRADIENTS, Traced, attend, differentiate, shape_of_scores
from pysm120.runtime.arrays import Array
from pysm120.runtime.device import shared_device
from pysm120.runtime.errors import InvalidArgumentError, UnsupportedError

try:
    import torch
    from torch import Tensor
except ImportError as error:
    message = "pysm120.torch needs the package torch, which is not installed: pip install 'pysm120[torch]'"
    raise ImportError(message) from error

_REQUIRED = ("q", "k", "v")
# Arguments of both operators behind their tensors.
_RULES = (
    "bool causal, str causal_align, SymInt? left, SymInt? right, float softcap, float? scale, str? precision, "
    "str layout, bool deterministic, str? device"
)
_TENSORS = ", ".join(f"Tensor{'' if name in _REQUIRED else '?'} {name}" for name in ARRAYS)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    causal_align: str = "bottom-right",
    window: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    mask: Tensor | None = None,
    kv_lengths: Tensor | None = None,
    diagonals: Tensor | None = None,
    scale: float | None = None,
    precision: str | None = None,
    layout: str = "BSHD",
    out_dtype: Any = None,
    return_lse: bool = False,
    deterministic: bool = False,
    device: str | None = None,
) -> Any:
    """Return softmax(scale * q k^T + mask) v as tensors.

    Parameters
    ----------
    q, k, v, sinks, alibi_slopes, mask, kv_lengths, diagonals : Tensor
        As in `pysm120.attention`; all on one device, the CPU or a GPU.
    causal, causal_align, window, softcap, scale, precision, layout, return_lse
        As in `pysm120.attention`.
    out_dtype : torch.dtype, optional
        float32, float16 or bfloat16. Default: that of q.
    deterministic : bool
        As in `pysm120.attention_backward`. A mask that is not bool is then broadcast
        in memory, and PyTorch sums its gradient.
    device : str, optional
        Where tensors on the CPU are computed, as in `pysm120.attention`: "virtual",
        "cuda". Tensors on a GPU are computed there.

    Returns
    -------
    out : Tensor, shape (B, Sq, H, Dv)
    lse : Tensor, float32, shape (B, H, Sq)
        With ``return_lse``.

    Raises
    ------
    TypeError, ValueError
        As in `pysm120.attention`. torch.compile wraps these errors in its own.

    Notes
    -----
    autograd differentiates with respect to q, k, v, sinks and a mask that is not bool,
    by `pysm120.attention_backward`. alibi_slopes are constants: they get no gradient.
    Second derivatives are not supported.

    """
    given = dict(zip(ARRAYS, (q, k, v, sinks, alibi_slopes, mask, kv_lengths, diagonals), strict=True))
    for name, x in given.items():
        if not isinstance(x, Tensor) and (x is not None or name in _REQUIRED):
            message = f"{name} is a {type(x).__name__}, not a torch.Tensor"
            raise TypeError(message)
    if isinstance(kv_lengths, Tensor) and kv_lengths.dtype == torch.int64:  # what torch makes of a list of integers
        least, most = torch.iinfo(torch.int32).min, torch.iinfo(torch.int32).max
        given["kv_lengths"] = kv_lengths.clamp(least, most).to(torch.int32)
    if not torch.compiler.is_compiling():  # errors before PyTorch converts an argument
        rules = Rules(causal, causal_align, window, softcap, scale, precision)
        _check(given, rules, layout, out_dtype, device)
        flag(return_lse, "return_lse")
        flag(deterministic, "deterministic")
    if deterministic and mask is not None and mask.dtype != torch.bool:
        given["mask"] = mask.expand(*shape_of_scores(given, layout)).contiguous()
    left, right = window
    out, lse = torch.ops.pysm120.attention(
        *(given[name] for name in ARRAYS),
        causal,
        causal_align,
        left,
        right,
        softcap,
        scale,
        precision,
        layout,
        deterministic,
        device,
        out_dtype,
    )
    return (out, lse) if return_lse else out


def _check(given: Mapping[str, Any], rules: Rules, layout: Any, out_dtype: Any, device: Any) -> None:
    """Raise the errors of a call: those of `pysm120.attention`, and tensors on several devices."""
    ends(rules.window, "window")
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        message = f"out_dtype is {out_dtype!r}, not a torch.dtype or None"
        raise TypeError(message)
    if device is not None and not isinstance(device, str):
        message = f"device is a {type(device).__name__}, not the name of a device or None"
        raise TypeError(message)
    attend(rules, layout, _numpy_dtype(out_dtype)).forms(_forms(given))
    where = given["q"].device
    for name, x in given.items():
        if x is not None and x.device != where:
            message = f"{name} is on {x.device}, but q is on {where}"
            raise InvalidArgumentError(message)
    if where.type not in {"cpu", "cuda"}:
        message = f"q is on {where}, not on the CPU or a GPU of NVIDIA"
        raise InvalidArgumentError(message)


# ---- forms ---------------------------------------------------------------------------------


def _numpy_dtype(dtype: Any) -> Any:
    """Return a dtype of PyTorch as one of NumPy; None as it is."""
    return None if dtype is None else np.dtype(str(dtype).removeprefix("torch."))


def _forms(given: Mapping[str, Any]) -> dict[str, Form]:
    """Return the forms of the tensors that are given."""
    return {
        name: Form.like(tuple(x.shape), _numpy_dtype(x.dtype)) for name, x in given.items() if isinstance(x, Tensor)
    }


def _are_known(given: Mapping[str, Any]) -> bool:
    """Whether all sizes are numbers, not symbols of a graph for several shapes."""
    return all(type(n) is int for x in given.values() if isinstance(x, Tensor) for n in x.shape)


# ---- the operators -------------------------------------------------------------------------

_library = torch.library.Library("pysm120", "DEF")
_tags = (torch.Tag.pt2_compliant_tag,)
_library.define(f"attention({_TENSORS}, {_RULES}, ScalarType? out_dtype) -> (Tensor, Tensor)", tags=_tags)
_library.define(
    f"attention_backward(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, {_TENSORS}, {_RULES}, "
    "bool with_dsinks, bool with_dmask) -> Tensor[]",
    tags=_tags,
)


def _rules_of(options: Sequence[Any]) -> tuple[Rules, str, bool, str | None]:
    """Return the rules, the layout, `deterministic` and the device of an operator's arguments."""
    causal, causal_align, left, right, softcap, scale, precision, layout, deterministic, device = options
    return Rules(causal, causal_align, (left, right), softcap, scale, precision), layout, deterministic, device


def _attend_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Return out and lse without values."""
    given = dict(zip(ARRAYS, arguments, strict=False))
    rules, layout, _, device = _rules_of(arguments[len(ARRAYS) : -1])
    out_dtype = arguments[-1]
    if _are_known(given):
        _check(given, rules, layout, out_dtype, device)
    q, v = given["q"], given["v"]
    batch, heads, rows = (q.shape[layout.index(x)] for x in "BHS")
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=out_dtype or _default_dtype(q))
    return out, q.new_empty((batch, heads, rows), dtype=torch.float32)


def _default_dtype(q: Tensor) -> torch.dtype:
    """Return the dtype of a result for q: its own, and bfloat16 for float8."""
    return torch.bfloat16 if q.dtype in {torch.float8_e4m3fn, torch.float8_e5m2} else q.dtype


def _attend(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Return out and lse."""
    given = {name: x for name, x in zip(ARRAYS, arguments, strict=False) if x is not None}
    rules, layout, _, device = _rules_of(arguments[len(ARRAYS) : -1])
    out_dtype = _numpy_dtype(arguments[-1])
    if given["q"].device.type == "cpu":
        more: Any = {"layout": layout, "out_dtype": out_dtype, "return_lse": True, "device": device}
        made: tuple[Tensor, Tensor] = forward.attention(**_detached(given), **rules._asdict(), **more)
        return made
    _check(given, rules, layout, arguments[-1], device)
    out, lse = _launch(attend(rules, layout, out_dtype), given)
    return out, lse


def _gradients_fake(*arguments: Any) -> list[Tensor]:
    """Return the gradients without values."""
    given, rules, layout, deterministic, _ = _of_gradients(arguments)
    names = _wanted(arguments)
    if _are_known(given):
        differentiate(rules, layout, names, deterministic=deterministic).forms(_forms(given))
    dtypes = {"sinks": torch.float32, "mask": torch.float32}
    return [given[x].new_empty(given[x].shape, dtype=dtypes.get(x, given["q"].dtype)) for x in names]


def _gradients(*arguments: Any) -> list[Tensor]:
    """Return the gradients of q, k, v, and if they are wanted of sinks and the mask."""
    given, rules, layout, deterministic, device = _of_gradients(arguments)
    names = _wanted(arguments)
    if given["q"].device.type == "cpu":
        more: Any = {"layout": layout, "deterministic": deterministic, "device": device}
        more |= {f"return_d{x}": x in names for x in ("sinks", "mask")}
        return list(backward.attention_backward(**_detached(given), **rules._asdict(), **more))
    return _launch(differentiate(rules, layout, names, deterministic=deterministic), given)


_GRADIENT_ARRAYS = ("dout", "dlse", "out", "lse", *ARRAYS)


def _of_gradients(arguments: Sequence[Any]) -> tuple[dict[str, Tensor], Rules, str, bool, str | None]:
    """Return the tensors of a call of the backward operator by name, and what `_rules_of` returns."""
    given = {name: x for name, x in zip(_GRADIENT_ARRAYS, arguments, strict=False) if x is not None}
    return given, *_rules_of(arguments[len(_GRADIENT_ARRAYS) : -2])


def _wanted(arguments: Sequence[Any]) -> list[str]:
    """Return the names of the tensors whose gradients a call of the backward operator returns."""
    return ["q", "k", "v", *(x for x, wanted in zip(GRADIENTS[3:], arguments[-2:], strict=True) if wanted)]


# ---- where the tensors are -----------------------------------------------------------------


def _detached(given: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return tensors that DLPack takes."""
    return {name: x.detach() for name, x in given.items()}


def _launch(traced: Traced, given: Mapping[str, Tensor]) -> list[Tensor]:
    """Start an operation on tensors of a GPU, on its current stream, with a workspace of PyTorch; do not wait.

    PyTorch reuses memory in the order of the stream, so tensors may go before the work ends. A CUDA graph keeps the
    memory of its workspace, which is why it comes from PyTorch.
    """
    where = given["q"].device
    device = shared_device(f"cuda:{where.index}")
    stream = torch.cuda.current_stream(where).cuda_stream

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=where)

    def face(x: Tensor) -> Array:
        return device.from_dlpack(x, stream=stream)

    forms = traced.forms(_forms(given))
    made = {name: empty(form.shape, getattr(torch, form.dtype.name)) for name, form in forms.items()}
    names = traced.operation.names
    traced.operation(
        {x: face(_with_dense_rows(given[x].detach(), x)) if x in given else None for x in names},
        {x: face(made[x]) if x in made else None for x in traced.results},
        traced.options,
        device=device,
        stream=stream,
        workspace=lambda nbytes: face(empty((nbytes,), torch.uint8)),
    )
    return list(made.values())


def _with_dense_rows(x: Tensor, name: str) -> Tensor:
    """Return a tensor as kernels read it: contiguous, or for q, k, v, out, dout and the mask with contiguous rows."""
    if name in {"q", "k", "v", "out", "dout", "mask"} and x.dim() and (x.stride(-1) == 1 or x.shape[-1] == 1):
        return x
    return x.contiguous()


# ---- autograd ------------------------------------------------------------------------------


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keep what the gradient needs."""
    ctx.set_materialize_grads(False)
    ctx.options = inputs[len(ARRAYS) : -1]
    ctx.save_for_backward(*inputs[: len(ARRAYS)], *output)


def _differentiate(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
    """Return the gradients of the arguments; None means that there is none."""
    *saved, out, lse = ctx.saved_tensors
    given = dict(zip(ARRAYS, saved, strict=True))
    nothing = (None,) * (len(ctx.options) + 1)
    if dout is None and dlse is None:
        return (None,) * len(ARRAYS) + nothing
    q = given["q"]
    dout = torch.zeros_like(out, dtype=q.dtype) if dout is None else dout.to(q.dtype)
    needs = dict(zip(ARRAYS, ctx.needs_input_grad, strict=False))
    made = torch.ops.pysm120.attention_backward(
        dout, dlse, out, lse, *saved, *ctx.options, needs["sinks"], needs["mask"]
    )
    names = ["q", "k", "v", *(x for x in ("sinks", "mask") if needs[x])]
    found = {x: slope.to(given[x].dtype) for x, slope in zip(names, made, strict=True) if needs[x]}
    return (*(found.get(x) for x in ARRAYS), *nothing)


def _differentiate_gradients(ctx: Any, *slopes: Any) -> Any:
    """Raise: the backward operator has no gradient, which must not look like 0."""
    del ctx, slopes
    message = "pysm120.torch.attention has no second derivatives: they are not supported"
    raise UnsupportedError(message)


_library.impl("attention", _attend, "CompositeExplicitAutograd")
_library.impl("attention_backward", _gradients, "CompositeExplicitAutograd")
torch.library.register_fake("pysm120::attention", _attend_fake, lib=_library)
torch.library.register_fake("pysm120::attention_backward", _gradients_fake, lib=_library)
torch.library.register_autograd("pysm120::attention", _differentiate, setup_context=_keep, lib=_library)
torch.library.register_autograd("pysm120::attention_backward", _differentiate_gradients, lib=_library)
