/* Attention through the C interface, checked against loops in C: cc attention.c -lsm120 -lm && ./a.out [device] */
#include <math.h>
#include <sm120.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 2, ROWS = 100, D = 64, COUNT = HEADS * ROWS * D };

/* End with the library's message if a call failed. */
static void check(sm120_status status) {
    if (status != SM120_OK) {
        fprintf(stderr, "%s: %s\n", sm120_status_string(status), sm120_last_error());
        exit(EXIT_FAILURE);
    }
}

/* o = softmax(q k^T / sqrt(D)) v for one row q of a head. */
static void attend(const float *q, const float *k, const float *v, double *o) {
    double sum = 0.0;
    for (int row = 0; row < ROWS; ++row, k += D, v += D) {
        double score = 0.0;
        for (int d = 0; d < D; ++d) {
            score += (double)q[d] * (double)k[d];
        }
        const double p = exp(score / sqrt(D));
        sum += p;
        for (int d = 0; d < D; ++d) {
            o[d] += p * (double)v[d];
        }
    }
    for (int d = 0; d < D; ++d) {
        o[d] /= sum;
    }
}

int main(int argc, char **argv) {
    static float x[4][COUNT]; /* q, k, v, o: [HEADS][ROWS][D] */
    sm120_tensor t[4];
    sm120_device *device;
    check(sm120_device_open(argc > 1 ? argv[1] : "virtual", &device));
    for (int i = 0; i < 4; ++i) {
        for (int n = 0; n < COUNT; ++n) {
            x[i][n] = (float)(4.0 * rand() / RAND_MAX - 2.0);
        }
        t[i] = (sm120_tensor){.dtype = SM120_F32, .batch_stride = COUNT, .head_stride = ROWS * D, .row_stride = D};
        check(sm120_alloc(device, sizeof x[i], &t[i].address));
        check(sm120_copy_to_device(device, t[i].address, x[i], sizeof x[i], NULL));
    }

    sm120_attention_args args = {.size = sizeof args, .precision = SM120_MXFP8, .batch = 1, .heads = HEADS};
    args.kv_heads = HEADS;
    args.q_rows = args.kv_rows = ROWS;
    args.head_dim = D;
    args.q = t[0], args.k = t[1], args.v = t[2], args.o = t[3];
    args.scale = (float)(1.0 / sqrt(D));
    sm120_address workspace;
    size_t bytes;
    check(sm120_attention_workspace(device, &args, &bytes));
    check(sm120_alloc(device, bytes, &workspace));
    check(sm120_attention(device, &args, workspace, bytes));
    check(sm120_copy_to_host(device, x[3], t[3].address, sizeof x[3], NULL));
    check(sm120_device_synchronize(device));
    check(sm120_device_close(device)); /* and free its memory */

    double error = 0.0, norm = 0.0;
    for (int n = 0; n < COUNT; n += D) {
        double o[D] = {0};
        attend(x[0] + n, x[1] + n / (ROWS * D) * (ROWS * D), x[2] + n / (ROWS * D) * (ROWS * D), o);
        for (int d = 0; d < D; ++d) {
            error += pow((double)x[3][n + d] - o[d], 2.0);
            norm += pow(o[d], 2.0);
        }
    }
    printf("error %.2f%%\n", 100.0 * sqrt(error / norm));
    return sqrt(error / norm) < 0.08 ? EXIT_SUCCESS : EXIT_FAILURE;
}
