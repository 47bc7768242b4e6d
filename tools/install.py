"""Install libsm120 below a prefix: headers, libraries, and files for pkg-config and CMake.

    ./build.sh install --prefix DIR

DIR/lib has the shared library, its link libsm120.so, and libsm120.a. The static library is one object, in which only
the functions of sm120.h are visible. $DESTDIR is put before DIR.
"""

import argparse
import os
import shutil
import sys
from pathlib import Path

import build


def write_static(library: Path, output: Path) -> None:
    """Join the objects of the library to one, hide its internal names, and write the archive."""
    joined = library.with_name("libsm120.o")
    cc = build.find_cc()
    build.run([*cc, "-r", "-nostdlib", *sorted((library.parent / "objects").rglob("*.o")), "-o", joined])
    build.run([os.environ.get("OBJCOPY", "objcopy"), "--localize-hidden", joined])
    output.unlink(missing_ok=True)
    build.run([os.environ.get("AR", "ar"), "rcs", output, joined])
    joined.unlink()


def install(prefix: Path) -> list[Path]:
    """Install below a prefix.

    Parameters
    ----------
    prefix : pathlib.Path
        An absolute path; folders are made.

    Returns
    -------
    list of pathlib.Path
        What was written.

    Raises
    ------
    BuildError
        The library does not build, or a program of binutils is missing or fails.
    """
    library = build.build(jobs=os.cpu_count() or 1)
    lib, include = prefix / "lib", prefix / "include"
    package = build.ROOT / "pysm120"
    for folder in (include, lib / "pkgconfig", lib / "cmake" / "sm120"):
        folder.mkdir(parents=True, exist_ok=True)
    written = [include / Path(name).name for name in build.HEADERS]
    for name, target in zip(build.HEADERS, written, strict=True):
        shutil.copyfile(build.ROOT / name, target)
    target = lib / library.name
    target.unlink(missing_ok=True)  # programs that have the old file open keep it
    shutil.copyfile(library, target)
    target.chmod(0o755)
    link = lib / "libsm120.so"
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)
    archive = lib / "libsm120.a"
    write_static(library, archive)
    described = lib / "pkgconfig" / "sm120.pc"
    described.write_text(build.pkgconfig("include", "lib"))
    written += [target, link, archive, described]
    for source in sorted((package / "cmake").glob("*.cmake")):
        written.append(lib / "cmake" / "sm120" / source.name)
        shutil.copyfile(source, written[-1])
    return written


def main() -> None:
    """Install, and list what was written."""
    parser = argparse.ArgumentParser(prog="./build.sh install", description="Install the C library.")
    parser.add_argument("--prefix", type=Path, default=Path("/usr/local"), help="default: /usr/local")
    prefix = parser.parse_args().prefix.absolute()
    if staged := os.environ.get("DESTDIR"):
        prefix = Path(staged).absolute() / prefix.relative_to("/")
    try:
        for path in install(prefix):
            print(path)
    except (build.BuildError, OSError) as error:
        sys.exit(f"install: {error}")


if __name__ == "__main__":
    main()
