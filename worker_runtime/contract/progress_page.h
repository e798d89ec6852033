// The progress page, by which a worker tells its agent its step and phase without a system call.
//
// CONVENE_PROGRESS names a file of 4096 bytes that the agent made for this worker alone, in this
// epoch alone. The worker maps it, shared and writable, and writes the first 64 bytes; the rest is
// reserved and stays zero. All numbers are little-endian.
//
//   offset  size
//    0      8     magic "CONVPRG1"; the agent's: a worker that finds another one writes nothing
//    8      8     sequence, u64: odd while the worker writes, even and not 0 when the rest holds
//   16      8     step, i64: the last finished one
//   24      8     time of the last change of step or phase, u64: CLOCK_MONOTONIC in nanoseconds
//   32      4     flags, u32: kProgress...Flag
//   36      4     reserved, 0
//   40      24    phase, text, padded with zeros: "step", "checkpoint", or a name of the program's
//                 own ("startup", "validation")
//
// To write: sequence + 1, the fields, sequence + 2, in this order. The agent takes a page when two
// reads of it are equal and its sequence is even. A worker that never writes is never judged.
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
  uint32_t reserved;
  char phase[24];
};
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(ProgressPage) == 64 && offsetof(ProgressPage, phase) == 40);

inline constexpr size_t kProgressPageBytes = 4096;
inline constexpr char kProgressMagic[] = "CONVPRG1";

// SIGUSR2 makes the worker write the stacks of its threads to stderr, and go on.
inline constexpr uint32_t kProgressDumpsOnSignalFlag = 1;
// Work that may take much longer than a step has a phase of its own, told by every rank, also by
// ranks that only wait for it. Without this flag automatic limits allow for a silent checkpoint.
inline constexpr uint32_t kProgressTellsEveryPhaseFlag = 2;

// Phases whose limits a person can set.
inline constexpr char kStepPhase[] = "step";
inline constexpr char kCheckpointPhase[] = "checkpoint";

}  // namespace convene::contract
