// From the contracts in this folder to the device that the stream belongs to.
#include "worker_runtime/ops/cpu/cpu_ops.h"
#ifdef CONVENE_CUDA
#include "worker_runtime/ops/cuda/cuda_ops.h"
#include "worker_runtime/ops/cuda/matmul/matmul_plans.h"
#endif

#include "tools/base/check.h"
#include "worker_runtime/device/op_profile.h"

// In a program without CUDA nobody can have made a CUDA stream.
#ifdef CONVENE_CUDA
#define CONVENE_DISPATCH(kind, call) return (kind) == DeviceKind::kCuda ? cuda::call : cpu::call
#else
#define CONVENE_DISPATCH(kind, call)         \
  CONVENE_CHECK((kind) == DeviceKind::kCpu); \
  return cpu::call
#endif
#define CONVENE_QUEUE(call)              \
  const OpScope scope(stream, __func__); \
  CONVENE_DISPATCH(stream.kind(), call)

namespace convene::worker {

template <typename In, typename Out>
void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k, const In* a,
            const In* b, float beta, Out* c, Stream& stream) {
  CONVENE_QUEUE(MatMul(transpose_a, transpose_b, m, n, k, a, b, beta, c, stream));
}

void SetDeterministicMatMul([[maybe_unused]] bool is_deterministic) {
#ifdef CONVENE_CUDA
  cuda::SetMatMulMode(is_deterministic ? cuda::MatMulMode::kDeterministic
                                       : cuda::MatMulMode::kTimed);
#endif
}

template <typename T>
void RmsNormForward(int rows, int columns, const T* x, const T* weight, float epsilon, T* y,
                    float* inverse_rms, Stream& stream) {
  CONVENE_QUEUE(RmsNormForward(rows, columns, x, weight, epsilon, y, inverse_rms, stream));
}

template <typename T>
void AddRmsNormForward(int rows, int columns, const T* x, const T* delta, const T* weight,
                       float epsilon, T* sum, T* y, float* inverse_rms, Stream& stream) {
  CONVENE_QUEUE(
      AddRmsNormForward(rows, columns, x, delta, weight, epsilon, sum, y, inverse_rms, stream));
}

template <typename T>
void RmsNormAgain(int rows, int columns, const T* x, const T* weight, const float* inverse_rms,
                  T* y, Stream& stream) {
  CONVENE_QUEUE(RmsNormAgain(rows, columns, x, weight, inverse_rms, y, stream));
}

size_t RmsNormWorkspaceBytes(int rows, int columns, DeviceKind device) {
  CONVENE_DISPATCH(device, RmsNormWorkspaceBytes(rows, columns));
}

template <typename T>
void RmsNormBackward(int rows, int columns, const T* x, const T* weight, const float* inverse_rms,
                     const T* dy, bool add_to_dx, T* dx, bool add_to_dweight, float* dweight,
                     const Workspace& workspace, Stream& stream) {
  CONVENE_QUEUE(RmsNormBackward(rows, columns, x, weight, inverse_rms, dy, add_to_dx, dx,
                                add_to_dweight, dweight, workspace, stream));
}

template <typename T>
void RopeApply(int batch, int sequence_length, int heads, int head_size, int row_stride,
               const float* cosines, const float* sines, const int32_t* document_begin,
               bool inverse, T* x, Stream& stream) {
  CONVENE_QUEUE(RopeApply(batch, sequence_length, heads, head_size, row_stride, cosines, sines,
                          document_begin, inverse, x, stream));
}

template <typename T>
void SwigluForward(int rows, int width, const T* gate_up, T* y, Stream& stream) {
  CONVENE_QUEUE(SwigluForward(rows, width, gate_up, y, stream));
}

template <typename T>
void SwigluBackward(int rows, int width, const T* gate_up, const T* dy, T* dgate_up,
                    Stream& stream) {
  CONVENE_QUEUE(SwigluBackward(rows, width, gate_up, dy, dgate_up, stream));
}

template <typename T>
void EmbeddingForward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                      const int32_t* tokens, const T* table, T* y, Stream& stream) {
  CONVENE_QUEUE(
      EmbeddingForward(rows, columns, vocabulary_begin, vocabulary_end, tokens, table, y, stream));
}

size_t EmbeddingWorkspaceBytes(int rows, int columns, DeviceKind device) {
  CONVENE_DISPATCH(device, EmbeddingWorkspaceBytes(rows, columns));
}

template <typename T>
void EmbeddingBackward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                       const int32_t* tokens, const T* dy, float* dtable,
                       const Workspace& workspace, Stream& stream) {
  CONVENE_QUEUE(EmbeddingBackward(rows, columns, vocabulary_begin, vocabulary_end, tokens, dy,
                                  dtable, workspace, stream));
}

template <typename T>
void CrossEntropyStatistics(int rows, int vocabulary_begin, int vocabulary_end,
                            const int32_t* targets, const T* logits, float* row_max, float* sums,
                            Stream& stream) {
  CONVENE_QUEUE(CrossEntropyStatistics(rows, vocabulary_begin, vocabulary_end, targets, logits,
                                       row_max, sums, stream));
}

