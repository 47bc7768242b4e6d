#!/bin/sh
# Set everything up and build, run the demo, the tests or the linters; see usage.
set -eu

usage() {
    cat <<'END'
usage: ./build.sh [COMMAND [ARGUMENTS]]

  (none)        set up .venv and build build/libsm120.so
  demo [ARGS]   the same, then: python -m pysm120 demo ARGS
  test [ARGS]   the same, then the tests: python -m pytest -n auto ARGS
                by default a part of them that touches everything; --all runs every test,
                --rest what the last default run left out; see tests/README.md
  install [--prefix DIR]
                the same, then install headers, shared and static library, and files for
                pkg-config and CMake below DIR, by default /usr/local; DESTDIR is known
  lint          the same, then: ruff, mypy, clang-format and the C compiler's warnings

Needs python3 (3.10 or later) with pip, and gcc; everything else comes from PyPI by
pip's own configuration, nvcc too unless PATH or CUDA_HOME has it. PYTHON and CC name
another Python and another C compiler. A second call does again only what changed.
With a CC for another machine or system, as aarch64-linux-gnu-gcc, the library is built
in build/SYSTEM-MACHINE, and there are no other commands.
END
}

say() { printf '%s\n' "build.sh: $*" >&2; }
die() { say "$*"; exit 1; }

# The host: Python with pip, and a C compiler.
check_host() {
    host=${PYTHON:-python3}
    command -v "$host" >/dev/null 2>&1 ||
        die "$host was not found: install python3 (3.10 or later), or name it in PYTHON"
    "$host" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        die "$host is $("$host" -V 2>&1), but 3.10 or later is needed: name one in PYTHON"
    [ -x "$python" ] || "$host" -m pip --version >/dev/null 2>&1 ||
        die "$host has no pip: install python3-pip"
    # shellcheck disable=SC2086 # CC may hold options
    for compiler in ${CC:-cc gcc clang}; do
        command -v "$compiler" >/dev/null 2>&1 && return
        [ -z "${CC:-}" ] || break
    done
    [ -z "${CC:-}" ] || die "CC is $CC, which was not found: give a C compiler, or unset CC"
    die "no C compiler was found: install gcc, or name one in CC"
}

# .venv with a pip of its own; Debian's python3 may lack ensurepip.
make_environment() {
    say "making .venv"
    rm -rf .venv
    if "$host" -c 'import ensurepip' 2>/dev/null; then
        "$host" -m venv .venv
    else
        "$host" -m venv --without-pip .venv
        site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        "$host" -m pip install --quiet --target "$site" pip
    fi
}

# Run a step that must be done again when its stamp differs from the given text.
stamped() {
    stamp=.venv/stamps/$1
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$2" ] && return
    mkdir -p .venv/stamps
    rm -f "$stamp"
    "$3"
    printf '%s\n' "$2" >"$stamp"
}

# pip, whose output counts only when it fails.
install() {
    "$python" -m pip install --disable-pip-version-check "$@" >.venv/pip.log 2>&1 && return
    cat .venv/pip.log >&2
    die "pip could not install $*"
}

install_tools() {
    say "installing the build tools"
    install 'setuptools==84.2.1'
    needed=$("$python" -c '
import sys
sys.path.insert(0, "tools")
import backend
print(*backend.toolchain())')
    # shellcheck disable=SC2086 # a list of words
    [ -z "$needed" ] || install $needed
}

install_package() {
    say "installing the package and what it needs"
    install --no-build-isolation -e '.[cli,test]'
}

install_linters() {
    say "installing the linters"
    install --no-build-isolation -e '.[cli,test,lint]'
}

build() {
    check_host
    [ -x "$python" ] && "$python" -m pip --version >/dev/null 2>&1 || make_environment
    where=$(command -v nvcc || echo none)
    stamped tools "$(cat tools/backend.py) $where ${CUDA_HOME:-}" install_tools
    [ -e build/libsm120.so ] || say "building the library"
    library=$("$python" tools/build.py)
    printf '%s\n' "$library"
    if [ "${library%/*}" != "$PWD/build" ]; then
        [ "$command" = build ] || die "$CC compiles for another system: there is no $command for it"
        exit
    fi
    stamped package "$(cat pyproject.toml)" install_package
}

lint() {
    stamped lint "$(cat pyproject.toml)" install_linters
    status=0
    check "$python" -m ruff check .
    check "$python" -m ruff format --check .
    check "$python" -m mypy
    # shellcheck disable=SC2046 # no file of ours has a space in its name
    check .venv/bin/clang-format --dry-run -Werror $(c_files '*.[ch]') $(c_files '*.[ch]pp')
    check "$python" tools/bindings.py --check
    check "$python" tests/support/operations.py build/tests # operations.h
    windows=x86_64-w64-mingw32-gcc-posix
    command -v "$windows" >/dev/null || { windows=; say "*_win32.c are not checked: there is no MinGW"; }
    for file in $(c_files '*.c'); do
        case $file in
        *_win32.c)
            [ -z "$windows" ] || check "$windows" -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror \
                -D_WIN32_WINNT=0x0602 -fsyntax-only -Isrc "$file"
            continue
            ;;
        esac
        # shellcheck disable=SC2086 # CC may hold options
        check ${CC:-cc} -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Werror \
            -ffp-contract=off -fsyntax-only -DVM_ISA=base -Isrc -Ibuild -Ibuild/tests "$file"
    done
    [ "$status" -eq 0 ] && say "lint: nothing to complain about"
    return "$status"
}

# The C files of the project that match a pattern.
c_files() {
    for folder in src bindings tests examples; do
        [ ! -d "$folder" ] || find "$folder" -name "$1" | sort
    done
}

# Run a linter; go on after a complaint.
check() { "$@" || { status=1; say "complaint of: $*"; }; }

cd "$(dirname "$0")"
python=.venv/bin/python
command=${1:-build}
[ $# -eq 0 ] || shift
case $command in
build) build ;;
demo) build >/dev/null; exec "$python" -m pysm120 demo "$@" ;;
test)
    build >/dev/null
    export OPENBLAS_NUM_THREADS="${OPENBLAS_NUM_THREADS:-1}" # its other threads would spin on the cores of other workers
    exec "$python" -m pytest -n auto --dist worksteal "$@"
    ;;
install) build >/dev/null; exec "$python" tools/install.py "$@" ;;
lint) build >/dev/null; lint ;;
-h | --help | help) usage ;;
*) usage >&2; die "$command is no command" ;;
esac
