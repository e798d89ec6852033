// Cross-entropy over a slice of the vocabulary, in the three local parts between which the
// vocabulary-parallel loss communicates (Shoeybi et al. 2019, Megatron-LM, section 3).
#pragma once

#include <cstdint>

#include "worker_runtime/device/stream.h"

namespace convene::worker {

// logits: (rows, end - begin), the columns [begin, end) of all logits. A target < 0 marks a token
// that does not count.

// row_max: (rows).
void CrossEntropyRowMax(int rows, int columns, const float* logits, float* row_max, Stream& stream);

// logits become exp(logits - row_max); sums: (rows, 2): [0] the sum of them over this slice, [1]
// the target's (logit - row_max) where the target lies in this slice, else 0.
void CrossEntropyExpSums(int rows, int vocabulary_begin, int vocabulary_end, const int32_t* targets,
                         const float* row_max, float* logits, float* sums, Stream& stream);

// With `sums` summed over the slices: returns sum over counted rows of log(sums[0]) - sums[1], in
// double, and turns logits (the exponentials) into gradient_scale * (softmax - onehot(target));
// zero for rows that do not count.
double CrossEntropyLossAndGradient(int rows, int vocabulary_begin, int vocabulary_end,
                                   const int32_t* targets, const float* sums, float gradient_scale,
                                   float* logits, Stream& stream);

}  // namespace convene::worker
