"""A problem of attention or its gradients, and the launch that follows from it: CTAs, rounds of each, operations."""

import dataclasses
import re

from pysm120.runtime.errors import InvalidArgumentError
from pysm120.runtime.module import Builtin

BACKWARD = "attention_backward"
_FORM = re.compile(r"(\d+),(\d+),(\d+)(?:/(\d+))?,(\d+)(,causal)?$")
_SCALED, _FOUR = 1 + 1 / 32, 1 / 2 + 1 / 16  # bytes of an element in MXFP8, in NVFP4
# Bytes of an element of q and k, of v, and of o, by precision.
_BYTES = {
    "mxfp8": (_SCALED, _SCALED, 2),
    "mxfp8_bf16": (_SCALED, 2, 2),
    "mxfp8_f16": (_SCALED, 2, 2),
    "nvfp4": (_FOUR, _FOUR, 2),
    "nvfp4_mxfp8": (_FOUR, _SCALED, 2),
    "fp8": (1, 1, 2),
}
_BYTES_OF_16_BITS = (2, 2, 2)
_SUM_BYTES = 4  # of an element of the sums of dQ


@dataclasses.dataclass(frozen=True)
class Problem:
    """Attention of ``rows`` queries and keys; ``kv_heads`` is 0 if there are as many as heads.

    ``queries``: the rows of queries, if they are not as many and the call is not causal; else 0.
    """

    batch: int
    rows: int
    heads: int
    head_dim: int
    causal: bool = False
    kv_heads: int = 0
    queries: int = 0

    @property
    def q_rows(self) -> int:
        """Rows of queries."""
        return self.queries or self.rows

    @property
    def groups(self) -> int:
        """Heads of k and v."""
        return self.kv_heads or self.heads

    @property
    def flops(self) -> float:
        """Multiplications and additions of both products; a causal mask leaves half of them."""
        pairs = self.rows * (self.rows + 1) / 2 if self.causal else self.q_rows * self.rows
        return 4.0 * self.batch * self.heads * pairs * self.head_dim

    @property
    def backward_flops(self) -> float:
        """Multiplications and additions of the five products of the backward pass; half of them if causal."""
        return 10.0 * self.batch * self.heads * self.rows**2 * self.head_dim / (2 if self.causal else 1)

    def flops_of(self, kernel: Builtin) -> float:
        """Return the multiplications and additions that count for a kernel."""
        return self.backward_flops if kernel.operation == BACKWARD else self.flops

    def tensor_bytes(self, kernel: Builtin) -> float:
        """Return the bytes of all tensors: q, k, v and o, which is in 16 bits; backward q, k, v, dout, dk, dv, sums."""
        q = self.batch * self.heads * self.q_rows * self.head_dim
        kv = self.batch * self.groups * self.rows * self.head_dim
        if kernel.operation == BACKWARD:
            return 2.0 * (2 * q + 4 * kv) + 2 * _SUM_BYTES * q  # the sums of dQ are read and written
        of_q, of_v, of_o = _BYTES.get(kernel.precision, _BYTES_OF_16_BITS)
        return q * (of_q + of_o) + kv * (of_q + of_v)

    def rounds(self, kernel: Builtin, heads_together: int | None = None) -> list[int]:
        """Return the rounds of every CTA of a kernel, in the order in which the CTAs start.

        A round is a tile of keys, or one for each group of warps that visit tiles in turn; backward it is a tile of
        queries of one of the heads that share the keys.
        ``heads_together``: heads in a group, whose longest causal tiles start first. Default: the value in the
        kernel's record.
        """
        q_rows, kv_rows = tile_of(kernel)
        q_tiles, kv_tiles = -(-self.q_rows // q_rows), -(-self.rows // kv_rows)
        if kernel.operation == BACKWARD:
            share = self.heads // self.groups
            one = [share * (q_tiles - (tile * kv_rows // q_rows if self.causal else 0)) for tile in range(kv_tiles)]
        else:
            kv_rows *= max(1, kernel.key_groups)
            kv_tiles = -(-self.rows // kv_rows)
            one = [
                min(kv_tiles, -(-min(self.rows, (tile + 1) * q_rows) // kv_rows)) if self.causal else kv_tiles
                for tile in reversed(range(q_tiles))
            ]
        return self._of_heads(kernel, one, heads_together)

    def warps(self, kernel: Builtin, heads_together: int | None = None) -> list[int]:
        """Return the warps of every CTA that have rows of queries, in the order of ``rounds``; empty: all of them.

        A last tile may have fewer rows than the others. Where groups of warps share rows, some of each group have rows.
        """
        q_rows, _ = tile_of(kernel)
        warps, all_tiles = kernel.threads // 32, -(-self.q_rows // q_rows)
        if kernel.operation == BACKWARD or kernel.key_groups > 1 or self.q_rows % q_rows == 0 or not warps:
            return []
        last = self.q_rows - (all_tiles - 1) * q_rows
        return self._of_heads(kernel, [-(-last * warps // q_rows), *[warps] * (all_tiles - 1)], heads_together)

    def _of_heads(self, kernel: Builtin, one: list[int], heads_together: int | None) -> list[int]:
        """Return what the tiles of every head have, in the order of the launch, from those of a head in this order."""
        heads = self.batch * (self.groups if kernel.operation == BACKWARD else self.heads)
        if heads_together is None:
            heads_together = max(1, min(kernel.group_heads, kernel.group_rows // self.rows)) if self.causal else 1
        groups = [min(heads_together, heads - first) for first in range(0, heads, heads_together)]
        return [of_tile for group in groups for of_tile in one for _ in range(group)]

    def __str__(self) -> str:
        heads = f"{self.heads}/{self.kv_heads}" if self.kv_heads else str(self.heads)
        causal = ",causal" if self.causal else ""
        return f"{self.batch},{self.rows},{heads},{self.head_dim}{causal}"


def tile_of(kernel: Builtin) -> tuple[int, int]:
    """Return the rows of queries and of keys of a kernel's tile."""
    if not kernel.q_rows or not kernel.kv_rows:
        message = f"{kernel.entry} is not a kernel of attention with Q and K tiles: give --tile, or --rounds and --ctas"
        raise InvalidArgumentError(message)
    return kernel.q_rows, kernel.kv_rows


def parse(word: str) -> Problem:
    """Return the problem in a word ``B,S,H,D`` or ``B,S,H,D,causal``; H may be ``H/HKV``."""
    found = _FORM.match(word)
    if found is None or any(int(found[i] or 1) == 0 for i in range(1, 6)):
        message = f"--problem is {word!r}, not batch,rows,heads,head_dim of at least 1 each, with or without ,causal"
        raise InvalidArgumentError(message)
    batch, rows, heads, kv_heads, head_dim = (int(found[i] or 0) for i in range(1, 6))
    if kv_heads and heads % kv_heads:
        message = f"--problem is {word!r}, but {heads} heads are not a multiple of {kv_heads} kv heads"
        raise InvalidArgumentError(message)
    return Problem(batch, rows, heads, head_dim, found[6] is not None, 0 if kv_heads == heads else kv_heads)
