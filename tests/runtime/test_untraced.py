"""Functions that torch.compile calls instead of tracing them, here with a stub of torch."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

import pysm120
from pysm120.compat import cudnn, flash_attn_3
from pysm120.runtime.untraced import untraced


def add(x: int, *, y: int = 1) -> int:
    """Return a sum."""
    return x + y


def test_signature_and_errors_are_those_of_the_function() -> None:
    function: Any = untraced(add)
    assert (function.__name__, function.__doc__) == ("add", "Return a sum.")
    with pytest.raises(TypeError, match=r"^add\(\) got an unexpected keyword argument 'z'$"):
        function(1, z=2)


@pytest.mark.parametrize("is_compiling", [False, True])
def test_once_torch_compile_is_used_calls_are_not_traced(
    monkeypatch: pytest.MonkeyPatch, *, is_compiling: bool
) -> None:
    """Neither the call itself, nor what it calls if it is made between two graphs."""
    disabled: list[str] = []

    def disable(function: Callable[..., Any]) -> Callable[..., Any]:
        def outside(*arguments: Any, **options: Any) -> Any:
            disabled.append(function.__name__)
            return function(*arguments, **options)

        return outside

    function = untraced(add)
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    assert function(1, y=2) == 3
    assert not disabled
    compiler = types.SimpleNamespace(disable=disable, is_dynamo_compiling=lambda: is_compiling)
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(compiler=compiler))
    monkeypatch.setitem(sys.modules, "torch._dynamo", types.SimpleNamespace())
    assert [function(1, y=2), function(3)] == [3, 4]
    assert disabled == ["add", "add"]


def test_every_public_function_of_arrays_is_untraced() -> None:
    """All but `recommend`, which takes shapes; and what makes objects of this package from arrays."""
    api: Any = pysm120
    places = [*((api, name) for name in api.__all__), (flash_attn_3, "flash_attn_func"), (cudnn, "sdpa_fp8")]
    places += [(flash_attn_3, "flash_attn_varlen_func"), (pysm120.CopyList, "__init__")]
    places += [(pysm120.Device, "from_dlpack"), (pysm120.QuantizedMatrix.from_gguf, "__func__")]
    code = untraced(add).__code__
    functions = {name: x for place, name in places if isinstance(x := getattr(place, name), types.FunctionType)}
    assert [name for name, x in functions.items() if x.__code__ is not code] == ["recommend"]
