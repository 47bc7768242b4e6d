"""torch.compile calls functions instead of tracing them. Nothing is imported: who compiles has imported torch."""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


def untraced(function: _Function) -> _Function:
    """Let torch.compile call a public function, which interrupts the graph, instead of tracing it.

    Dynamo fails on dtypes and protocols of arrays. It also traces functions that uncompiled code calls between two
    graphs, so once the process has used torch.compile every call goes through `torch.compiler.disable`.
    """
    kept: list[Callable[..., Any]] = []  # the disabled function; Dynamo cannot trace that it is stored

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*arguments, **options)
        compiler = sys.modules["torch"].compiler
        if compiler.is_dynamo_compiling():
            return compiler.disable(function)(*arguments, **options)
        if not kept:
            kept.append(compiler.disable(function))
        return kept[0](*arguments, **options)

    return cast("_Function", call)
