// The progress page, by which a worker tells its agent its step and phase without a system call.
//
// CONVENE_PROGRESS names a file of 4096 bytes that the agent made for this worker alone, in this
// epoch alone. The worker maps it, shared and writable, and writes its beginning; the rest is
// reserved and stays zero. All numbers are little-endian.
//
//   offset  size
//    0      8     magic "CONVPRG1"; the agent's: a worker that finds another one writes nothing
//    8      8     sequence, u64: odd while the worker writes, even and not 0 when the rest holds
//   16      8     step, i64: the last finished one
//   24      8     time of the last change of step or phase, u64: CLOCK_MONOTONIC in nanoseconds
//   32      4     flags, u32: kProgress...Flag
//   36      4     pid, u32: of the process that tells, which a wrapper may have started; 0: the
//                 worker itself
//   40      24    phase, text, padded with zeros: "step", "checkpoint", or a name of the program's
//                 own ("startup", "validation")
//
// The second part; a worker that does not know it leaves zeros. A flag says which of it holds. Sums
// only grow, from the worker's start on, so that a reader takes differences.
//
//   64      8     compute, u64: ns of the worker's own work in steps, the sum   kTellsTimes
//   72      8     wait, u64: ns in steps for other ranks (collectives, a pipeline's receives)
//   80      8     data, u64: ns in steps for samples
//   88      8     checkpoint, u64: ns for saves, without the wait for other ranks
//   96      8     tokens, u64: that this worker has trained on, the sum;        kTellsTokens
//                 workers that share the work on a token share the count
//   104     8     memory in use, u64: bytes of the device                       kTellsMemory
//   112     8     the most that it was, u64: bytes
//   120     8     loss, f64: of the last finished step                          kTellsLoss
//   128     4     place, u32: workers of the same place do the same work (a pipeline's stage,
//                 counted from 1); 0: all do
//   132     4     model FLOPs utilization of the last step, u32: millionths of the device's peak;
//                 0: not told. One worker may tell the job's mean
//
// The third part: the collective of this worker that waits for another rank, of several the one
// that began to wait first, one beside the training last. Another thread may write it than the one
// that writes the parts above, so it has a sequence of its own, with the same meaning; 0: the
// worker tells nothing of the kind.
//
//   136     8     sequence, u64
//   144     8     number, u64: of the operation in its group, from 1
//   152     4     rank, u32: that it waits for, of all ranks, counted from 1; 0: nothing waits
//   156     4     reserved, 0
//   160     24    operation, text as the phase: "all_reduce"
//   184     24    group, text: "dp"
//
// To write the first two parts: sequence + 1, their fields, sequence + 2, in this order. The agent
// takes them when two reads of them are equal and their sequence is even. A worker that never
// writes them is never judged.
//
// To write the third part: its own sequence + 1, its fields, the sequence + 2, in this order. The
// agent takes it with the first two, when its sequence is even and the same in both reads; else the
// agent takes it that nothing waits at the moment.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace convene::contract {

struct ProgressPage {
  char magic[8];
  uint64_t sequence;
  int64_t step;
  uint64_t changed_at_ns;
  uint32_t flags;
  uint32_t pid;
  char phase[24];

  uint64_t compute_ns;
  uint64_t wait_ns;
  uint64_t data_ns;
  uint64_t checkpoint_ns;
  uint64_t tokens;
  uint64_t memory_bytes;
  uint64_t memory_peak_bytes;
  double loss;
  uint32_t place;
  uint32_t mfu_millionths;

  uint64_t awaits_sequence;
  uint64_t awaits_number;
  uint32_t awaits_rank;
  uint32_t reserved_three;
  char awaits_operation[24];
  char awaits_group[24];
};
static_assert(std::endian::native == std::endian::little);
static_assert(offsetof(ProgressPage, phase) == 40 && offsetof(ProgressPage, compute_ns) == 64);
static_assert(offsetof(ProgressPage, place) == 128 && offsetof(ProgressPage, awaits_group) == 184);
static_assert(sizeof(ProgressPage) == 208 && offsetof(ProgressPage, awaits_sequence) == 136);

inline constexpr size_t kProgressPageBytes = 4096;
inline constexpr char kProgressMagic[] = "CONVPRG1";

// SIGUSR2 makes the worker write the stacks of its threads to stderr, and go on.
inline constexpr uint32_t kProgressDumpsOnSignalFlag = 1;
// Work that may take much longer than a step has a phase of its own, told by every rank, also by
// ranks that only wait for it. Without this flag automatic limits allow for a silent checkpoint.
inline constexpr uint32_t kProgressTellsEveryPhaseFlag = 2;
// The fields of the second part that hold.
inline constexpr uint32_t kProgressTellsTimesFlag = 4;
inline constexpr uint32_t kProgressTellsTokensFlag = 8;
inline constexpr uint32_t kProgressTellsMemoryFlag = 16;
inline constexpr uint32_t kProgressTellsLossFlag = 32;

// Phases whose limits a person can set.
inline constexpr char kStepPhase[] = "step";
inline constexpr char kCheckpointPhase[] = "checkpoint";

}  // namespace convene::contract
