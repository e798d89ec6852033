// The calls of include/cudnn.h in a program without cuDNN. Weak: cudnn/ has the same functions.
#include <cudnn.h>

extern "C" {

__attribute__((weak)) cudnnStatus_t cudnnCreate(cudnnHandle_t* /*handle*/) {
  return CUDNN_STATUS_NOT_INITIALIZED;
}
__attribute__((weak)) cudnnStatus_t cudnnDestroy(cudnnHandle_t /*handle*/) {
  return CUDNN_STATUS_NOT_INITIALIZED;
}
__attribute__((weak)) cudnnStatus_t cudnnSetStream(cudnnHandle_t /*handle*/,
                                                   cudaStream_t /*stream*/) {
  return CUDNN_STATUS_NOT_INITIALIZED;
}
__attribute__((weak)) const char* cudnnGetErrorString(cudnnStatus_t /*status*/) {
  return "the emulated GPU has no cuDNN";
}
__attribute__((weak)) void cudnnGetLastErrorString(char* /*message*/, size_t /*bytes*/) {}

}  // extern "C"
