// Stands for cuDNN's header: the calls that a queue makes. A file that calls more of cuDNN is
// compiled with its own header, and linked with ../cudnn. In a program without that every call here
// fails.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

// NOLINTBEGIN: cuDNN's names

typedef struct cudnnContext* cudnnHandle_t;
typedef enum { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_NOT_INITIALIZED = 1001 } cudnnStatus_t;

extern "C" {
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);
const char* cudnnGetErrorString(cudnnStatus_t status);
void cudnnGetLastErrorString(char* message, size_t bytes);
}

// NOLINTEND
