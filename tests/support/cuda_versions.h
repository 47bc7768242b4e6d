/* The versions of driver calls that the library looks up: a libcuda.so.1 that includes this before driver/driver.h
 * defines them under these names. */
#ifndef TESTS_CUDA_VERSIONS_H
#define TESTS_CUDA_VERSIONS_H
#define cuDeviceTotalMem          cuDeviceTotalMem_v2
#define cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2
#define cuCtxPushCurrent          cuCtxPushCurrent_v2
#define cuCtxPopCurrent           cuCtxPopCurrent_v2
#define cuMemAlloc                cuMemAlloc_v2
#define cuMemFree                 cuMemFree_v2
#define cuMemHostGetDevicePointer cuMemHostGetDevicePointer_v2
#define cuMemcpyHtoDAsync         cuMemcpyHtoDAsync_v2
#define cuMemcpyDtoHAsync         cuMemcpyDtoHAsync_v2
#define cuMemcpyDtoDAsync         cuMemcpyDtoDAsync_v2
#define cuStreamDestroy           cuStreamDestroy_v2
#define cuEventDestroy            cuEventDestroy_v2
#endif