void CrossEntropyRescale(int rows, const float* slice_max, const float* row_max, float* sums,
                         Stream& stream) {
  CONVENE_QUEUE(CrossEntropyRescale(rows, slice_max, row_max, sums, stream));
}

size_t CrossEntropyWorkspaceBytes(int rows, DeviceKind device) {
  CONVENE_DISPATCH(device, CrossEntropyWorkspaceBytes(rows));
}

void CrossEntropyLoss(int rows, const int32_t* targets, const float* row_max, const float* sums,
                      double* loss_sum, const Workspace& workspace, Stream& stream) {
  CONVENE_QUEUE(CrossEntropyLoss(rows, targets, row_max, sums, loss_sum, workspace, stream));
}

template <typename T>
void CrossEntropyGradient(int rows, int vocabulary_begin, int vocabulary_end,
                          const int32_t* targets, const float* row_max, const float* sums,
                          const float* gradient_scale, T* logits, Stream& stream) {
  CONVENE_QUEUE(CrossEntropyGradient(rows, vocabulary_begin, vocabulary_end, targets, row_max, sums,
                                     gradient_scale, logits, stream));
}

template <typename T>
void AddInPlace(int64_t count, const T* x, T* y, Stream& stream) {
  CONVENE_QUEUE(AddInPlace(count, x, y, stream));
}

void Copy(int64_t count, const float* x, float* y, Stream& stream) {
  CONVENE_QUEUE(Copy(count, x, y, stream));
}

void ToBFloat16(int64_t count, const float* x, BFloat16* y, Stream& stream) {
  CONVENE_QUEUE(ToBFloat16(count, x, y, stream));
}

void ToFloat(int64_t count, const BFloat16* x, float* y, Stream& stream) {
  CONVENE_QUEUE(ToFloat(count, x, y, stream));
}

size_t SumOfSquaresWorkspaceBytes(int64_t count, DeviceKind device) {
  CONVENE_DISPATCH(device, SumOfSquaresWorkspaceBytes(count));
}

void SumOfSquares(int64_t count, const float* x, const uint8_t* flags, double* sum,
                  const Workspace& workspace, Stream& stream) {
  CONVENE_QUEUE(SumOfSquares(count, x, flags, sum, workspace, stream));
}

void DecideStep(const double* sum_of_squares, double max_norm, StepControl* control,
                Stream& stream) {
  CONVENE_QUEUE(DecideStep(sum_of_squares, max_norm, control, stream));
}

template <typename T>
void AdamW(int64_t count, const AdamWFactors* factors, const StepControl* control,
           const uint8_t* flags, const float* gradients, float* master, T* weights,
           float* first_moment, float* second_moment, Stream& stream) {
  CONVENE_QUEUE(AdamW(count, factors, control, flags, gradients, master, weights, first_moment,
                      second_moment, stream));
}

template <typename T>
size_t AttentionWorkspaceBytes(const AttentionShape& shape, DeviceKind device) {
  CONVENE_DISPATCH(device, AttentionWorkspaceBytes<T>(shape));
}

template <typename T>
void AttentionForward(const AttentionShape& shape, const Documents& documents, const T* qkv, T* out,
                      float* log_sum_exp, const Workspace& workspace, Stream& stream) {
  CONVENE_CHECK(shape.packed == (documents.begin != nullptr));
  CONVENE_QUEUE(AttentionForward(shape, documents, qkv, out, log_sum_exp, workspace, stream));
}

template <typename T>
void AttentionBackward(const AttentionShape& shape, const Documents& documents, const T* qkv,
                       const T* out, const float* log_sum_exp, const T* dout, T* dqkv,
                       const Workspace& workspace, Stream& stream) {
  CONVENE_CHECK(shape.packed == (documents.begin != nullptr));
  CONVENE_QUEUE(
      AttentionBackward(shape, documents, qkv, out, log_sum_exp, dout, dqkv, workspace, stream));
}

#undef CONVENE_QUEUE
#undef CONVENE_DISPATCH

template void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k,
                     const float* a, const float* b, float beta, float* c, Stream& stream);
template void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k,
                     const BFloat16* a, const BFloat16* b, float beta, BFloat16* c, Stream& stream);
template void MatMul(Transpose transpose_a, Transpose transpose_b, int m, int n, int k,
                     const BFloat16* a, const BFloat16* b, float beta, float* c, Stream& stream);
template void RmsNormForward(int rows, int columns, const float* x, const float* weight,
                             float epsilon, float* y, float* inverse_rms, Stream& stream);
template void RmsNormForward(int rows, int columns, const BFloat16* x, const BFloat16* weight,
                             float epsilon, BFloat16* y, float* inverse_rms, Stream& stream);
template void AddRmsNormForward(int rows, int columns, const float* x, const float* delta,
                                const float* weight, float epsilon, float* sum, float* y,
                                float* inverse_rms, Stream& stream);
template void AddRmsNormForward(int rows, int columns, const BFloat16* x, const BFloat16* delta,
                                const BFloat16* weight, float epsilon, BFloat16* sum, BFloat16* y,
                                float* inverse_rms, Stream& stream);
