"""A problem of attention, and what it makes of a kernel's launch: CTAs, rounds of each, operations."""

import dataclasses
import re

from pysm120.runtime.errors import InvalidArgumentError

_FORM = re.compile(r"(\d+),(\d+),(\d+),(\d+)(,causal)?$")
_TILE = re.compile(r"_(\d+)x(\d+)_d(\d+)")

# ptx/attention/bf16_f16.ptx: GROUP heads together, but not more than so many rows of keys.
_IN_GROUPS = re.compile(r"attention_(bf16|f16)_\d+x\d+_d\d+(_any)?_[rw]\d+$")
_GROUP, _GROUP_ROWS = 32, 131072


@dataclasses.dataclass(frozen=True)
class Problem:
    """Attention of equal lengths of queries and keys."""

    batch: int
    rows: int
    heads: int
    head_dim: int
    causal: bool = False

    @property
    def flops(self) -> float:
        """Multiplications and additions of both products; a causal mask leaves half of them."""
        pairs = self.rows * (self.rows + 1) / 2 if self.causal else self.rows**2
        return 4.0 * self.batch * self.heads * pairs * self.head_dim

    def tensor_bytes(self, entry: str) -> float:
        """Return the bytes of q, k, v and o: in MXFP8 an element has a byte and a 32nd; o is in 16 bits."""
        scaled = 1 + 1 / 32
        of_v = scaled if re.match(r"attention_mxfp8_\d", entry) else 2
        element = 2 * scaled + of_v + 2 if "mxfp8" in entry else 8
        return self.batch * self.heads * self.rows * self.head_dim * element

    def rounds(self, entry: str, heads_together: int | None = None) -> list[int]:
        """Return the tiles of keys of every CTA of an entry, in the order that the CTAs are started in.

        ``heads_together``: so many heads take turns, the longest causal tiles of all first; default: as the library's
        kernels do today.
        """
        q_rows, kv_rows = tile_of(entry)
        q_tiles, kv_tiles = -(-self.rows // q_rows), -(-self.rows // kv_rows)
        one = [
            min(kv_tiles, -(-min(self.rows, (tile + 1) * q_rows) // kv_rows)) if self.causal else kv_tiles
            for tile in reversed(range(q_tiles))
        ]
        if heads_together is None:
            in_groups = self.causal and _IN_GROUPS.search(entry) is not None
            heads_together = max(1, min(_GROUP, _GROUP_ROWS // self.rows)) if in_groups else 1
        heads = self.batch * self.heads
        groups = [min(heads_together, heads - first) for first in range(0, heads, heads_together)]
        return [rounds for group in groups for rounds in one for _ in range(group)]

    def __str__(self) -> str:
        causal = ",causal" if self.causal else ""
        return f"{self.batch},{self.rows},{self.heads},{self.head_dim}{causal}"


def tile_of(entry: str) -> tuple[int, int]:
    """Return the rows of queries and of keys of an entry's tile."""
    found = _TILE.search(entry)
    if found is None:
        message = f"{entry} does not say its tile, as attention_bf16_128x64_d128_r16 does: give --rounds and --ctas"
        raise InvalidArgumentError(message)
    return int(found[1]), int(found[2])


def parse(word: str) -> Problem:
    """Return the problem of ``B,S,H,D`` or ``B,S,H,D,causal``."""
    found = _FORM.match(word)
    if found is None or any(int(found[i]) == 0 for i in range(1, 5)):
        message = f"--problem is {word!r}, not batch,rows,heads,head_dim of at least 1 each, with or without ,causal"
        raise InvalidArgumentError(message)
    batch, rows, heads, head_dim = (int(found[i]) for i in range(1, 5))
    return Problem(batch, rows, heads, head_dim, causal=found[5] is not None)
