// PURE. The oldest version of NCCL that will do, the most blocks of its kernels, the time that
// communicators have to connect, and when CUDA may load kernels.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace convene::worker {

// 2.19 has non-blocking communicators and registered memory. The version of the loaded library
// counts, not the header's: a user's libnccl may be older or newer.
inline constexpr int kOldestNcclVersion = 21900;

// 2.27 has windows into the memory of all ranks of a communicator. But before 2.29.7 a kernel that
// waits through one for a lost rank never looks whether its communicator is aborted
// (nccl_device/impl/lsa_barrier__funcs.h), so that ncclCommAbort would never return.
inline constexpr int kOldestNcclWithWindows = 22907;

// From 2.24 on an operation over a network works on registered memory in place. But before 2.32's
// first update the thread that receives may wipe out the word by which such an operation begins,
// when a small one ran before it (NVIDIA/nccl#2389): all ranks then wait for ever. NVIDIA's release
// notes have 2.32.6 next after 2.32.3, which is older than the mend.
inline constexpr int kOldestNcclThatRegistersForNetworks = 23206;

// `version_code` as ncclGetVersion gives it: "2.28.9" for 22809.
std::string NcclVersionText(int version_code);

// The most ranks with which a rank exchanges pipeline messages: the schedules of
// schedule/generators.h need no more. Each has a lane to it and a lane from it (nccl_collective.h).
inline constexpr int kNcclLinksMax = 2;

// The number of a rank's kernels that can wait for their peers at the same time: one collective in
// compute() or in layer_communication() (never one in each), one in communication(), and one
// message in each lane.
inline constexpr int kNcclKernelsAtOnce = 2 + 2 * kNcclLinksMax;

// The most blocks of each of these kernels on a GPU of so many multiprocessors: few enough that
// each block of all these kernels finds a multiprocessor. Collectives have twice those of messages,
// whose lanes are rarely all busy at once.
struct NcclBlocks {
  int collective = 1;
  int message = 1;
};
NcclBlocks NcclBlocksMax(int multiprocessors);

// The time from the start of the bootstrap within which a rank's communicator of this number, from
// 0, is made. The first one has `connect_timeout`, a third of it goes to each later one: the first
// loads plugins and finds the machine's devices, and it shows which rank has not come. At most
// `operation_timeout`, where that is the longer one.
absl::Duration NcclConnectTimeout(int communicator, absl::Duration connect_timeout,
                                  absl::Duration operation_timeout);

// Whether with this pipeline schedule (--pp-schedule) CUDA may load a kernel at its first use. CUDA
// may then wait until all that the process has queued is done, messages too (CUDA Programming
// Guide, "Lazy Loading"). With `interleaved` and `zb-v` ranks would wait for each other so
// (lanes_test shows it); for a schedule file nothing is shown.
bool MayLoadKernelsLate(absl::string_view pp_schedule);

}  // namespace convene::worker
