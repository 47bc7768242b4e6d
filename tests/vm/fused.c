/* The fused multiply-add of vm/execute/fused.h, beside that of the C library: fused [seed]. */
#include <fenv.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "vm/execute/fused.h"

enum { MODES = 4, COUNT = 400000 };

static uint64_t state;

static uint64_t draw(void) {
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407;
    return state >> 32 | state << 32;
}

/* Return a number: special, near `other`, of few bits, or any. */
static double number(double other) {
    static const double special[] = {0.0,      -0.0,     1.0,        -1.0,       0x1p-1074, -0x1p-1022,
                                     0x1p1023, 0x1p-126, 0x1p-149,   0x1.8p127,  -0x1p127,  0x1.fffffep127,
                                     INFINITY, NAN,      0x1.8p-537, -0x1.8p-75, 0x1p-149,  0x1.fffffffffffffp1023};
    const uint64_t r = draw();
    switch (r % 8) {
    case 0:
        return special[(r >> 8) % (sizeof special / sizeof *special)];
    case 1:
        return other * (1.0 + (double)((int)(r >> 8 & 7) - 4) * 0x1p-52);
    case 2:
        return -other * (1.0 + (double)((int)(r >> 8 & 7) - 4) * 0x1p-23);
    case 3:
        return value64((r & UINT64_C(0x803fe00000000000)) + UINT64_C(0x3e80000000000000));
    case 4:
        return value64((draw() & UINT64_C(0x800fffffffffffff)) + ((1023 - 32 + (r >> 8) % 64) << 52));
    case 5:
        return value64(draw() & UINT64_C(0x801fffffffffffff));
    case 6:
        return (double)value32((uint32_t)draw());
    default:
        return value64(draw());
    }
}

static int is_same(double x, double y) {
    return x != x ? y != y : bits64(x) == bits64(y);
}

int main(int argc, char **argv) {
    static const int modes[MODES] = {FE_TONEAREST, FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD};
    int wrong = 0;
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (int n = 0; n < COUNT; ++n) {
        const double x = number(1.0), y = number(x), z = number(x * y);
        const float a = (float)x, b = (float)y, c = (float)z;
        for (int m = 0; m < MODES; ++m) {
            fesetround(modes[m]);
            const double want = fma(x, y, z), got = fused64(x, y, z);
            const float narrow_want = fmaf(a, b, c), narrow_got = fused32(a, b, c);
            fesetround(FE_TONEAREST);
            if (!is_same(want, got)) {
                printf("mode %d: fma(%a, %a, %a) = %a, but fused64 gives %a\n", m, x, y, z, want, got);
                ++wrong;
            }
            if (!is_same((double)narrow_want, (double)narrow_got)) {
                printf("mode %d: fmaf(%a, %a, %a) = %a, but fused32 gives %a\n", m, (double)a, (double)b, (double)c,
                       (double)narrow_want, (double)narrow_got);
                ++wrong;
            }
        }
        if (wrong > 9) {
            break;
        }
    }
    return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
