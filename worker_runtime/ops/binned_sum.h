// Sums over arrays that no order and no grouping changes (binned_digits.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/binned_digits.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {

// (count) binned sums, in the device's memory, by the members of BinnedDigits. `bits`, below:
// BinBits of the most summands that any of them gets before BinnedRound.
struct BinnedSums {
  int32_t* high = nullptr;
  int32_t* low = nullptr;
  uint8_t* bins = nullptr;

  BinnedSums From(int64_t first) const { return {high + first, low + first, bins + first}; }
};

// sums += x, or where `is_first` sums = x. x: (count).
void BinnedAdd(int64_t count, int bits, bool is_first, const float* x, const BinnedSums& sums,
               Stream& stream);

// sums += x. Where x.high is null, x has bins alone, and its digits are zero.
void BinnedMerge(int64_t count, const BinnedSums& x, const BinnedSums& sums, Stream& stream);

// The bits of each sum as a float, NaN where a summand was no number, take the place of sums.high.
void BinnedRound(int64_t count, int bits, const BinnedSums& sums, Stream& stream);

// Scratch of ExactSquares.
size_t ExactSquaresWorkspaceBytes(int64_t count, DeviceKind device);

// digits += the exact sum of the squares of the blocks whose flag has kOwned; a block's own sum is
// made in double and in a fixed order. digits: (kExactDigits). All else as SumOfSquares.
void ExactSquares(int64_t count, const float* x, const uint8_t* flags, double* digits,
                  const Workspace& workspace, Stream& stream);

// digits[i] += x[i], which becomes 0. x: (count), digits: (count, kExactDigits). For few numbers.
void ExactAdd(int64_t count, double* x, double* digits, Stream& stream);

// x[i] = digits[i], rounded. For few numbers.
void ExactRound(int64_t count, const double* digits, double* x, Stream& stream);

}  // namespace convene::worker
