"""The tests find mistakes that mutants.py plants in templates; plant_mutants.py plants all of them."""

import numpy as np
import plant_mutants
import pytest
from build_tree import built
from mutants import MUTANTS, OPERATIONS, Mutant

from pysm120.runtime.module import builtins

pytestmark = pytest.mark.virtual

FEW, MANY = 3, 24  # in the default run, and in the rest: what a few minutes are enough for

# A comment, so the kernels are those of the library.
HARMLESS = Mutant(
    "merge_states", "nothing", "ptx/merge_states/merge_states.ptx", "// Its load comes first", "// The load comes first"
)


def chosen(pytestconfig: pytest.Config, n: int) -> Mutant:
    """Return the n-th mutant in the order of the run's seed."""
    order = np.random.default_rng(pytestconfig.option.seed).permutation(len(MUTANTS))
    return MUTANTS[int(order[n])]


def check(mutant: Mutant) -> None:
    """Plant a mistake; a test must find it."""
    built()
    found = plant_mutants.plant(mutant)
    assert found.test, str(found)


@pytest.mark.parametrize("n", range(FEW))
def test_a_few(pytestconfig: pytest.Config, n: int) -> None:
    """Some mistakes in each run."""
    check(chosen(pytestconfig, n))


@pytest.mark.slow
@pytest.mark.parametrize("n", range(FEW, FEW + MANY))
def test_many(pytestconfig: pytest.Config, n: int) -> None:
    """More of them."""
    check(chosen(pytestconfig, n))


@pytest.mark.slow
def test_what_changes_nothing_survives() -> None:
    """The tests pass with a library that plant_mutants.py has linked."""
    built()
    found = plant_mutants.plant(HARMLESS)
    assert found.problem.startswith("SURVIVED"), str(found)


def test_a_mutant_that_is_refused_is_not_found() -> None:
    """PTX that the virtual device does not take says nothing about the tests."""
    built()
    right = "mov.u32                 state, first;"
    found = plant_mutants.plant(HARMLESS._replace(right=right, wrong=right.replace("first", "nobody")))
    assert "nobody" in found.problem, str(found)
    assert found.problem.startswith("REFUSED")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.operation}: {mutant.mistake}")
def test_the_text_is_there_once(mutant: Mutant) -> None:
    """A template that changes takes its mutants along."""
    text = (plant_mutants.ROOT / mutant.file).read_text()
    assert plant_mutants.edited(text, mutant) != text


def test_names() -> None:
    """Each line of the report says which mutant it is, and every test file is there."""
    assert len({(mutant.operation, mutant.mistake) for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.operation for mutant in MUTANTS} == {*OPERATIONS}
    for mutant in MUTANTS:
        for test in mutant.tests:
            assert (plant_mutants.ROOT / "tests" / "ops" / test.partition("::")[0]).exists(), test


def test_every_kernel_of_these_operations_has_mutants() -> None:
    """The templates of gradients, caches and merges, and two others."""
    planted = {template for operation in OPERATIONS.values() for template in operation.templates}
    folders = ("ptx/attention_backward/", "ptx/attention_kv_cache/", "ptx/kv_cache/", "ptx/merge_states/")
    others = {"ptx/attention/bf16_f16_walk.ptx", "ptx/quantize/nvfp4.ptx"}
    sources = {builtin.source for builtin in builtins()}
    assert planted == {source for source in sources if source.startswith(folders)} | others
