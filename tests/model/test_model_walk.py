"""CTAs that take the Q tiles of others (clusterlaunchcontrol): their path from tile to tile, and the time it takes."""

import pytest

from pysm120.machine_code import pipes
from pysm120.model import chips, kernel_model, predict, splits, validation
from pysm120.model.problem import Problem
from pysm120.runtime.module import builtin_image, builtins

pytestmark = pytest.mark.virtual

GOES_ON, STAYS = "attention_mxfp8_192x64_d128", "attention_mxfp8_192x64_d128_any"
CHIP = chips.load("rtx5090")


def model_of(entry: str) -> kernel_model.KernelModel:
    """Return the model of a kernel of the library for SM120."""
    index, builtin = next((i, b) for i, b in enumerate(builtins()) if b.entry == entry)
    text = builtin_image(index, "sm_120f", "ptx").decode()
    record = validation.recorder(text, "sm_120f", Problem(1, 512, 1, builtin.head_dim), builtin)
    return validation.builtin_model(CHIP, entry, record=record)


@pytest.fixture(scope="module")
def model() -> kernel_model.KernelModel:
    """Return the model of a kernel whose CTAs go on."""
    return model_of(GOES_ON)


def test_the_path_between_tiles(model: kernel_model.KernelModel) -> None:
    """It writes O and loads Q, and neither initialises barriers nor ends."""
    paths = model.paths
    code = [paths.sources[step.place] for step in paths.between]
    kinds = {pipes.class_of(one.opcode) for one in code}
    assert {"store_global", "load_global", "try_wait"} <= kinds
    assert not any(one.base in {"EXIT", "BAR"} or "EXCH" in one.opcode for one in code)
    assert max(len(paths.before), len(paths.behind)) < len(code) < len(paths.before) + len(paths.behind)
    assert not model_of(STAYS).paths.between


def test_every_instruction_of_every_tile_is_issued(model: kernel_model.KernelModel) -> None:
    """Of tiles with different rounds, and of each warp's rounds in which it loads."""
    paths, tiles = model.paths, [5, 8, 3, 6]
    wanted = first = 0
    for warp in range(model.warps):
        wanted += len(paths.load_before if warp in paths.starters else paths.before) + 3 * len(paths.between)
        wanted += len(paths.behind if paths.load_behind is None or warp not in paths.loaders else paths.load_behind)
    for count in tiles:
        for warp in range(model.warps):
            wanted += sum(map(len, paths.of_warp(warp, count, first)))
        first += count
    assert model.run(tiles, 1).issued == wanted


def test_tiles_follow_each_other_without_a_gap(model: kernel_model.KernelModel) -> None:
    """Four tiles of one CTA take less than those of four, and more than their rounds alone."""
    four, rounds = model.run([8] * 4, 1).clocks, model.run([32], 1).clocks
    assert rounds < four < 4 * model.run([8], 1).clocks

    def clocks(tiles: int) -> float:
        return predict.predict(model, [8] * tiles * int(CHIP["sms"]), tensor_bytes=0).clocks

    one, two, four_tiles = clocks(1), clocks(2), clocks(4)
    assert four_tiles - two == pytest.approx(2 * (two - one), rel=1e-6)
    assert two - one < one - float(CHIP["launch_clocks"])


@pytest.mark.parametrize(
    ("problem", "wanted"),
    [
        (Problem(1, 384, 2, 128), []),  # two whole tiles of 192 rows
        (Problem(1, 400, 2, 128), [12, 12, 12, 12, 1, 1]),  # and one of 16 rows, of a head
        (Problem(1, 400, 2, 128, causal=True), [1, 1, 12, 12, 12, 12]),
        (Problem(1, 65, 2, 128), [5, 5]),
    ],
)
def test_warps_that_have_rows(problem: Problem, wanted: list[int]) -> None:
    """Where every row sees all keys, the tiles with fewer rows come last; else the longest of some heads come first."""
    kernel = next(b for b in builtins() if b.entry == GOES_ON)
    tiles = len(problem.rounds(kernel))
    assert splits.Splits(tiles, 1).warps(kernel, problem) == wanted
    assert splits.Splits(tiles - 1, 3).warps(kernel, problem) == wanted + wanted[-1:] * 2


def test_tiles_with_fewer_rows_take_less_time(model: kernel_model.KernelModel) -> None:
    """The fewer warps have rows, the less; a tile of a warp takes more than its share."""
    rounds, kernel = [8] * 4 * int(CHIP["sms"]), predict.shared(model)

    def clocks(warps: int | None) -> float:
        return predict.predict(kernel, rounds, warps=[warps] * len(rounds) if warps else []).clocks

    of_all = clocks(None)
    assert clocks(model.warps) == of_all
    assert of_all / 2 < clocks(4) < clocks(8) < 0.9 * of_all
