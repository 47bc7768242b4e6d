#include "ops/divisor.h"

struct divisor divisor_of(int64_t n) {
    uint32_t shift = 0;
    while (((int64_t)1 << shift) < n) {
        ++shift;
    }
    return (struct divisor){(uint32_t)((((int64_t)1 << (31 + shift)) + n - 1) / n), shift};
}
