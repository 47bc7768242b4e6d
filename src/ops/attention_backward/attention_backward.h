/* What the files of sm120_attention_backward share. */
#ifndef SM120_ATTENTION_BACKWARD_H
#define SM120_ATTENTION_BACKWARD_H

#include "ops/attention/attention.h"
#include "ops/copy_rows.h"

enum { Q, K, V, DOUT, LOADED }; /* the tensors that the copy engine loads */
enum { DQ, DK, DV, RESULTS };

/* A call whose arguments were checked, but for addresses. */
struct backward {
    const sm120_attention_backward_args *args;
    sm120_attention_args forward;
    struct attention call; /* of `forward`; q, k and v are copies where those are loaded */
    struct tensor given[LOADED], loaded[LOADED], results[RESULTS];
    struct shape given_shape[LOADED], loaded_shape[LOADED], result_shape[RESULTS];
    struct copy_rows copies[LOADED];
    bool is_copied[LOADED];
    int64_t dmask_bytes;
    uint32_t main, delta, dq, sinks, sum; /* kernel_records */
    int64_t q_tiles, kv_tiles;            /* of a head; of the longest sequence, if they are packed */
    int64_t kv_ctas;                      /* tiles of keys of all heads */
    int64_t first_split, splits;          /* of those from first_split on, `splits` CTAs share one; else 1 */
    int64_t parts_at[RESULTS];            /* in the workspace, of dk and dv, if splits is above 1 */
    int64_t group;                        /* heads of k and v whose tiles take turns in the order of the launch */
    int64_t turn_tiles; /* tiles of q to whose dq a tile of keys adds in one turn, in a deterministic call */
    struct {            /* of the sums of dq: ptx/parts/dq_ring.ptx */
        bool is_used;
        int64_t group_tiles, full_groups, reach; /* of the main kernel */
        int64_t slots, first_head;               /* of the sums; whose dq the main kernel does not write */
        int64_t finished_at;                     /* in the workspace */
    } ring;
    /* A tile has a slot in the workspace; packed sequences lie one behind the other there too. */
    int64_t head_slots, batch_slots, slots;                          /* of a head, of a batch, in all */
    int64_t rows_at, sums_at, turns_at, tile_bytes, workspace_bytes; /* in the workspace; sums of a tile */
    uint32_t products; /* the precision of the kernels; if it is not that of the call, q and k are rounded to MXFP8 */
    struct {           /* MXFP8: the operands in blocks; those of q lie at rows_at, each tile before its rows */
        uint32_t keys; /* kernel_record; `delta` packs the queries */
        int64_t dout_at, k_at, v_at;
        int64_t head_slots, batch_slots, slots; /* of tiles of keys */
    } packed;
};

/* Check the arguments but for addresses, and fill in the call. */
sm120_status backward_check(const sm120_attention_backward_args *args, struct backward *b);

/* Choose the kernels, then lay out the workspace. */
sm120_status backward_choose(const struct device *device, struct backward *b);
sm120_status backward_lay_out(const struct device *device, struct backward *b);

/* Choose first_split and splits. Returns the time of the main kernel, in rounds of a CTA. */
int64_t backward_split(const struct device *device, struct backward *b);

/* Whether four neighbouring elements of a result, of 16 bits, can be stored at once. */
bool backward_has_quads(const struct backward *b, int result);

/* Choose whether the sums of dq live in a ring, and the group, after the splits. */
void backward_choose_ring(const struct device *device, struct backward *b);

/* The heads of k and v that run at once: as many as L2 holds the sums of dq of, and q and dout, which in 16 bits have
 * as many bytes as the sums. Else each CTA would read and write these in DRAM. With a right edge, as causal calls have,
 * the walks take half of them. At least 1, and at most as many as the kernel allows. */
int64_t backward_held_heads(const struct device *device, const struct backward *b);

/* A group of at most so many heads of k and v, so that all groups are as even as they can be. */
int64_t backward_even_group(const struct backward *b, int64_t most);

/* Choose the group and the tiles of a turn of a deterministic call, after the ring. */
void backward_choose_turns(const struct device *device, struct backward *b);

/* The CTAs of the main kernel. */
int64_t backward_ctas(const struct backward *b);

/* With splits above 1: the launch that adds up the parts of dk and dv. */
struct attention_backward_sum_parameters backward_sum(const struct backward *b, sm120_address workspace, int64_t *ctas);

/* Move `offset` behind an area of `count * bytes` bytes. False: the workspace would exceed 2^63 bytes. */
bool backward_place(int64_t *offset, int64_t count, int64_t bytes, int64_t *at);

/* The bytes of what a kernel knows of the rows of a tile. */
int64_t backward_rows_bytes(const struct kernel_record *main);

/* Where the workspace has what kernels know of the rows of the first tile, the bytes from tile to tile, and what a bias
 * has beside -lse * log2(e). */
struct rows_place {
    int64_t at, step;
    float shift;
};
struct rows_place backward_rows_place(const struct backward *b);

/* Where a deterministic call counts the turns of its adds; 0 for other calls. */
sm120_address backward_turns(const struct backward *b, sm120_address workspace);

/* Where CTAs count themselves, with a ring; 0 for other calls. */
sm120_address backward_finished(const struct backward *b, sm120_address workspace);

/* The step from batch to batch of a tensor that packed sequences share: 0 if `starts` says that it is packed. */
int64_t backward_batch_stride(const struct tensor *x, sm120_address starts);

/* Whether a tensor is rounded to MXFP8 before it is used in 16 bits: q and k of mixed precisions. */
bool backward_is_rounded(const struct backward *b, int tensor);

/* The gradient of the mask. */
struct gradients_mask_parameters backward_dmask(const struct backward *b);

/* MXFP8: choose the kernels that pack the operands, place those in the workspace, and the kernels' parameters. */
sm120_status backward_choose_packers(struct backward *b);
bool backward_place_packed(struct backward *b);
struct attention_backward_pack_queries_parameters backward_pack_queries(const struct backward *b,
                                                                        sm120_address workspace);
struct attention_backward_pack_keys_parameters backward_pack_keys(const struct backward *b, sm120_address workspace);

/* Check all addresses: those of the call, and that the workspace is apart from them. */
sm120_status backward_check_places(struct device *device, const struct backward *b, const struct workspace *workspace);

/* Load the kernels, so that the call itself can be captured in a graph. */
sm120_status backward_load(struct device *device, struct backward *b);

/* Check all launches, then start them. */
sm120_status backward_run(struct device *device, struct backward *b, sm120_address workspace);

#endif
