// The journal in etcd, which several daemons share: the one that leads writes.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/etcd_incidents.h"
#include "rendezvous/etcd/ledger.h"
#include "rendezvous/etcd/place.h"
#include "rendezvous/journal/journal.h"

namespace convene::rendezvous::etcd {

class EtcdJournal final : public Journal {
 public:
  // The memory as it was when `tenure`, which `lease` holds, began: no other daemon has changed it
  // since. `client` outlives the journal. Errors: Client's, and Ledger::Load's.
  static absl::StatusOr<Opened> Open(Client* client, const Place& place, int64_t lease,
                                     std::shared_ptr<Tenure> tenure);

  // Blocks for two seconds at most, and not beyond the tenure. An error that says that this daemon
  // leads no more ends the tenure.
  absl::Status Append(const RecordChanges& changes) override;
  bool is_current() const override { return is_current_; }
  IncidentShelf* incidents() override { return &incidents_; }

 private:
  EtcdJournal(Client* client, const Place& place, int64_t lease, std::shared_ptr<Tenure> tenure)
      : client_(client),
        ledger_(place, lease, tenure->term()),
        incidents_(client, &ledger_, place, tenure),
        tenure_(std::move(tenure)) {}
  absl::Status Settle();

  Client* const client_;
  Ledger ledger_;
  EtcdIncidents incidents_;
  const std::shared_ptr<Tenure> tenure_;
  bool is_current_ = true;
};

}  // namespace convene::rendezvous::etcd
