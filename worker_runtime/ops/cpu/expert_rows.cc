#include "worker_runtime/ops/expert_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr int kColumnBlock = 512;
constexpr double kCombineNanoseconds = 0.1;  // an element of a term, and of the result
constexpr double kWeighNanoseconds = 0.3;

template <typename From, typename To>
CONVENE_CPU_CLONES void ConvertRow(int count, const From* x, To* y) {
#pragma omp simd
  for (int i = 0; i < count; ++i) Narrow(Widen(x[i]), &y[i]);
}

template <typename T>
CONVENE_CPU_CLONES void AddTerm(int count, float weight, const T* x, float* sums) {
#pragma omp simd
  for (int i = 0; i < count; ++i) sums[i] += weight * Widen(x[i]);
}

template <typename T>
CONVENE_CPU_CLONES float WeighRow(int columns, float weight, T* y, T* dy) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int i = 0; i < columns; ++i) {
    dot += Widen(y[i]) * Widen(dy[i]);
    Narrow(weight * Widen(y[i]), &y[i]);
    Narrow(weight * Widen(dy[i]), &dy[i]);
  }
  return dot;
}

template <typename T>
CONVENE_CPU_CLONES float GateRowBackward(int columns, float gate, const T* y, T* dy) {
  float dot = 0;
#pragma omp simd reduction(+ : dot)
  for (int i = 0; i < columns; ++i) {
    dot += Widen(y[i]) * Widen(dy[i]);
    Narrow(gate * Widen(dy[i]), &dy[i]);
  }
  return dot;
}

template <typename T>
CONVENE_CPU_CLONES void GateRow(int columns, float gate, T* y) {
#pragma omp simd
  for (int i = 0; i < columns; ++i) Narrow(gate * Widen(y[i]), &y[i]);
}

float GateOf(float logit) { return 1 / (1 + std::exp(-logit)); }

}  // namespace

// An embedding whose table is x.
template <typename T>
void GatherRows(int64_t rows, int columns, const int32_t* from, const T* x, T* y, Stream& stream) {
  cpu::EmbeddingForward(static_cast<int>(rows), columns, 0, std::numeric_limits<int>::max(), from,
                        x,
                        /*adds=*/false, y, stream);
}

template <typename T>
void CombineRows(int64_t rows, int columns, int terms, const int32_t* places, const float* weights,
                 const T* x, bool adds, T* y, Stream& /*stream*/) {
  const double elements = static_cast<double>(rows) * columns * (terms + 1);
  ForPieces(kCombineNanoseconds * elements, rows, [=](int64_t row) {
    float sums[kColumnBlock];
    for (int begin = 0; begin < columns; begin += kColumnBlock) {
      const int count = std::min(kColumnBlock, columns - begin);
      T* const target = y + row * columns + begin;
      if (adds) {
        ConvertRow(count, target, sums);
      } else {
        std::fill_n(sums, count, 0.0f);
      }
      for (int64_t term = row * terms; term < (row + 1) * terms; ++term) {
        if (places[term] < 0) continue;
        AddTerm(count, weights != nullptr ? weights[term] : 1.0f,
                x + int64_t{places[term]} * columns + begin, sums);
      }
      ConvertRow(count, sums, target);
    }
  });
}

template <typename T>
void WeighRows(int64_t rows, int columns, const float* weights, T* y, T* dy, float* dweights,
               Stream& /*stream*/) {
  ForPieces(kWeighNanoseconds * static_cast<double>(rows) * columns, rows, [=](int64_t row) {
    dweights[row] = WeighRow(columns, weights[row], y + row * columns, dy + row * columns);
  });
}

template <typename T>
void GateRows(int64_t rows, int columns, const float* logits, T* y, Stream& /*stream*/) {
  ForPieces(kCombineNanoseconds * static_cast<double>(rows) * columns, rows,
            [=](int64_t row) { GateRow(columns, GateOf(logits[row]), y + row * columns); });
}

template <typename T>
void GateRowsBackward(int64_t rows, int columns, const float* logits, const T* y, T* dy, T* dlogits,
                      Stream& /*stream*/) {
  ForPieces(kWeighNanoseconds * static_cast<double>(rows) * columns, rows, [=](int64_t row) {
    const float gate = GateOf(logits[row]);
    const float dot = GateRowBackward(columns, gate, y + row * columns, dy + row * columns);
    Narrow((1 - gate) * dot, &dlogits[row]);
  });
}

CONVENE_INSTANTIATE(GatherRows);
CONVENE_INSTANTIATE(CombineRows);
CONVENE_INSTANTIATE(WeighRows);
CONVENE_INSTANTIATE(GateRows);
CONVENE_INSTANTIATE(GateRowsBackward);

}  // namespace convene::worker::cpu
