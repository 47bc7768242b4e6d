/* sm120_attention_backward: check, choose the kernels, launch. */
#include "ops/attention_backward/attention_backward.h"
#include "runtime/check.h"

sm120_status sm120_attention_backward(sm120_device *handle, const sm120_attention_backward_args *args,
                                      sm120_address workspace, size_t *workspace_bytes) {
    struct device *device;
    struct backward backward;
    sm120_status status = device_enter(handle, &device);
    if (status != SM120_OK) {
        return status;
    }
    status = check_struct(args, sizeof *args, "args", "sm120_attention_backward_args");
    status = status == SM120_OK ? backward_check(args, &backward) : status;
    status = status == SM120_OK ? check_pointer(workspace_bytes, "workspace_bytes") : status;
    status = status == SM120_OK ? backward_choose(device, &backward) : status;
    status = status == SM120_OK ? backward_lay_out(device, &backward) : status;
    if (status == SM120_OK && workspace == 0) {
        *workspace_bytes = (size_t)backward.workspace_bytes;
        status = backward_load(device, &backward);
    } else if (status == SM120_OK) {
        status = backward_check_places(device, &backward, workspace, *workspace_bytes);
        status = status == SM120_OK ? backward_run(device, &backward, workspace) : status;
    }
    return device_leave(device, status);
}
