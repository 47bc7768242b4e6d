"""Compare the clocks of accesses of shared memory on a GPU with the wavefronts in profiles of the virtual device.

    python benchmarks/banks.py --device cuda

Sixteen warps make the same access many times. A multiprocessor does one wavefront per clock, so the two columns agree
if the model of banks is right.
"""

import argparse
import sys

import numpy as np
import numpy.typing as npt

import pysm120

WARPS, ROUNDS, TIMES, LANES = 16, 64, 8, 32
LANE = np.arange(LANES)
V2, V4 = "{r0, r1}", "{r0, r1, r2, r3}"

# The access, the registers that it writes, and the offset of each lane.
ROWS: list[tuple[str, str, int, npt.NDArray[np.int64]]] = [
    ("b32, side by side", "ld.shared.b32 r0, [at]", 1, 4 * LANE),
    ("b32, stride 2", "ld.shared.b32 r0, [at]", 1, 8 * LANE),
    ("b32, stride 8", "ld.shared.b32 r0, [at]", 1, 32 * LANE),
    ("b32, stride 33", "ld.shared.b32 r0, [at]", 1, 132 * LANE),
    ("b32, one word", "ld.shared.b32 r0, [at]", 1, 0 * LANE),
    ("b64, side by side", f"ld.shared.v2.b32 {V2}, [at]", 2, 8 * LANE),
    ("b64, stride 2", f"ld.shared.v2.b32 {V2}, [at]", 2, 16 * LANE),
    ("b64, halves on the same banks", f"ld.shared.v2.b32 {V2}, [at]", 2, 8 * (LANE % 16) + 256 * (LANE // 16)),
    ("b64, lane ^ 1 the same", f"ld.shared.v2.b32 {V2}, [at]", 2, 8 * (LANE // 2)),
    ("b64, lane ^ 2 the same", f"ld.shared.v2.b32 {V2}, [at]", 2, 8 * (LANE // 4 * 2 + LANE % 2)),
    ("b64, lane ^ 4 the same", f"ld.shared.v2.b32 {V2}, [at]", 2, 8 * (LANE // 8 * 4 + LANE % 4)),
    ("b64, one address", f"ld.shared.v2.b32 {V2}, [at]", 2, 0 * LANE),
    ("b128, side by side", f"ld.shared.v4.b32 {V4}, [at]", 4, 16 * LANE),
    ("b128, stride 2", f"ld.shared.v4.b32 {V4}, [at]", 4, 32 * LANE),
    ("b128, rows of 128 bytes", f"ld.shared.v4.b32 {V4}, [at]", 4, 128 * (LANE % 8) + 16 * (LANE // 8)),
    ("b128, lane ^ 1 the same", f"ld.shared.v4.b32 {V4}, [at]", 4, 16 * (LANE // 2)),
    ("b128, lane ^ 2 the same", f"ld.shared.v4.b32 {V4}, [at]", 4, 16 * (LANE // 4 * 2 + LANE % 2)),
    ("b128, lane ^ 4 the same", f"ld.shared.v4.b32 {V4}, [at]", 4, 16 * (LANE // 8 * 4 + LANE % 4)),
    ("b128, one address", f"ld.shared.v4.b32 {V4}, [at]", 4, 0 * LANE),
    ("store b32, stride 2", "st.shared.b32 [at], r0", 0, 8 * LANE),
    ("store b32, one word", "st.shared.b32 [at], r0", 0, 0 * LANE),
    ("store b64, side by side", f"st.shared.v2.b32 [at], {V2}", 0, 8 * LANE),
    ("store b64, lane ^ 1 the same", f"st.shared.v2.b32 [at], {V2}", 0, 8 * (LANE // 2)),
    ("store b128, side by side", f"st.shared.v4.b32 [at], {V4}", 0, 16 * LANE),
    ("store b128, one address", f"st.shared.v4.b32 [at], {V4}", 0, 0 * LANE),
    ("red.add, side by side", "red.shared.add.u32 [at], r0", 0, 4 * LANE),
    ("red.add, stride 2", "red.shared.add.u32 [at], r0", 0, 8 * LANE),
    ("red.add, two lanes a word", "red.shared.add.u32 [at], r0", 0, 4 * (LANE // 2)),
    ("red.add, one word", "red.shared.add.u32 [at], r0", 0, 0 * LANE),
    ("ldmatrix x4, rows of 128 bytes", f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {V4}, [at]", 4,
     128 * (LANE % 8) + 16 * (LANE // 8)),
    ("ldmatrix x4, swizzled", f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {V4}, [at]", 4,
     128 * (LANE % 8) + 16 * ((LANE // 8) ^ (LANE % 8))),
    ("ldmatrix x1, rows of 32 bytes", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r0}, [at]", 1, 32 * (LANE % 8)),
    ("stmatrix x4, rows of 128 bytes", f"stmatrix.sync.aligned.m8n8.x4.shared.b16 [at], {V4}", 0,
     128 * (LANE % 8) + 16 * (LANE // 8)),
]  # fmt: skip

HEAD = """
.version 8.0
.target {target}
.address_size 64
.visible .entry bank(.param .u64 param_offsets, .param .u64 param_out, .param .u32 param_zero)
{{
    .reg .pred more;
    .reg .b32 r<4>, sum, zero, lane, tid, at, at_<{times}>, n;
    .reg .b64 offsets, out, start, end, skip;
    .shared .align 1024 .b8 block[8192];
    ld.param.u64 offsets, [param_offsets];
    ld.param.u64 out, [param_out];
    ld.param.u32 zero, [param_zero];
    mov.u32 tid, %tid.x;
    and.b32 lane, tid, 31;
    mul.wide.u32 skip, lane, 4;
    add.u64 offsets, offsets, skip;
    ld.global.b32 at, [offsets];
    mov.u32 n, block;
    add.u32 at, at, n;
    mov.u32 sum, 0;
"""


def kernel(access: str, written: int, target: str) -> str:
    """Write the kernel that makes an access ROUNDS * TIMES times; the compiler cannot know that ``zero`` is 0."""
    lines = [HEAD.format(target=target, times=TIMES)]
    lines += [f"    mov.u32 r{k}, zero;" for k in range(4)]
    lines += [f"    mad.lo.u32 at_{k}, zero, {k + 1}, at;" for k in range(TIMES)]
    lines += ["    mov.u32 n, 0;", "    bar.sync 0;", "    mov.u64 start, %clock64;", "again:"]
    for k in range(TIMES):
        lines += [f"    {access.replace('[at]', f'[at_{k}]')};", f"    add.u32 at_{k}, at_{k}, zero;"]
        lines += [f"    xor.b32 sum, sum, r{j};" for j in range(written)]
    lines += ["    add.u32 n, n, 1;", f"    setp.lt.u32 more, n, {ROUNDS};", "@more bra again;"]
    lines += ["    mov.u64 end, %clock64;", "    mul.wide.u32 skip, tid, 24;", "    add.u64 out, out, skip;"]
    lines += ["    cvt.u64.u32 skip, sum;", "    st.global.u64 [out], start;", "    st.global.u64 [out + 8], end;"]
    lines += ["    st.global.u64 [out + 16], skip;", "    ret;", "}"]
    return "\n".join(lines)


def launch(device: pysm120.Device, text: str, offsets: npt.NDArray[np.int64]) -> float:
    """Run a kernel; the clocks of one access."""
    out = device.zeros((WARPS * LANES, 3), np.uint64)
    bank = device.load(text)["bank"]
    place = device.array(offsets.astype(np.uint32))
    for _ in range(3):
        bank(1, WARPS * LANES, place, out, np.uint32(0))
    clocks = out.numpy()
    return float(clocks[:, 1].max() - clocks[:, 0].min()) / (WARPS * ROUNDS * TIMES)


def predicted(access: str, text: str, offsets: npt.NDArray[np.int64]) -> float:
    """Return the wavefronts of one access by the model."""
    with pysm120.Device("virtual:0?checks=off") as device, device.profile() as p:
        launch(device, text, offsets)
    word = access.split(maxsplit=1)[0]
    found = [s.counts for s in p.statements if s.mnemonic == word]
    return sum(c.shared_wavefronts for c in found) / sum(c.executed for c in found)


def main() -> int:
    """Print both columns; return 1 if they differ by more than a tenth and half a clock."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 (default: cuda)")
    wrong = 0
    with pysm120.Device(parser.parse_args().device) as device:
        if device.is_virtual:
            print("banks.py: --device is the virtual SM120, whose clock counts instructions; it must be a GPU")
            return 2
        print(f"{device.info.name}: {WARPS} warps, {ROUNDS * TIMES} times each\n")
        print(f"{'access':42} {'clocks':>8} {'model':>6}")
        for name, access, written, offsets in ROWS:
            text = kernel(access, written, "sm_90")
            clocks, model = launch(device, text, offsets), predicted(access, text, offsets)
            off = abs(clocks - model) > 0.1 * model + 0.5
            wrong += off
            print(f"{name:42} {clocks:8.2f} {model:6.1f}{'  differs' if off else ''}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
