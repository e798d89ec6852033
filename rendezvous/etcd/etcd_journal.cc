#include "rendezvous/etcd/etcd_journal.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/journal/record_wire.h"
#include "tools/base/clock.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous::etcd {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(2);
// A page of this many values of at most Ledger::kRequestBytes each arrives within a second.
constexpr int64_t kKeysPerPage = 16;

// Appends the keys that began with `prefix` at `revision`.
absl::Status ReadAll(Client* client, const std::string& prefix, int64_t revision,
                     MonotonicTime deadline, std::vector<etcdserverpb::KeyValue>* kvs) {
  etcdserverpb::RangeRequest request;
  request.set_key(prefix);
  request.set_range_end(EndOfPrefix(prefix));
  request.set_revision(revision);
  request.set_limit(kKeysPerPage);
  for (;;) {
    CONVENE_ASSIGN_OR_RETURN(etcdserverpb::RangeResponse page, client->Range(request, deadline));
    for (etcdserverpb::KeyValue& kv : *page.mutable_kvs()) kvs->push_back(std::move(kv));
    if (!page.more() || page.kvs_size() == 0) return absl::OkStatus();
    request.set_key(kvs->back().key() + '\0');
  }
}

}  // namespace

absl::StatusOr<Journal::Opened> EtcdJournal::Open(Client* client, const Place& place, int64_t lease,
                                                  std::shared_ptr<Tenure> tenure) {
  // A read of the store as it was when our key was made. A read of the newest state may be stale: a
  // member that was paused answers it (etcd before 3.4.42).
  std::vector<etcdserverpb::KeyValue> kvs;
  for (const std::string& prefix : {place.jobs(), place.parts()}) {
    CONVENE_RETURN_IF_ERROR(ReadAll(client, prefix, tenure->term(), tenure->until(), &kvs));
  }
  Opened opened;
  auto* const journal = new EtcdJournal(client, place, lease, tenure);
  opened.journal.reset(journal);
  CONVENE_ASSIGN_OR_RETURN(const auto records, journal->ledger_.Load(kvs));
  for (const v1::JobRecord& wire : records) {
    CONVENE_ASSIGN_OR_RETURN(JobRecord record, FromWire(wire, WallNow()));
    opened.jobs.push_back(std::move(record));
  }
  opened.tenure = std::move(tenure);
  return opened;
}

absl::Status EtcdJournal::Append(const RecordChanges& changes) {
  for (const std::string& id : changes.forgotten) ledger_.Want(id, std::nullopt);
  for (const JobRecord& job : changes.jobs) {
    ledger_.Want(job.founder.job_id, ToWire(job, WallNow()));
  }
  const absl::Status status = Settle();
  is_current_ = status.ok();
  return status;
}

absl::Status EtcdJournal::Settle() {
  const MonotonicTime deadline = std::min(Clock::Real().Now() + kPatience, tenure_->until());
  while (!ledger_.is_settled()) {
    if (!tenure_->Covers(Clock::Real().Now())) {
      return absl::AbortedError("this daemon's time to lead is over");
    }
    CONVENE_ASSIGN_OR_RETURN(const auto response, client_->Txn(ledger_.Next(), deadline));
    const absl::Status answered = ledger_.Answered(response);
    if (!answered.ok()) {
      tenure_->End();
      return answered;
    }
  }
  return absl::OkStatus();
}

}  // namespace convene::rendezvous::etcd
