// The choices of products' algorithms that all ranks of a job share.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "worker_runtime/ops/matmul_choices.h"
#include "worker_runtime/tuning/choice_file.h"
#include "worker_runtime/tuning/choice_table.h"

namespace convene::worker {

// A rank among the others that share its choices.
struct ChoiceSharing {
  int rank = 0;
  int world_size = 1;
  bool offers = true;  // one rank of each node does: all of a node read one file
  // The beginning of the keys of this attempt.
  std::string key_prefix;
  absl::Duration timeout = absl::Minutes(5);  // of all ranks together
};

// The choices with which the ranks begin: those that any node has kept; where nodes differ, those
// of the lowest rank that offers some. `own`: of this rank's file. A rank with another GPU, driver
// or library than rank 0 gets its own back. All ranks call it, once with a key prefix. Errors:
// DeadlineExceeded when a rank did not within the timeout; the store's.
absl::StatusOr<ChoiceTable> AgreeOnChoices(rendezvous::StoreClient& store,
                                           const ChoiceSharing& sharing, const ChoiceTable& own,
                                           const std::string& machine);

// Thread-safe. A call may wait for the job's store.
class JobChoices final : public MatMulChoices {
 public:
  // `machine`: as ChoiceTable has it. `file`: nullopt keeps nothing. `store`: null where world_size
  // is 1. Errors: AgreeOnChoices'.
  static absl::StatusOr<std::unique_ptr<JobChoices>> Start(
      const std::string& machine, std::optional<ChoiceFile> file, const ChoiceSharing& sharing,
      std::shared_ptr<rendezvous::StoreClient> store, Clock* clock = &Clock::Real());

  std::optional<uint64_t> Find(const std::string& product) override;
  // The first rank of the job that lands a choice decides for all. Where the store fails each rank
  // goes on with its own choices, with a line in the log.
  uint64_t Land(const std::string& product, uint64_t algorithm) override;

  // After a step: keeps new choices in the file. The first call logs, on rank 0, how many products
  // were timed and how long it took. The file's errors go to the log, once.
  void Keep();

 private:
  JobChoices(const std::string& machine, std::optional<ChoiceFile> file,
             const ChoiceSharing& sharing, std::shared_ptr<rendezvous::StoreClient> store,
             ChoiceTable table, Clock* clock);
  std::string KeyOf(const std::string& product) const;
  // The algorithm that the job has landed. nullopt: none yet.
  std::optional<uint64_t> Ask(const std::string& key, absl::Duration patience)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoseStore(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ChoiceSharing sharing_;
  const std::string keys_;  // of this machine's products
  Clock* const clock_;

  Mutex mutex_;
  std::optional<ChoiceFile> file_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<rendezvous::StoreClient> store_ ABSL_GUARDED_BY(mutex_);
  ChoiceTable table_ ABSL_GUARDED_BY(mutex_);
  // Since the last Keep; at first what came from other nodes may be new to the file.
  bool is_new_ ABSL_GUARDED_BY(mutex_) = true;
  bool has_told_ ABSL_GUARDED_BY(mutex_) = false;
  int found_ ABSL_GUARDED_BY(mutex_) = 0;
  int timed_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration timing_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime asked_ ABSL_GUARDED_BY(mutex_);  // the last Find
};

}  // namespace convene::worker
