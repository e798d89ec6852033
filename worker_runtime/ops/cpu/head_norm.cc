#include "worker_runtime/ops/head_norm.h"

#include <cmath>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr double kForwardNanoseconds = 0.25;  // an element
constexpr double kBackwardNanoseconds = 0.3;

template <typename T>
CONVENE_CPU_CLONES void ForwardRow(int heads, int size, const T* weight, float offset,
                                   float epsilon, T* x, T* kept, float* inverse_rms) {
  for (int head = 0; head < heads; ++head, x += size, kept += size) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int i = 0; i < size; ++i) {
      kept[i] = x[i];
      sum += Widen(x[i]) * Widen(x[i]);
    }
    const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(size) + epsilon);
    inverse_rms[head] = inverse;
#pragma omp simd
    for (int i = 0; i < size; ++i)
      Narrow(Widen(x[i]) * inverse * (Widen(weight[i]) + offset), &x[i]);
  }
}

// dx = inverse_rms * (dy * weight) - projection * x, as in RmsNormBackward.
template <typename T>
CONVENE_CPU_CLONES void BackwardRow(int heads, int size, const T* kept, const T* weight,
                                    float offset, const float* inverse_rms, T* dx) {
  for (int head = 0; head < heads; ++head, dx += size, kept += size) {
    const float inverse = inverse_rms[head];
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int i = 0; i < size; ++i)
      dot += Widen(dx[i]) * (Widen(weight[i]) + offset) * Widen(kept[i]);
    const float projection = dot * inverse * inverse * inverse / static_cast<float>(size);
#pragma omp simd
    for (int i = 0; i < size; ++i) {
      Narrow(inverse * (Widen(dx[i]) * (Widen(weight[i]) + offset)) - projection * Widen(kept[i]),
             &dx[i]);
    }
  }
}

template <typename T>
CONVENE_CPU_CLONES void AddWeightRow(int heads, int size, const T* kept, const float* inverse_rms,
                                     const T* dy, float* dweight) {
  for (int head = 0; head < heads; ++head, dy += size, kept += size) {
    const float inverse = inverse_rms[head];
#pragma omp simd
    for (int i = 0; i < size; ++i) dweight[i] += Widen(dy[i]) * Widen(kept[i]) * inverse;
  }
}

}  // namespace

template <typename T>
void HeadNormForward(const HeadRows& shape, int stride, const T* weight, float offset,
                     float epsilon, T* x, T* kept, float* inverse_rms, Stream& /*stream*/) {
  const int width = shape.heads * shape.size;
  ForPieces(kForwardNanoseconds * static_cast<double>(shape.count()), shape.rows, [=](int64_t row) {
    ForwardRow(shape.heads, shape.size, weight, offset, epsilon, x + row * stride,
               kept + row * width, inverse_rms + row * shape.heads);
  });
}

size_t HeadNormWorkspaceBytes(const HeadRows& /*shape*/) { return 0; }

// The weight's sum has one thread: a head has few columns, and rows are added in their order.
template <typename T>
void HeadNormBackward(const HeadRows& shape, int stride, const T* kept, const T* weight,
                      float offset, const float* inverse_rms, T* dx, bool adds, float* dweight,
                      const Workspace& /*workspace*/, Stream& /*stream*/) {
  const int width = shape.heads * shape.size;
  if (!adds && dweight != nullptr) {
    for (int i = 0; i < shape.size; ++i) dweight[i] = 0;
  }
  for (int64_t row = 0; dweight != nullptr && row < shape.rows; ++row) {
    AddWeightRow(shape.heads, shape.size, kept + row * width, inverse_rms + row * shape.heads,
                 dx + row * stride, dweight);
  }
  ForPieces(kBackwardNanoseconds * static_cast<double>(shape.count()), shape.rows,
            [=](int64_t row) {
              BackwardRow(shape.heads, shape.size, kept + row * width, weight, offset,
                          inverse_rms + row * shape.heads, dx + row * stride);
            });
}

CONVENE_INSTANTIATE(HeadNormForward);
CONVENE_INSTANTIATE(HeadNormBackward);

}  // namespace convene::worker::cpu
