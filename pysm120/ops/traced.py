"""Attention inside the graphs of other libraries: the forms of results and gradients before any array has values."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pysm120.ops import attention_backward as backward
from pysm120.ops.attention_call import LAYOUTS, Options, Rules
from pysm120.ops.call import Operation
from pysm120.ops.options import one_of
from pysm120.ops.plan import NEW, Form, Plan, result

ARRAYS = ("q", "k", "v", "sinks", "alibi_slopes", "mask", "kv_lengths", "diagonals")  # of a call
GRADIENTS = ("q", "k", "v", "sinks", "mask")  # arrays that have a gradient, in the order of the results


class Traced(NamedTuple):
    """An operation on arrays without values."""

    operation: Operation
    results: dict[str, Any]
    options: Any

    def forms(self, given: Mapping[str, Form]) -> dict[str, Form]:
        """Return the forms of the results by name, after the checks of a call; `given` are forms by name."""
        made = self.operation.forms(given, self.results, self.options)
        return {name: form for name, form in zip(self.results, made, strict=True) if form is not None}

    def plan(self, given: Mapping[str, Form]) -> tuple[Plan, list[tuple[str, int]]]:
        """Return the plan of a call, and where its C struct has the addresses: names of arrays, and words.

        Inputs come first, then results, each in its order.
        """
        plan = self.operation.plan(given, self.results, self.options)
        inputs, results = self.operation.names, list(self.results)
        places = [(inputs[index], word) for index, word in plan.reads]
        return plan, places + [(results[index], word) for index, word in plan.writes]


def attend(rules: Rules, layout: Any, out_dtype: Any) -> Traced:
    """Return the operation whose results are out and lse."""
    operation = LAYOUTS[one_of(layout, "layout", tuple(LAYOUTS))]
    return Traced(operation, {"amax": None, "out": result(None, out_dtype), "lse": NEW}, Options(rules))


def differentiate(rules: Rules, layout: str, wanted: Sequence[str], *, deterministic: bool) -> Traced:
    """Return the operation whose results are the gradients of q, k, v and of the others that are wanted."""
    results: dict[str, Any] = {f"d{x}": NEW if x in wanted else None for x in GRADIENTS}
    return Traced(backward.operation(layout), results, backward.options(rules, deterministic=deterministic))


def shape_of_scores(given: Mapping[str, Any], layout: str) -> tuple[Any, ...]:
    """Return the shape of a mask that does not broadcast: batch, heads, rows and keys."""
    return (*(given["q"].shape[layout.index(x)] for x in "BHS"), given["k"].shape[layout.index("S")])


def differentiated(given: Mapping[str, Any]) -> list[str]:
    """Return the arrays that have a gradient, in the order of results."""
    return [x for x in GRADIENTS if x in given and given[x].dtype != np.bool_]
