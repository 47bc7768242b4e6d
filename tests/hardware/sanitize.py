"""Run kernel tests on a GPU under compute-sanitizer: python tests/hardware/sanitize.py [--tool TOOL ...] [--jobs 8].

Each file of tests has processes of its own, one for each tool. A table shows how many tests passed and what the tool
reported. The exit status is 1 if a tool reported anything, a test failed, or a process took longer than --patience.
"""

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# File, and the tests of it: pytest's -k. Every kernel of these operations runs about a hundred times as long as usual.
TESTS = {
    "test_attention_kv_cache.py": "test_pages or test_splits or test_edges_of_tiles",
    "test_attention_kv_cache_narrow.py": "test_against_float64",
    "test_kv_cache_append.py": "",
    "test_kv_cache_gather.py": "",
    "test_merge_states.py": "test_values",
    "test_copy_batch.py": "test_all_alignments or test_many_pieces",
    "test_attention_backward_shapes.py": "test_odd_strides or test_random_problems",
    "test_attention_backward_order.py": "test_matches_both_references",
    "test_attention_backward_mxfp8.py": "test_scales_follow or test_random_problems",
    "test_attention_nvfp4.py": "test_random_problems",
    "test_attention_fp8.py": "test_random_problems",
    "test_quantize_nvfp4.py": "test_special_values or test_columns_of_any_address",
}
FOUND, FAILED = 77, 1
_PASSED = re.compile(r"(\d+) passed")
_REPORTS = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")


class Run(NamedTuple):
    """What came of the tests of a file under a tool."""

    tool: str
    file: str
    passed: int
    reports: int
    note: str  # "" if all is well


def run(tool: str, file: str, patience: float) -> Run:
    """Run the tests of a file under a tool."""
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND), sys.executable, "-m", "pytest"]
    command += ["-p", "pytest_pysm120", "-p", "no:benchmark", "-p", "no:cacheprovider", "-p", "no:xdist", "-q", "-x"]
    command += ["--device", "cuda", f"tests/ops/{file}", *(["-k", TESTS[file]] if TESTS[file] else [])]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=patience, check=False,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Run(tool, file, 0, 0, f"not finished after {patience:.0f} s")
    text = done.stdout + done.stderr
    passed, reports = _PASSED.search(text), sum(int(a or b) for a, b in _REPORTS.findall(text))
    last = next((line for line in reversed(text.splitlines()) if line.strip()), "")
    is_well = done.returncode == 0 and passed is not None and _REPORTS.search(text) is not None
    return Run(
        tool, file, int(passed[1]) if passed else 0, reports, "" if is_well else f"status {done.returncode}: {last}"
    )


def main() -> int:
    """Run all, and show a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", choices=TOOLS, nargs="+", default=TOOLS)
    parser.add_argument("--only", default="", help="only the files whose name has this")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--patience", type=float, default=600, help="seconds that a process may take")
    arguments = parser.parse_args()
    files = [file for file in TESTS if arguments.only in file]
    wanted = [(tool, file) for tool in arguments.tool for file in files]
    print("| tool | tests | passed | reported | |\n|---|---|---|---|---|")
    wrong = 0
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for one in pool.map(lambda pair: run(pair[0], pair[1], arguments.patience), wanted):
            wrong += bool(one.note or one.reports)
            print(f"| {one.tool} | {one.file} | {one.passed} | {one.reports} | {one.note} |", flush=True)
    return FAILED if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
