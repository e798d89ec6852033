#include "worker_runtime/ops/binned_sum.h"

#include <algorithm>
#include <array>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/binned_digits.h"
#include "worker_runtime/ops/cpu/cpu_ops.h"
#include "worker_runtime/ops/cpu/simd.h"
#include "worker_runtime/ops/cpu/thread_count.h"

namespace convene::worker::cpu {
namespace {

constexpr int64_t kPiece = 1 << 14;
constexpr int kLane = 64;  // of so many elements a loop asks whether all are zero
// An element.
constexpr double kAddNanoseconds = 0.8;
constexpr double kMergeNanoseconds = 0.8;
constexpr double kRoundNanoseconds = 0.4;
constexpr double kSquareNanoseconds = 0.4;
constexpr int kPartialSums = 64;

CONVENE_CPU_CLONES bool IsZero(int64_t count, const float* x) {
  uint32_t any = 0;
#pragma omp simd reduction(| : any)
  for (int64_t i = 0; i < count; ++i) any |= SameBits<uint32_t>(x[i]) << 1;
  return any == 0;
}

template <bool kFirst>
CONVENE_CPU_CLONES void AddLane(int64_t count, int32_t bits, int32_t inverse, const float* x,
                                int32_t* high, int32_t* low, uint8_t* bins) {
  // Numbers of one width alone: then vectors are as wide as they can be.
  int32_t wide[kLane];
  for (int64_t i = 0; i < count; ++i) wide[i] = kFirst ? 0 : bins[i];
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const BinnedDigits before =
        kFirst ? BinnedDigits{0, 0, 0} : BinnedDigits{high[i], low[i], wide[i]};
    const BinnedDigits sum = DigitsPlus(before, x[i], bits, inverse);
    high[i] = sum.high;
    low[i] = sum.low;
    wide[i] = sum.bin;
  }
  for (int64_t i = 0; i < count; ++i) bins[i] = static_cast<uint8_t>(wide[i]);
}

template <bool kHasDigits>
CONVENE_CPU_CLONES void MergeBlock(int64_t count, const int32_t* x_high, const int32_t* x_low,
                                   const uint8_t* x_bins, int32_t* high, int32_t* low,
                                   uint8_t* bins) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const BinnedDigits x = {kHasDigits ? x_high[i] : 0, kHasDigits ? x_low[i] : 0, x_bins[i]};
    const BinnedDigits sum = Merged(x, {high[i], low[i], bins[i]});
    high[i] = sum.high;
    low[i] = sum.low;
    bins[i] = static_cast<uint8_t>(sum.bin);
  }
}

CONVENE_CPU_CLONES void RoundBlock(int64_t count, int32_t bits, int32_t* high, const int32_t* low,
                                   const uint8_t* bins) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    high[i] = SameBits<int32_t>(FloatOf({high[i], low[i], bins[i]}, bits));
  }
}

CONVENE_CPU_CLONES double SquaresOfBlock(const float* x) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int i = 0; i < kFlagBlock; ++i) {
    const double value = x[i];
    sum += value * value;
  }
  return sum;
}

// Calls run(begin, length) for each piece. `nanoseconds`: an element's.
template <typename Run>
void ForPiecesOf(double nanoseconds, int64_t count, const Run& run) {
  ForPieces(nanoseconds * static_cast<double>(count), CeilDivide(count, kPiece),
            [&](int64_t piece) { run(piece * kPiece, std::min(kPiece, count - piece * kPiece)); });
}

}  // namespace

// A microbatch leaves most rows of a table of tokens zero: these change nothing.
void BinnedAdd(int64_t count, int bits, bool is_first, const float* x, const BinnedSums& sums,
               Stream& /*stream*/) {
  const int32_t inverse = InverseOf(bits);
  ForPiecesOf(kAddNanoseconds, count, [=](int64_t begin, int64_t length) {
    for (int64_t i = begin; i < begin + length; i += kLane) {
      const int64_t lane = std::min<int64_t>(kLane, begin + length - i);
      const BinnedSums at = sums.From(i);
      if (is_first) {
        AddLane<true>(lane, bits, inverse, x + i, at.high, at.low, at.bins);
      } else if (!IsZero(lane, x + i)) {
        AddLane<false>(lane, bits, inverse, x + i, at.high, at.low, at.bins);
      }
    }
  });
}

void BinnedMerge(int64_t count, const BinnedSums& x, const BinnedSums& sums, Stream& /*stream*/) {
  ForPiecesOf(kMergeNanoseconds, count, [=](int64_t begin, int64_t length) {
    const BinnedSums to = sums.From(begin);
    if (x.high == nullptr) {
      MergeBlock<false>(length, nullptr, nullptr, x.bins + begin, to.high, to.low, to.bins);
    } else {
      const BinnedSums from = x.From(begin);
      MergeBlock<true>(length, from.high, from.low, from.bins, to.high, to.low, to.bins);
    }
  });
}

void BinnedRound(int64_t count, int bits, const BinnedSums& sums, Stream& /*stream*/) {
  ForPiecesOf(kRoundNanoseconds, count, [=](int64_t begin, int64_t length) {
    const BinnedSums at = sums.From(begin);
    RoundBlock(length, bits, at.high, at.low, at.bins);
  });
}

size_t ExactSquaresWorkspaceBytes(int64_t /*count*/) { return 0; }

void ExactSquares(int64_t count, const float* x, const uint8_t* flags, double* digits,
                  const Workspace& /*workspace*/, Stream& /*stream*/) {
  std::array<std::array<double, kExactDigits>, kPartialSums> partial_sums = {};
  const int64_t blocks = count / kFlagBlock;
  const int64_t part = CeilDivide(blocks, kPartialSums);
  ForPieces(kSquareNanoseconds * static_cast<double>(count), kPartialSums, [&](int64_t i) {
    const int64_t end = std::min(blocks, (i + 1) * part);
    for (int64_t block = i * part; block < end; ++block) {
      if ((flags[block] & kOwned) == 0) continue;
      AddExactly(SquaresOfBlock(x + block * kFlagBlock), partial_sums[i].data());
    }
  });
  for (const auto& partial : partial_sums) {
    for (int i = 0; i < kExactDigits; ++i) digits[i] += partial[i];
  }
}

void ExactAdd(int64_t count, double* x, double* digits, Stream& /*stream*/) {
  for (int64_t i = 0; i < count; ++i) {
    AddExactly(x[i], digits + i * kExactDigits);
    x[i] = 0;
  }
}

void ExactRound(int64_t count, const double* digits, double* x, Stream& /*stream*/) {
  for (int64_t i = 0; i < count; ++i) x[i] = RoundExactly(digits + i * kExactDigits);
}

}  // namespace convene::worker::cpu
