"""Small PTX programs that the tests of the Python package load; any target from sm_80 on runs them."""

HEAD = """
.version 8.0
.target sm_80
.address_size 64
"""

# y = a * x + y, one element per thread.
SAXPY = (
    HEAD
    + """
.visible .entry saxpy(
    .param .u64 param_x,
    .param .u64 param_y,
    .param .f32 param_a,
    .param .u32 param_n)
{
    .reg .pred  outside;
    .reg .b32   i, n, width, lane;
    .reg .b64   x, y, offset;
    .reg .f32   a, u, v;

    ld.param.u64            x, [param_x];
    ld.param.u64            y, [param_y];
    ld.param.f32            a, [param_a];
    ld.param.u32            n, [param_n];
    mov.u32                 i, %ctaid.x;
    mov.u32                 width, %ntid.x;
    mov.u32                 lane, %tid.x;
    mad.lo.u32              i, i, width, lane;
    setp.ge.u32             outside, i, n;
@outside bra                done;
    mul.wide.u32            offset, i, 4;
    add.u64                 x, x, offset;
    add.u64                 y, y, offset;
    ld.global.f32           u, [x];
    ld.global.f32           v, [y];
    fma.rn.f32              v, a, u, v;
    st.global.f32           [y], v;
done:
    ret;
}

.visible .entry nothing()
{
    ret;
}
"""
)

# out[0..1] = the two words of a parameter of 16 bytes, out[2..3] = a u16 and a u8 parameter.
BYTES = (
    HEAD
    + """
.visible .entry bytes(
    .param .u64 param_out,
    .param .align 8 .b8 param_pair[16],
    .param .u16 param_short,
    .param .u8 param_byte)
{
    .reg .b64   out, word;
    .reg .b16   half;
    .reg .b32   wide;

    ld.param.u64            out, [param_out];
    ld.param.u64            word, [param_pair];
    st.global.u64           [out], word;
    ld.param.u64            word, [param_pair + 8];
    st.global.u64           [out + 8], word;
    ld.param.u16            half, [param_short];
    cvt.u32.u16             wide, half;
    cvt.u64.u32             word, wide;
    st.global.u64           [out + 16], word;
    ld.param.u8             half, [param_byte];
    cvt.u32.u16             wide, half;
    cvt.u64.u32             word, wide;
    st.global.u64           [out + 24], word;
    ret;
}
"""
)

# Never ends. Its state changes in every round, because a repeated state would be a deadlock.
FOREVER = (
    HEAD
    + """
.visible .entry forever()
{
    .reg .u64 rounds;
    mov.u64                 rounds, 0;
again:
    add.u64                 rounds, rounds, 1;
    bra                     again;
}
"""
)
