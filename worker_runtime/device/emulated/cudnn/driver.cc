// Stands for the driver, libcuda.so.1: cuDNN looks for these functions when it builds a plan, and
// calls the three that load the kernel which it compiled. Nothing of it runs.
namespace {
constexpr int kSuccess = 0;
constexpr int kNotSupported = 801;  // CUDA_ERROR_NOT_SUPPORTED
char something = 0;                 // a library, or a kernel
}  // namespace

extern "C" {

int cuLibraryLoadData(void** library) {
  *library = &something;
  return kSuccess;
}
int cuLibraryGetKernel(void** kernel) {
  *kernel = &something;
  return kSuccess;
}
int cuLibraryUnload() { return kSuccess; }

#define CONVENE_REFUSED(name) \
  int name() { return kNotSupported; }
CONVENE_REFUSED(cuCtxGetCurrent)
CONVENE_REFUSED(cuCtxGetDevice)
CONVENE_REFUSED(cuCtxGetLimit)
CONVENE_REFUSED(cuCtxPopCurrent)
CONVENE_REFUSED(cuCtxPushCurrent)
CONVENE_REFUSED(cuDeviceGet)
CONVENE_REFUSED(cuDeviceGetAttribute)
CONVENE_REFUSED(cuDeviceGetCount)
CONVENE_REFUSED(cuDevicePrimaryCtxRelease)
CONVENE_REFUSED(cuDevicePrimaryCtxReset)
CONVENE_REFUSED(cuDevicePrimaryCtxRetain)
CONVENE_REFUSED(cuDriverGetVersion)
CONVENE_REFUSED(cuFuncGetAttribute)
CONVENE_REFUSED(cuFuncSetAttribute)
CONVENE_REFUSED(cuGetErrorName)
CONVENE_REFUSED(cuGetErrorString)
CONVENE_REFUSED(cuInit)
CONVENE_REFUSED(cuKernelGetAttribute)
CONVENE_REFUSED(cuKernelSetAttribute)
CONVENE_REFUSED(cuLaunchCooperativeKernel)
CONVENE_REFUSED(cuLaunchKernel)
CONVENE_REFUSED(cuLaunchKernelEx)
CONVENE_REFUSED(cuLibraryLoadFromFile)
CONVENE_REFUSED(cuLinkAddData)
CONVENE_REFUSED(cuLinkAddData_v2)
CONVENE_REFUSED(cuLinkAddFile_v2)
CONVENE_REFUSED(cuLinkComplete)
CONVENE_REFUSED(cuLinkCreate)
CONVENE_REFUSED(cuLinkCreate_v2)
CONVENE_REFUSED(cuLinkDestroy)
CONVENE_REFUSED(cuMemcpyDtoH_v2)
CONVENE_REFUSED(cuModuleGetFunction)
CONVENE_REFUSED(cuModuleGetGlobal_v2)
CONVENE_REFUSED(cuModuleLoadData)
CONVENE_REFUSED(cuModuleLoadDataEx)
CONVENE_REFUSED(cuModuleLoadFatBinary)
CONVENE_REFUSED(cuModuleUnload)
CONVENE_REFUSED(cuOccupancyMaxActiveBlocksPerMultiprocessor)
CONVENE_REFUSED(cuOccupancyMaxPotentialClusterSize)
CONVENE_REFUSED(cuStreamGetCtx)
CONVENE_REFUSED(cuStreamSynchronize)
CONVENE_REFUSED(cuTensorMapEncodeTiled)

}  // extern "C"
