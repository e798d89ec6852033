#include "worker_runtime/ops/elementwise.h"

#include <algorithm>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/row_sums.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr int64_t kBlock = 1 << 14;
constexpr double kAddNanoseconds = 0.15;  // an element
constexpr double kCapNanoseconds = 0.8;
constexpr double kConvertNanoseconds = 0.06;
constexpr double kSquareNanoseconds = 0.09;
constexpr int kPartialSums = 64;

template <typename T>
CONVENE_CPU_CLONES void ScaleBlock(int64_t count, float factor, T* x) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) Narrow(factor * Widen(x[i]), &x[i]);
}

template <typename T>
CONVENE_CPU_CLONES void CapBlock(int64_t count, float cap, T* x) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) Narrow(cap * Tanh(Widen(x[i]) / cap), &x[i]);
}

template <typename T>
CONVENE_CPU_CLONES void CapBackwardBlock(int64_t count, float cap, const T* capped, T* dx) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float part = Widen(capped[i]) / cap;
    Narrow(Widen(dx[i]) * (1.0f - part * part), &dx[i]);
  }
}

template <typename T>
CONVENE_CPU_CLONES void AddBlock(int64_t count, const T* x, const T* y, T* sum) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) Narrow(Widen(x[i]) + Widen(y[i]), &sum[i]);
}

template <typename From, typename To>
CONVENE_CPU_CLONES void ConvertBlock(int64_t count, const From* x, To* y) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) Narrow(Widen(x[i]), &y[i]);
}

// Calls run(begin, length) for each block. `nanoseconds`: an element's.
template <typename Run>
void ForBlocks(double nanoseconds, int64_t count, const Run& run) {
  ForPieces(nanoseconds * static_cast<double>(count), CeilDivide(count, kBlock),
            [&](int64_t block) { run(block * kBlock, std::min(kBlock, count - block * kBlock)); });
}

template <typename From, typename To>
void Convert(int64_t count, const From* x, To* y) {
  ForBlocks(kConvertNanoseconds, count,
            [=](int64_t begin, int64_t length) { ConvertBlock(length, x + begin, y + begin); });
}

template <typename From, typename To>
void ConvertRows(int64_t rows, int columns, const From* x, int64_t x_stride, To* y,
                 int64_t y_stride) {
  ForPieces(kConvertNanoseconds * static_cast<double>(rows) * columns, rows,
            [=](int64_t row) { ConvertBlock(columns, x + row * x_stride, y + row * y_stride); });
}

CONVENE_CPU_CLONES double SumOfSquaresBlock(int64_t count, const float* x) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) {
    const double value = x[i];
    sum += value * value;
  }
  return sum;
}

}  // namespace

template <typename T>
void AddRow(int64_t count, const T* x, const T* y, T* sum) {
  AddBlock(count, x, y, sum);
}

template <typename T>
void AddInPlace(int64_t count, const T* x, T* y, Stream& /*stream*/) {
  ForBlocks(kAddNanoseconds, count, [=](int64_t begin, int64_t length) {
    AddBlock(length, x + begin, y + begin, y + begin);
  });
}

template <typename T>
void ScaleInPlace(int64_t count, float factor, T* x, Stream& /*stream*/) {
  ForBlocks(kAddNanoseconds, count,
            [=](int64_t begin, int64_t length) { ScaleBlock(length, factor, x + begin); });
}

template <typename T>
void SoftCap(int64_t count, float cap, T* x, Stream& /*stream*/) {
  ForBlocks(kCapNanoseconds, count,
            [=](int64_t begin, int64_t length) { CapBlock(length, cap, x + begin); });
}

template <typename T>
void SoftCapBackward(int64_t count, float cap, const T* capped, T* dx, Stream& /*stream*/) {
  ForBlocks(kAddNanoseconds, count, [=](int64_t begin, int64_t length) {
    CapBackwardBlock(length, cap, capped + begin, dx + begin);
  });
}

void Copy(int64_t count, const float* x, float* y, Stream& /*stream*/) { std::copy_n(x, count, y); }

template <typename T>
void CopyRows(int64_t rows, int columns, const T* x, int64_t x_stride, T* y, int64_t y_stride,
              Stream& /*stream*/) {
  ConvertRows(rows, columns, x, x_stride, y, y_stride);
}

template <typename T>
void RoundRows(int64_t rows, int columns, const float* x, int64_t x_stride, T* y, int64_t y_stride,
               Stream& /*stream*/) {
  ConvertRows(rows, columns, x, x_stride, y, y_stride);
}

void ToBFloat16(int64_t count, const float* x, BFloat16* y, Stream& /*stream*/) {
  Convert(count, x, y);
}

void ToFloat(int64_t count, const BFloat16* x, float* y, Stream& /*stream*/) {
  Convert(count, x, y);
}

size_t SumOfSquaresWorkspaceBytes(int64_t /*count*/) { return 0; }

void SumOfSquares(int64_t count, const float* x, const uint8_t* flags, double* sum,
                  const Workspace& /*workspace*/, Stream& /*stream*/) {
  // The number of parts does not follow the number of threads: the parts' borders, and with them
  // the bits, depend on count alone.
  double partial_sums[kPartialSums] = {};
  const int64_t blocks = count / kFlagBlock;
  const int64_t part = CeilDivide(blocks, kPartialSums);
  ForPieces(kSquareNanoseconds * static_cast<double>(count), kPartialSums, [&](int64_t i) {
    const int64_t part_end = std::min(blocks, (i + 1) * part);
    for (int64_t begin = i * part; begin < part_end;) {
      const uint8_t owned = flags[begin] & kOwned;
      int64_t end = begin + 1;
      while (end < part_end && (flags[end] & kOwned) == owned) ++end;
      if (owned != 0) {
        partial_sums[i] += SumOfSquaresBlock((end - begin) * kFlagBlock, x + begin * kFlagBlock);
      }
      begin = end;
    }
  });
  double total = 0;
  for (const double partial : partial_sums) total += partial;
  *sum += total;
}

void AddInOrder(int64_t count, const double* x, double* sum, Stream& /*stream*/) {
  for (int64_t i = 0; i < count; ++i) *sum += x[i];
}

CONVENE_INSTANTIATE(AddRow);
CONVENE_INSTANTIATE(AddInPlace);
CONVENE_INSTANTIATE(ScaleInPlace);
CONVENE_INSTANTIATE(SoftCap);
CONVENE_INSTANTIATE(SoftCapBackward);
CONVENE_INSTANTIATE(CopyRows);
CONVENE_INSTANTIATE(RoundRows);

}  // namespace convene::worker::cpu
