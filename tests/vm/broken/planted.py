"""What a planted kernel is: a body with a mistake, what the report must say, and the same body without it.

Bodies run in two warps. Registers: i the thread, n the CTA, warp and lane; at = smem + 16 * lane; a b c d e f of 32
bits, which begin as 1 2 3 4; x the address of 4096 bytes of global memory, y w state of 64 bits; predicates p, set in
warp 1, q in warp 0, r in thread 0, and s. Line n of a body is broken.ptx:n.
"""

from typing import NamedTuple

FRAME = """.version 8.8
.target sm_120f
.address_size 64
.visible .entry k(.param .u64 param_x)
{{
    .reg .pred p, q, r, s;
    .reg .b16 h;
    .reg .b32 a, b, c, d, e, f, i, n, warp, lane, at;
    .reg .b64 x, y, w, state;
    .shared .align 128 .b8 smem[2048];
    .shared .align 8 .b64 bar;
    ld.param.u64 x, [param_x];
    mov.u32 i, %tid.x;
    mov.u32 n, %ctaid.x;
    shr.u32 warp, i, 5;
    and.b32 lane, i, 31;
    setp.ne.u32 p, warp, 0;
    setp.eq.u32 q, warp, 0;
    setp.eq.u32 r, i, 0;
    mov.u32 at, smem;
    mad.lo.u32 at, lane, 16, at;
    mov.b32 a, 1;
    mov.b32 b, 2;
    mov.b32 c, 3;
    mov.b32 d, 4;
#line 1 "broken.ptx"
{body}
    ret;
}}
"""


class Planted(NamedTuple):
    """A mistake, its report and its correction."""

    name: str
    broken: str
    parts: tuple[str, ...]
    right: str
    ctas: int = 1
    levels: tuple[str, ...] = ("default", "full")  # that find it
    head: str = ""  # directives of the kernel


def planted(
    name: str,
    body: str,
    parts: tuple[str, ...],
    ctas: int = 1,
    levels: tuple[str, ...] = ("default", "full"),
    head: str = "",
) -> Planted:
    """Make a mistake and its correction of one body.

    Lines that begin with `-` belong to the mistake alone, those with `+` to the correction alone.
    """
    lines = body.split("\n")
    broken, right = (
        "\n".join(line.removeprefix(mark) for line in lines if not line.startswith(other))
        for mark, other in (("-", "+"), ("+", "-"))
    )
    return Planted(name, broken, parts, right, ctas, levels, head)


def text(body: str, head: str = "") -> str:
    """Return the PTX of a body."""
    return FRAME.format(body=body.strip("\n")).replace("param_x)\n{", f"param_x) {head}\n{{", 1)
