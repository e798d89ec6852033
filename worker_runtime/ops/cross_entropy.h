// Cross-entropy over a slice of the vocabulary, in the local parts between which the
// vocabulary-parallel loss communicates (Shoeybi et al. 2019, Megatron-LM, section 3). Two passes
// over the logits: statistics (the online softmax of Milakov and Gimelshein 2018), then the
// gradient in place. Where nothing is communicated between them, CrossEntropyAtOnce makes both.
//
// logits: (rows, vocabulary_end - vocabulary_begin), the columns [begin, end) of all logits. A
// target < 0 marks a token that does not count. T: float or BFloat16; arithmetic in float.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"

namespace convene::worker {

// row_max: (rows): the largest logit of this slice. sums: (rows, 2): [0] the sum of exp(logit -
// row_max) over this slice, [1] the target's logit where the target lies in this slice, else 0.
// Every row, counted or not. A NaN among the logits makes sums[0] NaN.
template <typename T>
void CrossEntropyStatistics(int rows, int vocabulary_begin, int vocabulary_end,
                            const int32_t* targets, const T* logits, float* row_max, float* sums,
                            Stream& stream);

// From this slice's maximum to that over all slices: sums[0] *= exp(slice_max - row_max).
void CrossEntropyRescale(int rows, const float* slice_max, const float* row_max, float* sums,
                         Stream& stream);

// Scratch of CrossEntropyLoss.
size_t CrossEntropyWorkspaceBytes(int rows, DeviceKind device);

// With row_max and sums over all slices: adds the sum over counted rows of log(sums[0]) + row_max -
// sums[1] to *loss_sum (one double in the device's memory), in double and in a fixed order.
void CrossEntropyLoss(int rows, const int32_t* targets, const float* row_max, const float* sums,
                      double* loss_sum, const Workspace& workspace, Stream& stream);

// With row_max and sums over all slices: logits become *gradient_scale * (softmax -
// onehot(target)); zero for rows that do not count. gradient_scale: one float in the device's
// memory.
template <typename T>
void CrossEntropyGradient(int rows, int vocabulary_begin, int vocabulary_end,
                          const int32_t* targets, const float* row_max, const float* sums,
                          const float* gradient_scale, T* logits, Stream& stream);

// CrossEntropyStatistics, then CrossEntropyGradient, to the bit: for a slice that is the whole
// vocabulary. Each row's gradient follows its statistics at once, while the row is in the cache.
template <typename T>
void CrossEntropyAtOnce(int rows, int vocabulary_begin, int vocabulary_end, const int32_t* targets,
                        const float* gradient_scale, float* row_max, float* sums, T* logits,
                        Stream& stream);

}  // namespace convene::worker
