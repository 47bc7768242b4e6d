"""Every operation: what it writes, its workspace too, overlaps nothing that it reads or writes."""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import operations
import pytest
from harness import OpenDevice
from operations import ROOM

from pysm120.runtime.ffi import check, ffi, lib

ROWS = operations.operations()
SHARED = 1 << 20  # bytes of the memory that two members share

WRITTEN = {
    "attention": ("o.address", "lse"),
    "attention_backward": ("dq.address", "dk.address", "dv.address", "dsinks", "dmask.address"),
    "attention_with_kv_cache": ("o.address", "lse"),
    "dequantize": ("y.address",),
    "matvec": ("y.address",),
    "merge_states": ("o.address", "lse"),
    "quantize_mxfp8": ("elements", "scales"),
    "quantize_nvfp4": ("elements", "scales"),
    "repack": ("packed",),
    "repack_scales": ("repacked",),
}
# Operations and members with tests of their own: tests/ops/test_kv_cache_*.py, test_attention_kv_cache*.py and
# test_attention_fp8.py.
ELSEWHERE = {"kv_cache_append", "kv_cache_gather"}
OF_CACHES = {f"{x}_{member}" for x in "kv" for member in ("scale", "blocks", "blocks.address", "scale.address")}
# The scales of operands that are MXFP8 already: an operand, and what its scales are.
BLOCKS_OF = {
    f"attention {x}_blocks.address": {
        f"{x}.dtype": lib.SM120_E4M3,
        f"{x}_blocks.dtype": lib.SM120_E8M0,
        f"{x}_blocks.batch_stride": 64,
        f"{x}_blocks.head_stride": 32,
        f"{x}_blocks.row_stride": 1,
    }
    for x in ("q", "past_k", "past_v")
}
OF_FP8 = {"q_scale.address", "o_scale.address", "amax.address"}
ROWS_OF_PAST = {
    f"{tensor}.{member}": value
    for tensor in ("past_k", "past_v")
    for member, value in {"dtype": lib.SM120_F32, "batch_stride": 4096, "head_stride": 1024, "row_stride": 64}.items()
}

# Members that a call needs beside an optional one; "+": the address of other memory.
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "attention cu_seqlens_q": {"q_total": 3},
    "attention cu_seqlens_k": {"kv_total": 3},
    "attention past_k.address": {"past_rows": 1, "past_v.address": "+", **ROWS_OF_PAST},
    "attention past_v.address": {"past_rows": 1, "past_k.address": "+", **ROWS_OF_PAST},
    "attention mask.address": {"mask.dtype": lib.SM120_F32},
    "attention q_blocks.address": BLOCKS_OF["attention q_blocks.address"],
    "attention past_k_blocks.address": {
        "past_rows": 1,
        "past_k.address": "+",
        "past_v.address": "+",
        **ROWS_OF_PAST,
        **BLOCKS_OF["attention past_k_blocks.address"],
    },
    "attention past_v_blocks.address": {
        "past_rows": 1,
        "past_k.address": "+",
        "past_v.address": "+",
        **ROWS_OF_PAST,
        **BLOCKS_OF["attention past_v_blocks.address"],
    },
    "attention_backward cu_seqlens_q": {"q_total": 3, "mask.address": 0, "dmask.address": 0},
    "attention_backward cu_seqlens_k": {"kv_total": 3, "mask.address": 0, "dmask.address": 0},
    "attention_backward dsinks": {"sinks": "+"},
    "quantize_mxfp8 cu_seqlens": {"axis": lib.SM120_ALONG_ROWS, "sequences": 1},
    "quantize_nvfp4 global_scale_address": {"global_scale": 0},
    "attention_with_kv_cache page_table": {"table_pages": 1},
    "attention_with_kv_cache page_indptr": {"table_pages": 1, "page_table": "+", "last_page": "+"},
    "attention_with_kv_cache last_page": {"table_pages": 1, "page_table": "+", "page_indptr": "+"},
    "matvec up": {"up_bytes": 288, "activation": lib.SM120_SILU},
    "matvec experts": {"expert_count": 1, "chosen": 1},
}
# Pairs of members that no call has, and q in place of o.
NEVER = {
    ("matvec", "workspace", "experts"),
    ("attention", "o.address", "q.address"),
    ("attention_backward", "dmask.address", "cu_seqlens_q"),
    ("attention_backward", "dmask.address", "cu_seqlens_k"),
}


def members(name: str) -> list[str]:
    """List the addresses of an operation's struct."""
    struct = ROWS[name].arguments(operations.BASE)
    found = []
    for leaf in operations.leaves(struct):
        owner: Any = struct
        *path, last = leaf.path.split(".")
        for part in path:
            owner = getattr(owner, part)
        kind = ffi.typeof(owner)
        fields = dict((kind.item if kind.kind == "pointer" else kind).fields)
        if last in fields and fields[last].type.cname == "uint64_t":
            found.append(leaf.path)
    return found


def pairs() -> Iterator[tuple[str, str, str]]:
    for name, written in WRITTEN.items():
        places = [*written, *(["workspace"] if ROWS[name].has_workspace else [])]
        for one, other in itertools.product(places, members(name)):
            if one != other and other not in OF_CACHES | OF_FP8 and (name, one, other) not in NEVER:
                yield name, one, other


def test_all_operations_are_here() -> None:
    assert WRITTEN.keys() == ROWS.keys() - ELSEWHERE
    for name, written in WRITTEN.items():
        assert set(written) <= set(members(name))


@pytest.mark.parametrize(("name", "written", "other"), list(pairs()))
def test_written_memory_is_apart(opened: OpenDevice, name: str, written: str, other: str) -> None:
    """A call with two members at one address is refused, and the message names both."""
    row, size = ROWS[name], ffi.new("size_t *")
    address = ffi.new("sm120_address *")

    def allocate(count: int) -> int:
        check(lib.sm120_alloc(opened.handle, count, address))
        check(lib.sm120_fill(opened.handle, address[0], 0, count, ffi.NULL))
        return int(address[0])

    memory, shared, more = allocate(ROOM), allocate(SHARED), allocate(SHARED)
    try:
        struct = row.arguments(memory)
        for member in (written, other):
            for extra, value in BESIDE.get(f"{name} {member}", {}).items():
                more += 256 if value == "+" else 0
                operations.set_member(struct, extra, more if value == "+" else value)
        for member in {written, other} - {"workspace"}:
            operations.set_member(struct, member, shared)
        if row.has_workspace:
            check(row.ask(opened.handle, struct, size))
        workspace = shared if written == "workspace" else allocate(SHARED)
        assert (written == "workspace") <= (0 < size[0] <= SHARED)
        status = row.call(opened.handle, struct, workspace, int(size[0]))
        message = ffi.string(lib.sm120_last_error()).decode()
        assert status == lib.SM120_INVALID_ARGUMENT, message
        for member in (written, other):
            bare = member if member in {"mask.address", "dmask.address"} else member.removesuffix(".address")
            assert re.search(rf"\b{re.escape(bare)} \(0x", message), message
        assert message.split(";")[0].endswith("overlap")
    finally:
        opened.release()
