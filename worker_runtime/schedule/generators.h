// PURE. The pipeline schedules of the literature. README.md draws them.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

// p ranks, v chunks a rank, m microbatches; F, B, I and W: ComputeTimes of one chunk. The bubble is
// what a step takes beyond the work of one rank; the memory is the largest Cost::saved_peak
// (testing/cost.h) of a rank.
//
// | name        | v | bubble                                   | memory           | source     |
// | gpipe       | 1 | (p-1)(F+B)                               | m                | [1]        |
// | 1f1b        | 1 | (p-1)(F+B)                               | p; rank r p-r    | [2], 2.2.1 |
// | interleaved | 2 | (p-1)(F+B), and where m < p              | (v-1)R + 2p-1    | [2], 2.2.2 |
// |             | + | (v-1)(p-m)(F+B) more                     | or vm            |            |
// | zb-h1       | 1 | (p-1)(F+I-W) where m >= p, W <= F, I     | p                | [3], 2.1   |
// | zb-v        | 2 | (p-1)F where m >= 2p-1, F = I = W        | 2p               | [3], 6; [4] |
// | dualpipe-v  | 2 | at most (p-1)(F+2B-3W) where m >= 2p     | 2p + 1           | [5]        |
//
// In that case of zb-v no rank waits between its first compute and its last: the bubble is that
// each starts, and ends, one forward later than the rank before it.
//
// [1] Huang et al., "GPipe", 2019. [2] Narayanan et al., "Efficient Large-Scale Language Model
// Training on GPU Clusters Using Megatron-LM", SC 2021. [3] Qi et al., "Zero Bubble Pipeline
// Parallelism", 2023. [4] Qi et al., "Pipeline Parallelism with Controllable Memory", 2024. [5]
// DeepSeek-AI, github.com/deepseek-ai/DualPipe, 2025; a forward and a backward that it overlaps
// stand one after the other.
//
// R is the first round's microbatches (FirstRound), p where m = kp. The smaller memory counts.
//
// Every m is legal. interleaved goes in rounds of at least p microbatches, as even as m allows (in
// Megatron-LM m has to be a multiple of p); zb-v with fewer than 2p-1 and dualpipe-v with fewer
// than 2p microbatches are the schedule of so many, without those that are not there. In each kind
// of pass a chunk takes its microbatches in ascending order.
//
// `virtual_stages` is v; 0 stands for the least that the schedule has.
// InvalidArgument, with the legal values: an unknown name, or a v that the schedule does not have.
// REQUIRES: all at least 1 but v; the number of computes fits an int.
absl::StatusOr<Schedule> MakeSchedule(absl::string_view name, int ranks, int virtual_stages,
                                      int microbatches);

// The microbatches of interleaved's first round, which no other round has more of: a rank sends so
// many through a chunk before it comes to the next one. REQUIRES: both at least 1.
int FirstRound(int ranks, int microbatches);

// Every microbatch forward and none backward, on any placement: validation.
Schedule ForwardOnly(const ChunkPlacement& placement, int microbatches);

}  // namespace convene::worker
