"""A problem of attention, and the launch that follows from it: CTAs, rounds of each, operations."""

import dataclasses
import re

from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import Builtin

_FORM = re.compile(r"(\d+),(\d+),(\d+),(\d+)(,causal)?$")
_SCALED = 1 + 1 / 32  # bytes of an element in MXFP8
# Bytes of an element of q and k, of v, and of o, by precision.
_BYTES = {"mxfp8": (_SCALED, _SCALED, 2), "mxfp8_bf16": (_SCALED, 2, 2), "mxfp8_f16": (_SCALED, 2, 2)}
_BYTES_OF_16_BITS = (2, 2, 2)


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

    def tensor_bytes(self, kernel: Builtin) -> float:
        """Return the bytes of q, k, v and o, which is in 16 bits."""
        of_q, of_v, of_o = _BYTES.get(kernel.precision, _BYTES_OF_16_BITS)
        return self.batch * self.heads * self.rows * self.head_dim * (2 * of_q + of_v + of_o)

    def rounds(self, kernel: Builtin, heads_together: int | None = None) -> list[int]:
        """Return the tiles of keys of every CTA of a kernel, in the order in which the CTAs start.

        ``heads_together``: heads in a group, whose longest causal tiles start first. Default: the value in the
        kernel's record.
        """
        q_rows, kv_rows = tile_of(kernel)
        q_tiles, kv_tiles = -(-self.rows // q_rows), -(-self.rows // kv_rows)
        one = [
            min(kv_tiles, -(-min(self.rows, (tile + 1) * q_rows) // kv_rows)) if self.causal else kv_tiles
            for tile in reversed(range(q_tiles))
        ]
        if heads_together is None:
            heads_together = max(1, min(kernel.group_heads, kernel.group_rows // self.rows)) if self.causal else 1
        heads = self.batch * self.heads
        groups = [min(heads_together, heads - first) for first in range(0, heads, heads_together)]
        return [rounds for group in groups for rounds in one for _ in range(group)]

    def __str__(self) -> str:
        causal = ",causal" if self.causal else ""
        return f"{self.batch},{self.rows},{self.heads},{self.head_dim}{causal}"


def tile_of(kernel: Builtin) -> tuple[int, int]:
    """Return the rows of queries and of keys of a kernel's tile."""
    if not kernel.q_rows or not kernel.kv_rows:
        message = f"{kernel.entry} is not a kernel of attention with Q and K tiles: give --rounds and --ctas"
        raise InvalidArgumentError(message)
    return kernel.q_rows, kernel.kv_rows


def parse(word: str) -> Problem:
    """Return the problem in a word ``B,S,H,D`` or ``B,S,H,D,causal``."""
    found = _FORM.match(word)
    if found is None or any(int(found[i]) == 0 for i in range(1, 5)):
        message = f"--problem is {word!r}, not batch,rows,heads,head_dim of at least 1 each, with or without ,causal"
        raise InvalidArgumentError(message)
    batch, rows, heads, head_dim = (int(found[i]) for i in range(1, 5))
    return Problem(batch, rows, heads, head_dim, causal=found[5] is not None)
