// Times collectives of one communicator, size by size.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/base/clock.h"
#include "worker_runtime/bench/bench_flags.h"
#include "worker_runtime/bench/result.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"

namespace convene::worker {

// PURE. The member that `own` meets in a round, by the circle method: each two of `size` members
// meet in exactly one of PairRounds(size) rounds, and no member has two partners in a round. `own`
// itself: it rests, or is no member.
int PartnerOf(int own, int size, int round);
inline int PairRounds(int size) { return size < 2 ? 0 : size + size % 2 - 1; }

// The buffers of one rank. All ranks make one at about the same time, and make the same calls.
class Sweep {
 public:
  // Allocates what the largest size needs: twice its bytes. Borrows all but `flags`; `memory`, in
  // which the communicators' data lie, as CollectiveMemory gives it. Errors: Memory::Allocate's.
  static absl::StatusOr<std::unique_ptr<Sweep>> Make(const BenchFlags& flags,
                                                     const CommunicatorSet& communicators,
                                                     Device& device, Memory& memory, Clock& clock);
  ~Sweep();
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  // The row of one size, the same on all ranks. Errors: Collective's.
  absl::StatusOr<BenchRow> Time(const std::string& operation, int64_t bytes);

  // Each pair of `members`, ranks in rising order, one round of pairs after another (the circle
  // method, so that no member has two partners at a time). `names` go into the table. Errors:
  // Collective's.
  absl::StatusOr<PairTable> TimePairs(const std::vector<int>& members,
                                      const std::vector<std::string>& names);

 private:
  Sweep(const BenchFlags& flags, const CommunicatorSet& communicators, Device& device,
        Memory& memory, Clock& clock, int64_t buffer_bytes)
      : flags_(flags),
        communicators_(communicators),
        device_(device),
        memory_(memory),
        clock_(clock),
        buffer_bytes_(buffer_bytes) {}

  // Seconds a call, of this rank.
  absl::StatusOr<double> MeanSeconds(absl::FunctionRef<absl::Status()> call);
  // Wrong elements of this rank after one call.
  absl::StatusOr<int64_t> CountWrong(CollectiveKind kind, int64_t count);
  absl::Status Call(CollectiveKind kind, int64_t count);
  // Seconds of an exchange of `bytes` with `partner`, this rank itself: none.
  absl::StatusOr<double> TimeExchange(int partner, int64_t bytes);
  absl::Status Synchronize();

  const BenchFlags flags_;
  const CommunicatorSet& communicators_;
  Device& device_;
  Memory& memory_;
  Clock& clock_;
  const int64_t buffer_bytes_;
  void* input_ = nullptr;
  void* output_ = nullptr;  // of the operations that are not in place
};

}  // namespace convene::worker
