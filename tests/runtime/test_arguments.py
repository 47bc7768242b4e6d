"""Arguments of the library's kernels: structs that the build makes of the templates, whose members have names."""

import subprocess
from pathlib import Path

import pytest
from inside import CC, FLAGS, ROOT

import pysm120
from pysm120.runtime.module import builtin_kernel

SOURCE = ROOT / "tests" / "runtime" / "arguments.c"
INCLUDE = [f"-I{ROOT / folder}" for folder in ("src", "build")]


def test_structs_and_kernels(tmp_path: Path) -> None:
    objects = sorted((ROOT / "build" / "objects").rglob("*.o"))
    program = tmp_path / "arguments"
    subprocess.run([*CC, *FLAGS, *INCLUDE, SOURCE, *objects, "-pthread", "-lm", "-ldl", "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("-DVALUE=.from = 1, .too = 2", "too"),  # no such parameter
        ("-DPOINTER=&wanted", "_Generic"),  # no struct of parameters
        ("-DPOINTER=&more.sequence", "_Generic"),  # a part of one
    ],
)
def test_what_does_not_compile(option: str, message: str) -> None:
    done = subprocess.run(
        [*CC, *FLAGS, *INCLUDE, "-fsyntax-only", option, SOURCE], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert message in done.stderr


def test_values_by_name() -> None:
    with pysm120.Device("virtual") as device:
        kernel = builtin_kernel(device, "copy_rows_b16")
        names = [parameter.name.removeprefix("param_") for parameter in kernel.parameters]
        values = {name: index for index, name in enumerate(names)}
        assert kernel.by_name({"other": -1, **dict(reversed(values.items()))}) == list(range(len(names)))
        del values["to"]
        with pytest.raises(pysm120.InvalidArgumentError, match=r"no value was given for parameter 1 param_to"):
            kernel.by_name(values)
