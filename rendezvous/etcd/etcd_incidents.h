// The incidents of the runs of daemons that share an etcd: the reports outlive a leader's term.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/ledger.h"
#include "rendezvous/etcd/place.h"
#include "rendezvous/journal/incident_shelf.h"
#include "rendezvous/journal/tenure.h"
#include "tools/base/clock.h"

namespace convene::rendezvous::etcd {

// Each call blocks for a second at most, and not beyond the tenure; all calls of Read together too.
class EtcdIncidents final : public IncidentShelf {
 public:
  // `client` and `ledger`, whose fence the writes have, outlive it.
  EtcdIncidents(Client* client, const Ledger* ledger, Place place, std::shared_ptr<Tenure> tenure)
      : client_(client),
        ledger_(ledger),
        place_(std::move(place)),
        tenure_(std::move(tenure)),
        read_by_(Deadline()) {}

  absl::Status Write(const std::string& job_id, const IncidentView& incident) override;
  absl::StatusOr<std::vector<IncidentView>> Read(const std::string& job_id) override;
  absl::Status Forget(const std::string& job_id) override;

 private:
  MonotonicTime Deadline() const;
  etcdserverpb::RangeRequest ReportsOf(const std::string& job_id) const;
  // The keys of the reports that go when this one is written.
  absl::StatusOr<std::vector<std::string>> KeysThatGo(const std::string& job_id, int64_t number,
                                                      MonotonicTime deadline);
  // Sends `request`, which has the ledger's fence.
  absl::Status Change(const etcdserverpb::TxnRequest& request, MonotonicTime deadline);

  Client* const client_;
  const Ledger* const ledger_;
  const Place place_;
  const std::shared_ptr<Tenure> tenure_;
  const MonotonicTime read_by_;
  bool has_complained_ = false;  // of reads
  bool keeps_forgotten_ = false;
};

}  // namespace convene::rendezvous::etcd
