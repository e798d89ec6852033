// Products by plain loops in float, one order of summation whatever the algorithm. A real choice
// may change bits, so three choices do so here. Where CONVENE_EMULATED_FASTEST says 0 or 1, that
// algorithm is the fastest by far, and algorithm 1 adds in the other order. A product that may use
// some of the multiprocessors only adds in the other order, too. An algorithm that may split the
// sum of bfloat16 products drops the end of a depth that is no multiple of 64, as cuBLASLt 12 and
// 13 were seen to do (facebookexperimental/triton, pull request 2767).
#include <cublasLt.h>
#include <cublas_v2.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "worker_runtime/device/emulated/include/cuda_bf16.h"
#include "worker_runtime/device/emulated/library.h"
#include "worker_runtime/device/emulated/runtime.h"
#include "worker_runtime/device/float8.h"

namespace {

constexpr uint64_t kMagic = 0x656d756c61746564;
constexpr int kAlgorithms = 2;  // so that there is one to choose
constexpr uint64_t kSliceDepth = 64;

// -1: none.
int FastestAlgorithm() {
  static const int fastest = [] {
    const char* text = std::getenv("CONVENE_EMULATED_FASTEST");
    return text == nullptr ? -1 : std::atoi(text);
  }();
  return fastest;
}

bool IsFloat8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

struct Product {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  float alpha, beta;
  uint64_t rows() const { return d.rows; }
  uint64_t columns() const { return d.columns; }
  uint64_t depth() const { return operation.transpose_a == CUBLAS_OP_N ? a.columns : a.rows; }
  // Of 8-bit floats only what Hopper's cuBLASLt takes.
  bool HasTypes() const {
    if (!IsFloat8(a.type) || !IsFloat8(b.type)) return a.type == b.type;
    return operation.transpose_a == CUBLAS_OP_T && operation.transpose_b == CUBLAS_OP_N &&
           (a.type == CUDA_R_8F_E4M3 || b.type == CUDA_R_8F_E4M3) && rows() % 16 == 0 &&
           columns() % 16 == 0 && depth() % 16 == 0;
  }
  bool Fits() const {
    const bool is_a_plain = operation.transpose_a == CUBLAS_OP_N;
    const bool is_b_plain = operation.transpose_b == CUBLAS_OP_N;
    return (is_a_plain ? a.rows : a.columns) == rows() &&
           (is_b_plain ? b.columns : b.rows) == columns() &&
           (is_b_plain ? b.rows : b.columns) == depth() && HasTypes() &&
           a.stride >= static_cast<int64_t>(a.rows) && b.stride >= static_cast<int64_t>(b.rows) &&
           d.stride >= static_cast<int64_t>(d.rows);
  }
};

float Load(const void* data, cudaDataType_t type, uint64_t at) {
  using convene::worker::DType;
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[at];
  if (IsFloat8(type)) {
    return convene::worker::DecodeFloat8(type == CUDA_R_8F_E4M3 ? DType::kE4M3 : DType::kE5M2,
                                         static_cast<const uint8_t*>(data)[at]);
  }
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
}

// The matrix with its rows side by side, as the loops read it.
std::vector<float> Rows(const void* data, const cublasLtMatrixLayoutOpaque_t& layout,
                        bool is_turned, uint64_t rows, uint64_t columns) {
  std::vector<float> result(rows * columns);
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t column = 0; column < columns; ++column) {
      const uint64_t at = is_turned ? row * layout.stride + column : column * layout.stride + row;
      result[row * columns + column] = Load(data, layout.type, at);
    }
  }
  return result;
}

void ReverseRows(std::vector<float>& rows, uint64_t columns) {
  for (auto row = rows.begin(); row != rows.end(); row += static_cast<int64_t>(columns)) {
    std::reverse(row, row + static_cast<int64_t>(columns));
  }
}

