// PURE. The writes of a journal into etcd, cut into transactions.
//
// Every transaction is fenced: it compares the create revision of the leader's key with our term,
// so that a daemon that leads no more changes nothing. It is also counted: it compares the counter
// with the number of the transaction before, and sets it to its own. A transaction without an
// answer (a deadline, a lost connection) may have been applied, or may be applied later. It is sent
// again as it is until an answer comes: of all copies one is applied at most, and when a copy finds
// the counter at its own number, an earlier copy was applied.
//
// Transactions follow each other, and a large set of changes takes several. Each leaves each job's
// record whole: the parts of a large record come first, and the job's key points at them last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/journal.pb.h"
#include "rendezvous/etcd/etcd.pb.h"
#include "rendezvous/etcd/place.h"

namespace convene::rendezvous::etcd {

// Not thread-safe.
class Ledger {
 public:
  // etcd refuses requests above 1.5 MiB, and above 128 operations.
  static constexpr size_t kRequestBytes = size_t{1} << 20;
  static constexpr int kRequestOperations = 100;

  // Of the daemon that leads in `term` by `lease`. `request_bytes` for tests.
  Ledger(Place place, int64_t lease, int64_t term, size_t request_bytes = kRequestBytes)
      : place_(std::move(place)), lease_(lease), term_(term), request_bytes_(request_bytes) {}

  // The records that `kvs`, all jobs and parts as the term began, hold. Once, before Want. DataLoss
  // names the key that makes no sense; FailedPrecondition when a newer version wrote it.
  absl::StatusOr<std::vector<v1::JobRecord>> Load(const std::vector<etcdserverpb::KeyValue>& kvs);

  // From now on the job's record has to be `record`; none: the job is forgotten.
  void Want(const std::string& job_id, std::optional<v1::JobRecord> record) {
    wanted_[job_id] = std::move(record);
  }

  bool is_settled() const {
    return !step_.has_value() && !cut_.has_value() && wanted_.empty() && strays_.empty();
  }
  // The transaction to send: the same one until Answered. REQUIRES: !is_settled().
  const etcdserverpb::TxnRequest& Next();
  // The answer to it. FailedPrecondition: another daemon leads or may, and nothing of this ledger
  // will be applied any more. Internal: a program that is no daemon has written to our keys.
  absl::Status Answered(const etcdserverpb::TxnResponse& response);

  // The beginning of a transaction beside the ledger's own: it changes something only while the
  // daemon leads and the counter stands where the ledger left it. So a late copy of it is applied
  // before the next decision, or never.
  etcdserverpb::TxnRequest Fenced() const;

  // A candidate that campaigns with `lease` writes this into the counter.
  static std::string FirstCount(int64_t lease) { return CountText(lease, 0); }

 private:
  using Parts = v1::StoredJob::Parts;
  // A transaction, and what etcd holds once it is applied.
  struct Step {
    etcdserverpb::TxnRequest request;
    std::map<std::string, std::optional<Parts>> applied;  // of each job; none: no parts
  };
  // A record that is written in parts.
  struct Cut {
    std::string job_id;
    std::string record;
    Parts parts;  // written so far
  };

  std::string PartKey(int64_t lease, int64_t number) const {
    return place_.parts() + CountText(lease, number);
  }
  Step Begin() const;
  void PutPart(Step* step);
  void PutHead(const std::string& job_id, const v1::StoredJob& head, Step* step) const;
  void DropParts(const std::string& job_id, Step* step) const;
  absl::StatusOr<std::string> Join(const std::string& job_id, const Parts& parts,
                                   std::map<std::string, std::string>* values) const;

  const Place place_;
  const int64_t lease_;
  const int64_t term_;
  const size_t request_bytes_;
  int64_t count_ = 0;  // of the last transaction that was applied
  std::optional<Step> step_;
  std::optional<Cut> cut_;
  std::map<std::string, std::optional<v1::JobRecord>> wanted_;  // by job
  std::map<std::string, Parts> parts_;                          // of jobs, in etcd
  std::vector<std::string> strays_;  // keys of parts that an earlier leader did not finish
};

}  // namespace convene::rendezvous::etcd
