#include "rendezvous/etcd/etcd_incidents.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/leadership.h"
#include "rendezvous/etcd/ledger.h"
#include "rendezvous/etcd/testing/fake_etcd.h"
#include "rendezvous/journal/incident_shelf.h"
#include "rendezvous/journal/tenure.h"
#include "rendezvous/quorum/chronicle.h"
#include "rendezvous/wire/status_json.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous::etcd {
namespace {

constexpr int64_t kLease = 7;

// The daemon that leads.
struct Leader {
  Leader() {
    auto made = Client::Make(etcd.place.members, {});
    REQUIRE_OK(made);
    client = *std::move(made);
    const auto campaigned =
        client->Txn(CampaignRequest(etcd.place, kLease, "d"), MonotonicTime::InfiniteFuture());
    REQUIRE_OK(campaigned);
    const auto term = TermOf(*campaigned, kLease);
    REQUIRE(term.has_value());
    tenure = std::make_shared<Tenure>(*term, MonotonicTime::InfiniteFuture());
    ledger = std::make_unique<Ledger>(etcd.place, kLease, *term);
  }
  EtcdIncidents Shelf() { return {client.get(), ledger.get(), etcd.place, tenure}; }

  FakeEtcd etcd;
  std::unique_ptr<Client> client;
  std::shared_ptr<Tenure> tenure;
  std::unique_ptr<Ledger> ledger;
};

IncidentView Numbered(int64_t number) { return {.number = number, .cause = "exit code 1"}; }

TEST_CASE("reports of which an older daemon kept too many go with the next ones") {
  Leader leader;
  for (int64_t number = 1; number <= 200; ++number) {
    etcdserverpb::TxnRequest request;
    auto* const put = request.add_success()->mutable_request_put();
    put->set_key(leader.etcd.place.incidents() + IncidentName("run", number));
    put->set_value(IncidentJson(Numbered(number)));
    REQUIRE_OK(leader.client->Txn(request, MonotonicTime::InfiniteFuture()));
  }
  EtcdIncidents shelf = leader.Shelf();
  for (int64_t number = 201; number <= 204; ++number) {
    REQUIRE_OK(shelf.Write("run", Numbered(number)));
  }
  const auto reports = leader.Shelf().Read("run");
  REQUIRE_OK(reports);
  CHECK(reports->size() == Chronicle::kMostIncidents);
  CHECK(reports->back().number == 204);
}

TEST_CASE("a run has 32 reports at most, also where the daemon could not read those from before") {
  Leader leader;
  EtcdIncidents shelf = leader.Shelf();
  for (int64_t number = 1; number <= 40; ++number) {
    REQUIRE_OK(shelf.Write("run", Numbered(number)));
  }
  REQUIRE_OK(shelf.Write("other", Numbered(1)));
  const auto kept = [&](const char* run) {
    etcdserverpb::RangeRequest request;
    request.set_key(leader.etcd.place.incidents() + IncidentPrefix(run));
    request.set_range_end(EndOfPrefix(request.key()));
    const auto found = leader.client->Range(request, MonotonicTime::InfiniteFuture());
    REQUIRE_OK(found);
    return static_cast<size_t>(found->kvs_size());
  };
  CHECK(kept("run") == Chronicle::kMostIncidents);
  EtcdIncidents later = leader.Shelf();
  leader.etcd.has_compacted = true;
  CHECK_FALSE(later.Read("run").ok());
  leader.etcd.has_compacted = false;
  // So the numbers are above all that those from before may have.
  for (const int64_t number : {200, 201}) REQUIRE_OK(later.Write("run", Numbered(number)));
  CHECK(kept("run") == Chronicle::kMostIncidents);
  const auto reports = leader.Shelf().Read("run");
  REQUIRE_OK(reports);
  CHECK(reports->front().number == 11);
  CHECK(reports->back().number == 201);
  CHECK(kept("other") == 1);
}

}  // namespace
}  // namespace convene::rendezvous::etcd
