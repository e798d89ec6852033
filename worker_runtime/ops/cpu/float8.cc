#include "worker_runtime/ops/float8.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "worker_runtime/ops/cpu/bf16_matmul.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"
#include "worker_runtime/ops/instantiate.h"

namespace convene::worker::cpu {
namespace {

constexpr int64_t kBlock = 1 << 14;
constexpr double kMeasureNanoseconds = 0.06;  // an element
constexpr double kRoundNanoseconds = 0.5;
constexpr int kTile = 64;  // rows, and columns

// The bits of magnitudes rise with them, and those of a NaN are above all.
template <typename T>
CONVENE_CPU_CLONES uint32_t LargestBits(int64_t count, const T* x) {
  uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = __builtin_bit_cast(uint32_t, Widen(x[i])) & 0x7fffffffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

template <DType kType, typename T>
CONVENE_CPU_CLONES void RoundRow(int count, const T* x, float scale, uint8_t* codes) {
#pragma omp simd
  for (int i = 0; i < count; ++i) codes[i] = EncodeFloat8<kType>(Widen(x[i]) * scale);
}

// The tile of `height` rows and `width` columns whose first element is at x, codes and turned.
template <DType kType, typename T>
void RoundTile(int height, int width, int rows, int columns, const T* x, float scale,
               uint8_t* codes, uint8_t* turned) {
  uint8_t tile[kTile][kTile];
  for (int row = 0; row < height; ++row) {
    const int64_t begin = int64_t{row} * columns;
    RoundRow<kType>(width, x + begin, scale, tile[row]);
    if (codes != nullptr) std::copy_n(tile[row], width, codes + begin);
  }
  if (turned == nullptr) return;
  for (int column = 0; column < width; ++column) {
    uint8_t* const to = turned + int64_t{column} * rows;
    for (int row = 0; row < height; ++row) to[row] = tile[row][column];
  }
}

template <DType kType, typename T>
void RoundAll(int rows, int columns, const T* x, float scale, uint8_t* codes, uint8_t* turned) {
  ForPieces(kRoundNanoseconds * rows * columns, CeilDivide(rows, kTile), [=](int64_t piece) {
    const int64_t row = piece * kTile;
    for (int64_t column = 0; column < columns; column += kTile) {
      const int64_t at = row * columns + column;
      RoundTile<kType>(static_cast<int>(std::min<int64_t>(kTile, rows - row)),
                       static_cast<int>(std::min<int64_t>(kTile, columns - column)), rows, columns,
                       x + at, scale, codes != nullptr ? codes + at : nullptr,
                       turned != nullptr ? turned + column * rows + row : nullptr);
    }
  });
}

// The number of each code, times `factor`.
std::array<float, 256> NumbersOfCodes(DType dtype, float factor) {
  std::array<float, 256> numbers;
  for (int code = 0; code < 256; ++code) {
    numbers[code] = DecodeFloat8(dtype, static_cast<uint8_t>(code)) * factor;
  }
  return numbers;
}

}  // namespace

template <typename T>
void LargestMagnitude(int64_t count, const T* x, float* largest, Stream& /*stream*/) {
  std::atomic<uint32_t> bits = 0;
  ForPieces(kMeasureNanoseconds * static_cast<double>(count), CeilDivide(count, kBlock),
            [&](int64_t block) {
              const int64_t begin = block * kBlock;
              const uint32_t here = LargestBits(std::min(kBlock, count - begin), x + begin);
              uint32_t before = bits.load();
              while (before < here && !bits.compare_exchange_weak(before, here)) {
              }
            });
  *largest = __builtin_bit_cast(float, bits.load());
}

template <typename T>
void QuantizeFloat8(int rows, int columns, const T* x, DType dtype, const float* largest,
                    float* inverse, uint8_t* codes, uint8_t* turned, Stream& /*stream*/) {
  CONVENE_CHECK(rows % 16 == 0 && columns % 16 == 0);
  const float scale = Float8Scale(dtype, *largest);
  *inverse = 1 / scale;
  if (dtype == DType::kE4M3) {
    RoundAll<DType::kE4M3>(rows, columns, x, scale, codes, turned);
  } else {
    RoundAll<DType::kE5M2>(rows, columns, x, scale, codes, turned);
  }
}

template <typename T>
void Float8MatMul(int m, int n, int k, const Float8Operand& a, const Float8Operand& b,
                  Float8Sums /*sums*/, float beta, T* c, Stream& /*stream*/) {
  CONVENE_CHECK(m % 16 == 0 && n % 16 == 0 && k % 16 == 0);
  const auto of_a = NumbersOfCodes(a.dtype, *a.inverse * *b.inverse);
  const auto of_b = NumbersOfCodes(b.dtype, 1);
  WidenedMatMul(DenseProduct(Transpose::kNo, Transpose::kYes, m, n, k),
                Float8Numbers{a.codes, of_a.data()}, Float8Numbers{b.codes, of_b.data()}, beta, c);
}

CONVENE_INSTANTIATE(LargestMagnitude);
CONVENE_INSTANTIATE(QuantizeFloat8);
CONVENE_INSTANTIATE(Float8MatMul);

}  // namespace convene::worker::cpu
