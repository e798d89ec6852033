// Stands for cuBLAS's header: grouped products alone.
#pragma once

#include <cublasLt.h>

// NOLINTBEGIN: cuBLAS's names

typedef struct cublasContext* cublasHandle_t;
enum cublasMath_t {
  CUBLAS_DEFAULT_MATH = 0,
  CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16,
};

cublasStatus_t cublasCreate(cublasHandle_t* handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
// The arrays of pointers are in the GPU's memory, the others in the host's. Groups of one product.
cublasStatus_t cublasGemmGroupedBatchedEx(
    cublasHandle_t handle, const cublasOperation_t transpose_a[],
    const cublasOperation_t transpose_b[], const int m[], const int n[], const int k[],
    const void* alpha, const void* const a[], cudaDataType_t type_a, const int stride_a[],
    const void* const b[], cudaDataType_t type_b, const int stride_b[], const void* beta,
    void* const c[], cudaDataType_t type_c, const int stride_c[], int groups, const int sizes[],
    cublasComputeType_t compute);

// NOLINTEND
