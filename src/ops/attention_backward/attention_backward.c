/* sm120_attention_backward: check, choose the kernels, launch. */
#include "ops/attention_backward/attention_backward.h"
#include "runtime/check.h"

/* Check a call but for addresses, and choose all that its launches have. */
static sm120_status prepare(const struct device *device, const sm120_attention_backward_args *args,
                            struct backward *backward) {
    sm120_status status = check_struct(args, sizeof *args, "args", "sm120_attention_backward_args");
    status = status == SM120_OK ? backward_check(args, backward) : status;
    status = status == SM120_OK ? backward_choose(device, backward) : status;
    return status == SM120_OK ? backward_lay_out(device, backward) : status;
}

/* Launch, or answer the question for the size of the workspace. */
static sm120_status backward_call(sm120_device *handle, const sm120_attention_backward_args *args,
                                  struct workspace workspace) {
    struct device *device;
    struct backward backward;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = workspace_check_question(&workspace);
    status = status == SM120_OK ? prepare(device, args, &backward) : status;
    if (status == SM120_OK && workspace.is_question) {
        *workspace.answer = (size_t)backward.workspace_bytes;
        status = backward_load(device, &backward);
    } else if (status == SM120_OK) {
        status = backward_check_places(device, &backward, &workspace);
        status = status == SM120_OK ? backward_run(device, &backward, workspace.address) : status;
    }
    return device_leave(device, status);
}

sm120_status sm120_attention_backward_chosen(sm120_device *handle, const sm120_attention_backward_args *args,
                                             sm120_attention_backward_plan *plan) {
    struct device *device;
    struct backward backward;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(plan, sizeof *plan, "plan", "sm120_attention_backward_plan");
    status = status == SM120_OK ? prepare(device, args, &backward) : status;
    if (status == SM120_OK) {
        plan->kernel = (int32_t)backward.main;
        plan->first_split = backward.first_split;
        plan->splits = backward.splits;
        plan->group = backward.group;
        plan->turn_tiles = backward.turn_tiles;
        plan->q_tiles = backward.slots;
        plan->sums = backward.ring.slots;
        plan->first_head = backward.ring.first_head;
    }
    return device_leave(device, status);
}

sm120_status sm120_attention_backward_workspace(sm120_device *device, const sm120_attention_backward_args *args,
                                                size_t *workspace_bytes) {
    return backward_call(device, args, workspace_question(workspace_bytes));
}

sm120_status sm120_attention_backward(sm120_device *device, const sm120_attention_backward_args *args,
                                      sm120_address workspace, size_t workspace_bytes) {
    return backward_call(device, args, workspace_of(workspace, workspace_bytes));
}