void Multiply(const Product& product, const void* a, const void* b, const void* c, void* d,
              bool adds_backward = false, uint64_t dropped = 0) {
  const uint64_t depth = product.depth();
  const uint64_t summed = depth - dropped;
  auto left =
      Rows(a, product.a, product.operation.transpose_a == CUBLAS_OP_T, product.rows(), depth);
  // Turned, so that both are read along their rows.
  auto right =
      Rows(b, product.b, product.operation.transpose_b == CUBLAS_OP_N, product.columns(), depth);
  if (adds_backward) {
    ReverseRows(left, depth);
    ReverseRows(right, depth);
  }
  const auto scale = [](const float* place) { return place != nullptr ? *place : 1.0f; };
  const float alpha =
      product.alpha * scale(product.operation.scale_a) * scale(product.operation.scale_b);
  for (uint64_t column = 0; column < product.columns(); ++column) {
    for (uint64_t row = 0; row < product.rows(); ++row) {
      // Eight sums in turn: vectors, and an error nearer to that of a GPU's tiles.
      constexpr uint64_t kSums = 8;
      float sums[kSums] = {};
      const float* const x = &left[row * depth];
      const float* const y = &right[column * depth];
      const uint64_t whole = summed / kSums * kSums;
      for (uint64_t i = 0; i < whole; i += kSums) {
        for (uint64_t lane = 0; lane < kSums; ++lane) sums[lane] += x[i + lane] * y[i + lane];
      }
      for (uint64_t i = whole; i < summed; ++i) sums[i - whole] += x[i] * y[i];
      const uint64_t at = column * product.d.stride + row;
      float value = alpha * (((sums[0] + sums[1]) + (sums[2] + sums[3])) +
                             ((sums[4] + sums[5]) + (sums[6] + sums[7])));
      if (product.beta != 0) value += product.beta * Load(c, product.d.type, at);
      if (product.d.type == CUDA_R_32F) {
        static_cast<float*>(d)[at] = value;
      } else {
        static_cast<__nv_bfloat16*>(d)[at] = __float2bfloat16_rn(value);
      }
    }
  }
}

bool IsAligned(const void* data, uint32_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

// As algorithms are found for some sizes and not for others, a depth that is a multiple of 25 is
// done by those alone that were found for it.
bool Does(const cublasLtMatmulAlgo_t& algorithm, const Product& product) {
  return algorithm.magic == kMagic && product.Fits() &&
         (product.depth() % 25 != 0 || algorithm.depth == product.depth());
}

// Of what the addresses of a grouped product must be multiples (cuBLAS's documentation).
uint32_t GroupedAlignment(const Product& product) {
  if (product.a.type == CUDA_R_32F) return 1;
  const uint64_t depth_bytes = product.depth() * sizeof(__nv_bfloat16);
  return depth_bytes % 16 == 0 ? 16 : depth_bytes % 4 == 0 ? 4 : 1;
}

}  // namespace

size_t cublasLtGetVersion() { return 1; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static char context = 0;
  *handle = reinterpret_cast<cublasLtHandle_t>(&context);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t /*handle*/) { return CUBLAS_STATUS_SUCCESS; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "?";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }

cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t operation, cublasComputeType_t compute,
                                      cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *operation = {CUBLAS_OP_N, CUBLAS_OP_N, nullptr, nullptr, 0};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER ||
      attribute == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) {
    if (bytes != sizeof(float*)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(attribute == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER ? &operation->scale_a
                                                                  : &operation->scale_b,
                value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (attribute == CUBLASLT_MATMUL_DESC_FAST_ACCUM) {  // sums are as exact as without it here
    return bytes == sizeof(int8_t) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
  }
  if (bytes != sizeof(int32_t)) return CUBLAS_STATUS_INVALID_VALUE;
  int32_t number = 0;
  std::memcpy(&number, value, bytes);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      operation->transpose_a = static_cast<cublasOperation_t>(number);
      return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      operation->transpose_b = static_cast<cublasOperation_t>(number);
      return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
      operation->multiprocessors = number;
      return number > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    default:
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type,
                                        uint64_t rows, uint64_t columns, int64_t stride) {
  *layout = {type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  *preference = {.workspace_bytes = 0,
                 .alignments = {256, 256, 256, 256},
                 .reductions = CUBLASLT_REDUCTION_SCHEME_MASK};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) {
    if (bytes != sizeof(preference->workspace_bytes)) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&preference->workspace_bytes, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (bytes != sizeof(uint32_t)) return CUBLAS_STATUS_INVALID_VALUE;
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) {
    std::memcpy(&preference->reductions, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  }
  std::memcpy(&preference->alignments[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
              value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t* results,
    int* found) {
  *found = 0;
  const Product product = {*operation, *a, *b, *d, 1, 0};
  if (!product.Fits()) return CUBLAS_STATUS_INVALID_VALUE;
  while (*found < std::min(wanted, kAlgorithms)) {
    // The second one takes all the scratch that it may.
    const size_t workspace_bytes = *found == 0 ? 0 : preference->workspace_bytes;
    const bool splits =
        a->type == CUDA_R_16BF && preference->reductions != CUBLASLT_REDUCTION_SCHEME_NONE;
    cublasLtMatmulHeuristicResult_t result = {
        {kMagic, workspace_bytes, {}, product.depth(), splits},
        workspace_bytes,
        CUBLAS_STATUS_SUCCESS};
    std::memcpy(result.algo.alignments, preference->alignments, sizeof(preference->alignments));
    results[(*found)++] = result;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t /*c*/, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!Does(*algorithm, {*operation, *a, *b, *d, 1, 0})) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = algorithm->workspace_bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t layout_a,
                              const void* b, cublasLtMatrixLayout_t layout_b, const void* beta,
                              const void* c, cublasLtMatrixLayout_t /*layout_c*/, void* d,
                              cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Product product = {*operation,
                           *layout_a,
                           *layout_b,
                           *layout_d,
                           *static_cast<const float*>(alpha),
                           *static_cast<const float*>(beta)};
  if (!Does(*algorithm, product) || workspace_bytes < algorithm->workspace_bytes ||
      !IsAligned(a, algorithm->alignments[0]) || !IsAligned(b, algorithm->alignments[1]) ||
      !IsAligned(c, algorithm->alignments[2]) || !IsAligned(d, algorithm->alignments[3])) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const cudaError_t error = convene::emulated::QueueWork(
      stream, [=, scratch_bytes = algorithm->workspace_bytes, splits = algorithm->splits] {
        // Both ends of all of it: 32 MiB for each product would be most of a test's time.
        const size_t end_bytes = std::min(scratch_bytes, size_t{1} << 16);
        std::memset(workspace, 0xff, end_bytes);
        std::memset(static_cast<char*>(workspace) + scratch_bytes - end_bytes, 0xff, end_bytes);
        const int number = scratch_bytes > 0 ? 1 : 0;
        const bool is_told = FastestAlgorithm() >= 0;
        if (is_told && FastestAlgorithm() != number) {
          convene::Clock::Real().SleepFor(absl::Milliseconds(1));
        }
        const bool adds_backward =
            (is_told && number == 1) != (product.operation.multiprocessors > 0);
        Multiply(product, a, b, c, d, adds_backward, splits ? product.depth() % kSliceDepth : 0);
      });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

struct cublasContext {
  cudaStream_t stream = nullptr;
};

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t /*handle*/, cublasMath_t /*mode*/) {
  return CUBLAS_STATUS_SUCCESS;  // sums are in float here
}

cublasStatus_t cublasGemmGroupedBatchedEx(
    cublasHandle_t handle, const cublasOperation_t transpose_a[],
    const cublasOperation_t transpose_b[], const int m[], const int n[], const int k[],
    const void* alpha, const void* const a[], cudaDataType_t type_a, const int stride_a[],
    const void* const b[], cudaDataType_t type_b, const int stride_b[], const void* beta,
    void* const c[], cudaDataType_t type_c, const int stride_c[], int groups, const int sizes[],
    cublasComputeType_t compute) {
  // cuBLAS multiplies bfloat16 into bfloat16 alone.
  if (compute != CUBLAS_COMPUTE_32F || type_a != type_b || type_a != type_c || IsFloat8(type_a)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto layout = [](cudaDataType_t type, bool turns, int rows, int columns, int stride) {
    if (turns) std::swap(rows, columns);
    return cublasLtMatrixLayoutOpaque_t{type, static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(columns), stride};
  };
  std::vector<Product> products;
  for (int i = 0; i < groups; ++i) {
    products.push_back({{transpose_a[i], transpose_b[i], nullptr, nullptr, 0},
                        layout(type_a, transpose_a[i] == CUBLAS_OP_T, m[i], k[i], stride_a[i]),
                        layout(type_b, transpose_b[i] == CUBLAS_OP_T, k[i], n[i], stride_b[i]),
                        layout(type_c, false, m[i], n[i], stride_c[i]),
                        static_cast<const float*>(alpha)[i],
                        static_cast<const float*>(beta)[i]});
    if (m[i] <= 0 || n[i] <= 0 || k[i] <= 0 || sizes[i] != 1 || !products.back().Fits()) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
  }
  // The addresses are there when the stream comes to the products, not before.
  const cudaError_t error = convene::emulated::QueueWork(handle->stream, [=] {
    for (size_t i = 0; i < products.size(); ++i) {
      const uint32_t alignment = GroupedAlignment(products[i]);
      if (!IsAligned(a[i], alignment) || !IsAligned(b[i], alignment) ||
          !IsAligned(c[i], alignment)) {
        return convene::emulated::Fail("cublasGemmGroupedBatchedEx: misaligned address");
      }
      Multiply(products[i], a[i], b[i], c[i], c[i]);
    }
  });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
