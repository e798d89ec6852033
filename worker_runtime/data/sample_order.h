// PURE. The order in which samples are trained: a function of (seed, position) and nothing else. No
// rank, no world size and no table, so that a run on any layout, resumed on any other, sees each
// sample once a pass.
#pragma once

#include <cstdint>

namespace convene::worker {

// The sample at `position` of the endless order: pass position / sample_count, and in each pass a
// pseudo-random permutation of [0, sample_count) of its own. The permutation is a Feistel network
// over the next power of two, walked until it comes back into the range (Black and Rogaway,
// "Ciphers with Arbitrary Finite Domains", 2002): under two trips a call on average. Checkpoints
// rely on it: it never changes. REQUIRES: sample_count >= 1, position >= 0.
int64_t SampleAt(int64_t seed, int64_t sample_count, int64_t position);

// How a global batch is cut: each data-parallel rank takes a contiguous range of the step's
// positions, the first ranks one more when it does not divide, and goes through it in microbatches.
// All ranks do the same number of microbatches; where a rank's range ends early its last rows are
// padding.
struct BatchCut {
  int64_t global_batch_size = 1;  // samples a step, over all ranks
  int micro_batch_size = 1;       // rows
  int dp_size = 1;
  // Ranks share out whole microbatches, of micro_batch_size positions that follow each other: the
  // samples of a microbatch do not depend on dp_size. Only the step's last one may have padding
  // beside samples; where microbatches do not divide, some are padding alone.
  bool keeps_microbatches = false;
};

// The cut with the fewest rows of padding: as many microbatches as the longest range needs when
// they have at most `micro_batch_max` rows, and no more rows in each than that many microbatches
// need. REQUIRES: all are at least 1, and a rank's range has fewer than 2^31 samples.
BatchCut EvenCut(int64_t global_batch_size, int64_t micro_batch_max, int dp_size);

// Microbatches a rank and a step, as many as the longest range needs.
int64_t MicrobatchCount(const BatchCut& cut);

// Rows without a sample, of all ranks together in a step.
int64_t PaddingRows(const BatchCut& cut);

// A row without a sample.
constexpr int64_t kNoSample = -1;

// The position in the order of one row of one microbatch, or kNoSample. Over all ranks,
// microbatches and rows of the step that begins at `step_first_sample`, every position of
// [step_first_sample, + global_batch_size) comes exactly once. REQUIRES: 0 <= dp_rank < dp_size, 0
// <= microbatch < MicrobatchCount(cut), 0 <= row < micro_batch_size.
int64_t SamplePosition(int64_t step_first_sample, const BatchCut& cut, int dp_rank,
                       int64_t microbatch, int row);

}  // namespace convene::worker
