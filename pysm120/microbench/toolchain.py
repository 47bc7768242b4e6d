"""The programs that turn PTX into machine code and machine code into text."""

import dataclasses
import re
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from pysm120.machine_code.tools import WHEELS, locate
from pysm120.runtime.errors import InvalidProgramError

find = lru_cache(maxsize=8)(locate)


def missing() -> str:
    """Return which programs are missing and where they come from, or ""."""
    lost = [program for program in WHEELS if find(program) is None]
    if not lost:
        return ""
    wheels = " ".join(WHEELS[program] for program in lost)
    return f"{' and '.join(lost)} {'are' if lost[1:] else 'is'} neither in PATH nor in CUDA_HOME: pip install {wheels}"


@dataclasses.dataclass(frozen=True)
class Assembled:
    """Machine code, its PTX, and its disassembly."""

    ptx: str
    cubin: bytes
    listing: str

    def save(self, path: Path) -> None:
        """Write path.ptx, path.cubin and path.sass."""
        path.with_name(f"{path.name}.ptx").write_text(self.ptx, encoding="utf-8")
        path.with_name(f"{path.name}.cubin").write_bytes(self.cubin)
        path.with_name(f"{path.name}.sass").write_text(self.listing, encoding="utf-8")


def assemble(ptx: str, target: str) -> Assembled:
    """Assemble PTX and disassemble the result; InvalidProgramError if ptxas rejects it."""
    ptxas, nvdisasm = find("ptxas"), find("nvdisasm")
    if ptxas is None or nvdisasm is None:
        raise InvalidProgramError(missing())
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "bench.ptx", Path(folder) / "bench.cubin"
        source.write_text(ptx, encoding="utf-8")
        done = _run([ptxas, f"-arch={target}", "-O3", source, "-o", cubin])
        if done.returncode != 0:
            said = (done.stderr + done.stdout).strip() or f"status {done.returncode}"
            reason = re.search(r"(?:error|fatal)\s*:\s*(.*)", said)
            raise InvalidProgramError(f"ptxas refuses it: {reason[1] if reason else said.splitlines()[0]}")
        listed = _run([nvdisasm, "-c", cubin])
        if listed.returncode != 0:
            raise InvalidProgramError(f"nvdisasm does not read what ptxas wrote: {listed.stderr.strip()}")
        return Assembled(ptx, cubin.read_bytes(), listed.stdout)


def _run(command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    """Run a program."""
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)  # noqa: S603
