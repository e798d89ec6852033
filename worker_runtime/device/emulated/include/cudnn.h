// Stands for cuDNN's header: the emulated GPU has no cuDNN, and every call says so.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

// NOLINTBEGIN: cuDNN's names

typedef struct cudnnContext* cudnnHandle_t;
enum cudnnStatus_t { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_NOT_INITIALIZED = 1001 };

inline cudnnStatus_t cudnnCreate(cudnnHandle_t* /*handle*/) { return CUDNN_STATUS_NOT_INITIALIZED; }
inline cudnnStatus_t cudnnDestroy(cudnnHandle_t /*handle*/) { return CUDNN_STATUS_NOT_INITIALIZED; }
inline cudnnStatus_t cudnnSetStream(cudnnHandle_t /*handle*/, cudaStream_t /*stream*/) {
  return CUDNN_STATUS_NOT_INITIALIZED;
}
inline const char* cudnnGetErrorString(cudnnStatus_t /*status*/) {
  return "the emulated GPU has no cuDNN";
}
inline void cudnnGetLastErrorString(char* /*message*/, size_t /*bytes*/) {}

// NOLINTEND
