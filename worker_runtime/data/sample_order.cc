#include "worker_runtime/data/sample_order.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "tools/base/check.h"
#include "tools/base/rounding.h"

namespace convene::worker {
namespace {

// More than the four rounds that Luby and Rackoff need, because small halves mix less.
constexpr int kRounds = 8;

// SplitMix64's finalizer (Steele, Lea and Flood 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A bijection of [0, 2^bits). The halves have bits / 2 and the rest, and change sides every round.
uint64_t Feistel(uint64_t value, int bits, uint64_t key) {
  int right_bits = bits / 2;
  int left_bits = bits - right_bits;
  uint64_t left = value >> right_bits;
  uint64_t right = value & ((uint64_t{1} << right_bits) - 1);
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t mixed =
        Mix(key + static_cast<uint64_t>(round) * 0xd1342543de82ef95 + right * 0xff51afd7ed558ccd);
    const uint64_t new_right = left ^ (mixed & ((uint64_t{1} << left_bits) - 1));
    left = right;
    right = new_right;
    std::swap(left_bits, right_bits);
  }
  return (left << right_bits) | right;
}

}  // namespace

int64_t SampleAt(int64_t seed, int64_t sample_count, int64_t position) {
  CONVENE_CHECK(sample_count >= 1 && position >= 0);
  const uint64_t count = static_cast<uint64_t>(sample_count);
  const uint64_t pass = static_cast<uint64_t>(position) / count;
  const uint64_t key = Mix(Mix(static_cast<uint64_t>(seed)) ^ pass);
  // At least two bits, so that both halves have one.
  const int bits = std::max<int>(2, std::bit_width(count - 1));
  uint64_t value = static_cast<uint64_t>(position) % count;
  do {
    value = Feistel(value, bits, key);
  } while (value >= count);
  return static_cast<int64_t>(value);
}

BatchCut EvenCut(int64_t global_batch_size, int64_t micro_batch_max, int dp_size) {
  CONVENE_CHECK(global_batch_size >= 1 && micro_batch_max >= 1 && dp_size >= 1);
  const int64_t longest = CeilDivide(global_batch_size, dp_size);
  CONVENE_CHECK(longest <= std::numeric_limits<int>::max());
  const int64_t microbatches = CeilDivide(longest, std::min(longest, micro_batch_max));
  return {.global_batch_size = global_batch_size,
          .micro_batch_size = static_cast<int>(CeilDivide(longest, microbatches)),
          .dp_size = dp_size};
}

int64_t MicrobatchCount(const BatchCut& cut) {
  CONVENE_CHECK(cut.global_batch_size >= 1 && cut.micro_batch_size >= 1 && cut.dp_size >= 1);
  return CeilDivide(CeilDivide(cut.global_batch_size, cut.dp_size), cut.micro_batch_size);
}

int64_t PaddingRows(const BatchCut& cut) {
  return MicrobatchCount(cut) * cut.micro_batch_size * cut.dp_size - cut.global_batch_size;
}

int64_t SamplePosition(int64_t step_first_sample, const BatchCut& cut, int dp_rank,
                       int64_t microbatch, int row) {
  CONVENE_CHECK(dp_rank >= 0 && dp_rank < cut.dp_size && microbatch >= 0 &&
                microbatch < MicrobatchCount(cut) && row >= 0 && row < cut.micro_batch_size);
  const int64_t unit = cut.keeps_microbatches ? cut.micro_batch_size : 1;
  const int64_t units = CeilDivide(cut.global_batch_size, unit);
  const int64_t shortest = units / cut.dp_size;
  const int64_t longer_ranks = units % cut.dp_size;
  const int64_t first = (dp_rank * shortest + std::min<int64_t>(dp_rank, longer_ranks)) * unit;
  const int64_t end =
      std::min(cut.global_batch_size, first + (shortest + (dp_rank < longer_ranks ? 1 : 0)) * unit);
  const int64_t position = first + microbatch * cut.micro_batch_size + row;
  return position < end ? step_first_sample + position : kNoSample;
}

}  // namespace convene::worker
