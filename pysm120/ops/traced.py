"""Attention inside the graphs of other libraries: the forms of results and gradients before any array has values."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pysm120.ops import attention_backward as backward
from pysm120.ops.attention_call import LAYOUTS, Options
from pysm120.ops.options import one_of
from pysm120.ops.plan import NEW, Form, result

GRADIENTS = ("q", "k", "v", "sinks", "mask")  # arrays that have a gradient, in the order of the results


class Rules(NamedTuple):
    """What attention and its gradient have in common beside arrays."""

    causal: Any
    causal_align: Any
    window: Any
    softcap: Any
    scale: Any
    precision: Any


def results_of(rules: Rules, layout: Any, out_dtype: Any, given: Mapping[str, Any]) -> list[Form]:
    """Return the forms of out and lse, after the checks of `pysm120.attention`; `given` are forms by name."""
    results = {"out": result(None, out_dtype), "lse": NEW, "amax": None}
    operation = LAYOUTS[one_of(layout, "layout", tuple(LAYOUTS))]
    _, out, lse = operation.forms(given, results, Options(**rules._asdict()))
    return [out, lse]


def gradients_of(
    rules: Rules, layout: str, given: Mapping[str, Any], wanted: Sequence[str], *, deterministic: bool
) -> dict[str, Form]:
    """Return the forms of the gradients of q, k and v, and of the others that are wanted, by the name of the array.

    `given` are forms by name, those of out, lse and dout too.
    """
    results: dict[str, Any] = {f"d{x}": NEW if x in wanted else None for x in GRADIENTS}
    options = backward.options(rules._asdict(), deterministic=deterministic)
    made = backward.operation(layout).forms(given, results, options)
    return {x: form for x, form in zip(GRADIENTS, made, strict=True) if form is not None}


def differentiated(given: Mapping[str, Any]) -> list[str]:
    """Return the arrays that have a gradient, in the order of results."""
    return [x for x in GRADIENTS if x in given and given[x].dtype != np.bool_]
