"""Kernels in Triton, as people write them: what the compiler makes of them must run on the virtual device."""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    ACC: tl.constexpr,
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    a = a_ptr + m[:, None] * K + k[None, :]
    b = b_ptr + k[:, None] * N + n[None, :]
    acc = tl.zeros((BM, BN), dtype=ACC)
    for i in range(0, K, BK):
        x = tl.load(a, mask=(k[None, :] + i < K) & (m[:, None] < M), other=0.0)
        y = tl.load(b, mask=(k[:, None] + i < K) & (n[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc, out_dtype=ACC)
        a += BK
        b += BK * N
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc, mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def matmul_scaled(
    a_ptr,
    a_scale_ptr,
    b_ptr,
    b_scale_ptr,
    c_ptr,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    FORMAT_A: tl.constexpr,
    FORMAT_B: tl.constexpr,
    PACK_A: tl.constexpr,
    PACK_B: tl.constexpr,
    BLOCK: tl.constexpr,
):
    m = tl.arange(0, M)
    n = tl.arange(0, N)
    ka = tl.arange(0, K // PACK_A)
    kb = tl.arange(0, K // PACK_B)
    s = tl.arange(0, K // BLOCK)
    a = tl.load(a_ptr + m[:, None] * (K // PACK_A) + ka[None, :])
    b = tl.load(b_ptr + n[None, :] * (K // PACK_B) + kb[:, None])
    a_scale = tl.load(a_scale_ptr + m[:, None] * (K // BLOCK) + s[None, :])
    b_scale = tl.load(b_scale_ptr + n[:, None] * (K // BLOCK) + s[None, :])
    c = tl.dot_scaled(a, a_scale, FORMAT_A, b, b_scale, FORMAT_B)
    tl.store(c_ptr + m[:, None] * N + n[None, :], c)


@triton.jit
def attention(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    l_ptr,
    S,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    head = tl.program_id(1) * S * D
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + head + m[:, None] * D + d[None, :])
    top = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    end = (tl.program_id(0) + 1) * BM if CAUSAL else S
    for start in range(0, end, BN):
        n = start + tl.arange(0, BN)
        k = tl.load(k_ptr + head + n[None, :] * D + d[:, None])
        s = tl.dot(q, k) * scale
        if CAUSAL:
            s = tl.where(m[:, None] >= n[None, :], s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        fade = tl.exp2(top - new)
        total = total * fade + tl.sum(p, 1)
        v = tl.load(v_ptr + head + n[:, None] * D + d[None, :])
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None])
        top = new
    tl.store(o_ptr + head + m[:, None] * D + d[None, :], acc / total[:, None])
    tl.store(l_ptr + tl.program_id(1) * S + m, top + tl.log2(total))


@triton.jit
def attention_backward(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    l_ptr,
    delta_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    S,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    head = tl.program_id(1) * S * D
    rows = tl.program_id(1) * S
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.arange(0, D)
    k = tl.load(k_ptr + head + n[:, None] * D + d[None, :])
    v = tl.load(v_ptr + head + n[:, None] * D + d[None, :])
    dk = tl.zeros((BN, D), tl.float32)
    dv = tl.zeros((BN, D), tl.float32)
    for start in range(0, S, BM):
        m = start + tl.arange(0, BM)
        q = tl.load(q_ptr + head + m[:, None] * D + d[None, :])
        do = tl.load(do_ptr + head + m[:, None] * D + d[None, :])
        s = tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634)
        p = tl.exp2(s - tl.load(l_ptr + rows + m)[:, None])
        dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv)
        dp = tl.dot(do, tl.trans(v))
        ds = (p * (dp - tl.load(delta_ptr + rows + m)[:, None]) * scale).to(q.dtype)
        dk = tl.dot(tl.trans(ds), q, dk)
        tl.atomic_add(dq_ptr + head + m[:, None] * D + d[None, :], tl.dot(ds, k))
    tl.store(dk_ptr + head + n[:, None] * D + d[None, :], dk)
    tl.store(dv_ptr + head + n[:, None] * D + d[None, :], dv)


@triton.jit
def softmax(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row + i, mask=i < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row + i, e / tl.sum(e, 0), mask=i < columns)


@triton.jit
def layer_norm(x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * columns + i, mask=i < columns, other=0.0)
    mean = tl.sum(x, 0) / columns
    c = tl.where(i < columns, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(c * c, 0) / columns + eps)
    w = tl.load(w_ptr + i, mask=i < columns, other=0.0)
    b = tl.load(b_ptr + i, mask=i < columns, other=0.0)
    tl.store(y_ptr + row * columns + i, c * rstd * w + b, mask=i < columns)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def layer_norm_backward(
    x_ptr, dy_ptr, w_ptr, mean_ptr, rstd_ptr, dx_ptr, dw_ptr, db_ptr, lock_ptr, columns, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    live = i < columns
    x = tl.load(x_ptr + row * columns + i, mask=live, other=0.0)
    dy = tl.load(dy_ptr + row * columns + i, mask=live, other=0.0)
    w = tl.load(w_ptr + i, mask=live, other=0.0)
    rstd = tl.load(rstd_ptr + row)
    h = tl.where(live, (x - tl.load(mean_ptr + row)) * rstd, 0.0)
    g = w * dy
    dx = (g - (h * tl.sum(h * g, 0) + tl.sum(g, 0)) / columns) * rstd
    tl.store(dx_ptr + row * columns + i, dx, mask=live)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(dw_ptr + i, tl.load(dw_ptr + i, mask=live, other=0.0) + dy * h, mask=live)
    tl.store(db_ptr + i, tl.load(db_ptr + i, mask=live, other=0.0) + dy, mask=live)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def _combine(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def scans(x_ptr, sum_ptr, product_ptr, recurrence_ptr, reverse_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(sum_ptr + i, tl.cumsum(x, 0))
    tl.store(product_ptr + i, tl.cumprod(1 + x / BLOCK, 0))
    tl.store(reverse_ptr + i, tl.cumsum(x, 0, reverse=True))
    _, y = tl.associative_scan((0.5 + x * 0.0, x), 0, _combine)
    tl.store(recurrence_ptr + i, y)


@triton.jit
def sorts(x_ptr, up_ptr, down_ptr, top_ptr, arg_ptr, ROWS: tl.constexpr, BLOCK: tl.constexpr, TOP: tl.constexpr):
    r = tl.arange(0, ROWS)
    at = r[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(up_ptr + at, tl.sort(x, 1))
    tl.store(down_ptr + at, tl.sort(x, 1, descending=True))
    tl.store(top_ptr + r[:, None] * TOP + tl.arange(0, TOP)[None, :], tl.topk(x, TOP, 1))
    tl.store(arg_ptr + r, tl.argmax(x, 1))
    tl.store(arg_ptr + ROWS + r, tl.argmin(x, 1))


@triton.jit
def histogram(x_ptr, counts_ptr, atomic_ptr, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0)
    tl.atomic_add(counts_ptr + tl.arange(0, BINS), tl.histogram(x, BINS, mask=i < n))
    tl.atomic_add(atomic_ptr + x, 1, mask=i < n)


@triton.jit
def atomics(x_ptr, out_ptr, old_ptr, half_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.atomic_max(out_ptr + 0 * i, x)
    tl.atomic_min(out_ptr + 1 + 0 * i, x)
    tl.atomic_and(out_ptr + 2 + 0 * i, x)
    tl.atomic_or(out_ptr + 3 + 0 * i, x)
    tl.atomic_xor(out_ptr + 4 + 0 * i, x)
    tl.store(old_ptr + i, tl.atomic_add(out_ptr + 5 + 0 * i, 1))
    tl.atomic_add(half_ptr + (i & 7), tl.full((BLOCK,), 1.0, tl.float16))


@triton.jit
def random(uniform_ptr, normal_ptr, bits_ptr, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(uniform_ptr + i, tl.rand(seed, i))
    tl.store(normal_ptr + i, tl.randn(seed, i))
    tl.store(bits_ptr + i, tl.randint(seed, i))


@triton.jit
def transcendental(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(y_ptr + i, tl.exp(x))
    tl.store(y_ptr + n + i, tl.log(x))
    tl.store(y_ptr + 2 * n + i, tl.sin(x))
    tl.store(y_ptr + 3 * n + i, tl.cos(x))
    tl.store(y_ptr + 4 * n + i, tl.sqrt(x))
    tl.store(y_ptr + 5 * n + i, tl.rsqrt(x))
    tl.store(y_ptr + 6 * n + i, tl.erf(x))
    tl.store(y_ptr + 7 * n + i, tl.sigmoid(x))
    tl.store(y_ptr + 8 * n + i, tl.exp2(x))
    tl.store(y_ptr + 9 * n + i, tl.log2(x))
    tl.store(y_ptr + 10 * n + i, tl.floor(x) + tl.ceil(x))
    tl.store(y_ptr + 11 * n + i, tl.fma(x, x, x))
    tl.store(y_ptr + 12 * n + i, tl.sqrt_rn(x))
    tl.store(y_ptr + 13 * n + i, tl.div_rn(x, x + 1))


@triton.jit
def wide_integers(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + i, x + y)
    tl.store(out_ptr + n + i, x * y)
    tl.store(out_ptr + 2 * n + i, x // y)
    tl.store(out_ptr + 3 * n + i, x % y)
    tl.store(out_ptr + 4 * n + i, x >> 3)
    tl.store(out_ptr + 5 * n + i, x << 5)
    tl.store(out_ptr + 6 * n + i, tl.minimum(x, y))
    tl.store(out_ptr + 7 * n + i, tl.umulhi(x, y))
    tl.store(out_ptr + 8 * n + i, tl.where(x < y, x & y, x ^ y))
    tl.store(out_ptr + 9 * n + i, tl.abs(x))
    tl.store(out_ptr + 10 * n + i, tl.cumsum(x, 0))


@triton.jit
def doubles(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + i, x + y)
    tl.store(out_ptr + n + i, x * y - x)
    tl.store(out_ptr + 2 * n + i, x / y)
    tl.store(out_ptr + 3 * n + i, tl.sqrt(x))
    tl.store(out_ptr + 4 * n + i, tl.exp(y))
    tl.store(out_ptr + 5 * n + i, tl.log(x))
    tl.store(out_ptr + 6 * n + i, tl.sin(y))
    tl.store(out_ptr + 7 * n + i, tl.sum(x, 0) + 0 * x)
    tl.store(out_ptr + 8 * n + i, tl.maximum(x, y))
    tl.store(out_ptr + 9 * n + i, x.to(tl.float32).to(tl.float64))
    tl.store(out_ptr + 10 * n + i, y.to(tl.int64).to(tl.float64))


@triton.jit
def conversions(x_ptr, half_ptr, brain_ptr, e4m3_ptr, e5m2_ptr, byte_ptr, back_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(half_ptr + i, x.to(tl.float16))
    tl.store(brain_ptr + i, x.to(tl.bfloat16))
    tl.store(e4m3_ptr + i, x.to(tl.float8e4nv))
    tl.store(e5m2_ptr + i, x.to(tl.float8e5))
    tl.store(byte_ptr + i, x.to(tl.int8))
    tl.store(back_ptr + i, x.to(tl.float8e4nv).to(tl.float32))
    tl.store(back_ptr + n + i, x.to(tl.float8e5).to(tl.float32))
    tl.store(back_ptr + 2 * n + i, x.to(tl.bfloat16).to(tl.float32))


@triton.jit
def matmul_made(a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    b = tl.make_tensor_descriptor(b_ptr, [K, N], [N, 1], [BK, BN])
    c = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BM, BN])
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([m, k]), b.load([k, n]), acc)
    c.store([m, n], acc.to(c.dtype))


@triton.jit
def matmul_given(a, b, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
    c.store([m, n], acc.to(c.dtype))


@triton.jit
def copy_and_sum(x, y, total, high, B1: tl.constexpr, B2: tl.constexpr):
    i = tl.program_id(0) * B1
    j = tl.program_id(1) * B2
    tile = x.load([0, i, j])
    y.store([0, i, j], tile)
    summed = tl.sum(tile, 0).to(total.dtype)
    total.atomic_add([0, j], tl.reshape(tl.sum(summed, 0), (1, B2)))
    high.atomic_max([0, j], tl.reshape(tl.max(tl.max(tile, 0), 0).to(high.dtype), (1, B2)))


@triton.jit
def transpose_made(x_ptr, y_ptr, rows, columns, BR: tl.constexpr, BC: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [BR, BC])
    y = tl.make_tensor_descriptor(y_ptr, [columns, rows], [rows, 1], [BC, BR])
    r = tl.program_id(0) * BR
    c = tl.program_id(1) * BC
    y.store([c, r], x.load([r, c]).T)
