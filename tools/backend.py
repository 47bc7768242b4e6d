"""PEP 517 backend: setuptools, plus the C library in the package.

A wheel holds the library and its headers beside the Python files; it is tagged
py3-none-<platform>, since cffi opens the library at run time. The platform is the one
for which the C compiler compiles, and of glibc the oldest version that has the
library's symbols. An editable install builds the library where it stays: in build.
"""

import importlib.util
import os
import shutil
import struct
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent.parent
# nvcc and the packages that it needs to assemble PTX, for machines without nvcc.
TOOLCHAIN = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.88",
    "nvidia-nvvm==13.0.88",
]

GNU_VERNEED = 0x6FFFFFFE  # the type of the ELF section with needed versions

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]


def build_tool() -> Any:
    """Load tools/build.py."""
    spec = importlib.util.spec_from_file_location("sm120_build", ROOT / "tools" / "build.py")
    if spec is None or spec.loader is None:
        message = "tools/build.py is missing: this source tree is not complete"
        raise FileNotFoundError(message)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def toolchain() -> list[str]:
    """Return the packages that bring nvcc; empty if the build finds an nvcc that is new enough."""
    tool = build_tool()
    try:
        tool.find_nvcc()
    except tool.BuildError:
        return TOOLCHAIN
    return []


@cache
def build_library() -> Path:
    """Build the library with tools/build.py; return its path."""
    return Path(build_tool().build(jobs=os.cpu_count() or 1))


def target_of_build() -> Any:
    """Return the platform for which the C compiler compiles."""
    tool = build_tool()
    return tool.target_platform(tool.find_cc())


def needed_versions(library: Path) -> set[str]:
    """Return the versions of symbols that an ELF library needs, as GLIBC_2.17."""
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\2\1":
        message = f"{library} is not a little-endian ELF file of 64 bits"
        raise ValueError(message)
    (start,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<2H", data, 58)
    # type, offset, link and count of each section
    sections = [struct.unpack_from("<4xI16xQ8xII", data, start + size * n) for n in range(count)]
    found = set()
    for kind, at, link, entries in sections:
        if kind != GNU_VERNEED:
            continue
        names = sections[link][1]
        for _ in range(entries):
            uses, first, following = struct.unpack_from("<2xH4x2I", data, at)
            use = at + first
            for _ in range(uses):
                name, step = struct.unpack_from("<8x2I", data, use)
                end = data.index(b"\0", names + name)
                found.add(data[names + name : end].decode())
                use += step
            at += following  # noqa: PLW2901 - the list is linked
    return found


def manylinux(versions: Iterable[str], machine: str) -> str:
    """Return the tag of PEP 600 for a library that needs these versions of symbols.

    No installer knows a manylinux older than glibc 2.17 for aarch64, and
    manylinux_2_17 is the oldest for which tools still make wheels.
    """
    newest = (2, 17)
    for name in versions:
        source, _, version = name.partition("_")
        if source == "GLIBC":
            major, minor = version.split(".")[:2]
            newest = max(newest, (int(major), int(minor)))
    return f"manylinux_{newest[0]}_{newest[1]}_{machine}"


def platform_tag(target: Any, library: Path) -> str:
    """Return the tag of a wheel with a library for a target of tools/build.py."""
    if target.system == "windows":
        return {"x86_64": "win_amd64", "aarch64": "win_arm64"}[target.machine]
    if target.libc == "glibc":
        return manylinux(needed_versions(library), target.machine)
    if target.libc == "musl":  # its symbols have no versions
        return f"musllinux_1_2_{target.machine}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


class BuildPackage(build_py):
    """Puts the library and its header beside the Python files."""

    def run(self) -> None:
        """Build the library; copy it unless the install is editable."""
        library = build_library()
        # Remove the files of an earlier build.
        package = Path(self.build_lib) / "pysm120"
        if not self.editable_mode:
            shutil.rmtree(package, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            shutil.copyfile(library, package / library.name)
            development = library.with_name(target_of_build().development)
            if library.suffix in {".dll", ".dylib"}:
                shutil.copyfile(development, package / development.name)
            else:
                # Wheels cannot hold a link: a linker script does for -lsm120.
                (package / development.name).write_text(f"INPUT({library.name})\n")
            handlers = library.with_name(build_tool().HANDLERS)
            if handlers.exists():  # not of every target
                shutil.copyfile(handlers, package / handlers.name)
            for header in build_tool().HEADERS:
                shutil.copyfile(ROOT / header, package / Path(header).name)
            # pysm120.microbench expands its kernels when it knows the chip.
            for source in (Path("expand.py"), Path("parts/head.ptx"), *sorted((ROOT / "ptx" / "bench").glob("*.ptx"))):
                target = package / "ptx" / (ROOT / "ptx" / source).relative_to(ROOT / "ptx")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / "ptx" / source, target)


class PlatformWheel(bdist_wheel):
    """One wheel for every Python 3 of a platform."""

    def finalize_options(self) -> None:
        """Declare that the package holds machine code, so that it is installed as a platform package."""
        distribution: Any = self.distribution
        distribution.has_ext_modules = lambda: True
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        """Return py3, none and the platform of the library, unless one was given."""
        if self.plat_name_supplied and self.plat_name:
            return "py3", "none", self.plat_name.replace("-", "_").replace(".", "_")
        return "py3", "none", platform_tag(target_of_build(), build_library())


Settings = dict[str, str | list[str] | None]


def get_requires_for_build_wheel(config_settings: Settings | None = None) -> list[str]:
    """Return the packages that are needed to build a wheel."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *toolchain()]


def get_requires_for_build_editable(
    config_settings: Settings | None = None,
) -> list[str]:
    """Return the packages that an editable install needs."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *toolchain()]


def build_wheel(
    wheel_directory: str,
    config_settings: Settings | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel."""
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str,
    config_settings: Settings | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel of an editable install."""
    return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))