template void RmsNormAgain(int rows, int columns, const float* x, const float* weight,
                           const float* inverse_rms, float* y, Stream& stream);
template void RmsNormAgain(int rows, int columns, const BFloat16* x, const BFloat16* weight,
                           const float* inverse_rms, BFloat16* y, Stream& stream);
template void RmsNormBackward(int rows, int columns, const float* x, const float* weight,
                              const float* inverse_rms, const float* dy, bool add_to_dx, float* dx,
                              bool add_to_dweight, float* dweight, const Workspace& workspace,
                              Stream& stream);
template void RmsNormBackward(int rows, int columns, const BFloat16* x, const BFloat16* weight,
                              const float* inverse_rms, const BFloat16* dy, bool add_to_dx,
                              BFloat16* dx, bool add_to_dweight, float* dweight,
                              const Workspace& workspace, Stream& stream);
template void RopeApply(int batch, int sequence_length, int heads, int head_size, int row_stride,
                        const float* cosines, const float* sines, const int32_t* document_begin,
                        bool inverse, float* x, Stream& stream);
template void RopeApply(int batch, int sequence_length, int heads, int head_size, int row_stride,
                        const float* cosines, const float* sines, const int32_t* document_begin,
                        bool inverse, BFloat16* x, Stream& stream);
template void SwigluForward(int rows, int width, const float* gate_up, float* y, Stream& stream);
template void SwigluForward(int rows, int width, const BFloat16* gate_up, BFloat16* y,
                            Stream& stream);
template void SwigluBackward(int rows, int width, const float* gate_up, const float* dy,
                             float* dgate_up, Stream& stream);
template void SwigluBackward(int rows, int width, const BFloat16* gate_up, const BFloat16* dy,
                             BFloat16* dgate_up, Stream& stream);
template void EmbeddingForward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                               const int32_t* tokens, const float* table, float* y, Stream& stream);
template void EmbeddingForward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                               const int32_t* tokens, const BFloat16* table, BFloat16* y,
                               Stream& stream);
template void EmbeddingBackward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                                const int32_t* tokens, const float* dy, float* dtable,
                                const Workspace& workspace, Stream& stream);
template void EmbeddingBackward(int rows, int columns, int vocabulary_begin, int vocabulary_end,
                                const int32_t* tokens, const BFloat16* dy, float* dtable,
                                const Workspace& workspace, Stream& stream);
template void CrossEntropyStatistics(int rows, int vocabulary_begin, int vocabulary_end,
                                     const int32_t* targets, const float* logits, float* row_max,
                                     float* sums, Stream& stream);
template void CrossEntropyStatistics(int rows, int vocabulary_begin, int vocabulary_end,
                                     const int32_t* targets, const BFloat16* logits, float* row_max,
                                     float* sums, Stream& stream);
template void CrossEntropyGradient(int rows, int vocabulary_begin, int vocabulary_end,
                                   const int32_t* targets, const float* row_max, const float* sums,
                                   const float* gradient_scale, float* logits, Stream& stream);
template void CrossEntropyGradient(int rows, int vocabulary_begin, int vocabulary_end,
                                   const int32_t* targets, const float* row_max, const float* sums,
                                   const float* gradient_scale, BFloat16* logits, Stream& stream);
template void AddInPlace(int64_t count, const float* x, float* y, Stream& stream);
template void AddInPlace(int64_t count, const BFloat16* x, BFloat16* y, Stream& stream);
template void AdamW(int64_t count, const AdamWFactors* factors, const StepControl* control,
                    const uint8_t* flags, const float* gradients, float* master, float* weights,
                    float* first_moment, float* second_moment, Stream& stream);
template void AdamW(int64_t count, const AdamWFactors* factors, const StepControl* control,
                    const uint8_t* flags, const float* gradients, float* master, BFloat16* weights,
                    float* first_moment, float* second_moment, Stream& stream);
template size_t AttentionWorkspaceBytes<float>(const AttentionShape& shape, DeviceKind device);
template size_t AttentionWorkspaceBytes<BFloat16>(const AttentionShape& shape, DeviceKind device);
template void AttentionForward(const AttentionShape& shape, const Documents& documents,
                               const float* qkv, float* out, float* log_sum_exp,
                               const Workspace& workspace, Stream& stream);
template void AttentionForward(const AttentionShape& shape, const Documents& documents,
                               const BFloat16* qkv, BFloat16* out, float* log_sum_exp,
                               const Workspace& workspace, Stream& stream);
template void AttentionBackward(const AttentionShape& shape, const Documents& documents,
                                const float* qkv, const float* out, const float* log_sum_exp,
                                const float* dout, float* dqkv, const Workspace& workspace,
                                Stream& stream);
template void AttentionBackward(const AttentionShape& shape, const Documents& documents,
                                const BFloat16* qkv, const BFloat16* out, const float* log_sum_exp,
                                const BFloat16* dout, BFloat16* dqkv, const Workspace& workspace,
                                Stream& stream);

}  // namespace convene::worker
