#include "rendezvous/etcd/ledger.h"

#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <random>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/etcd/leadership.h"
#include "rendezvous/etcd/testing/memory_etcd.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous::etcd {
namespace {

using Jobs = std::map<std::string, std::string>;  // the `why` of each

const Place kPlace = {{"a:2379"}, "p"};

v1::JobRecord RecordOf(const std::string& id, const std::string& why) {
  v1::JobRecord record;
  record.mutable_founder()->set_job_id(id);
  record.set_why(why);
  return record;
}

// A daemon's ledger that has begun its term.
struct Leader {
  Leader(MemoryEtcd* to_etcd, int64_t its_lease, size_t request_bytes = 200)
      : etcd(to_etcd), lease(its_lease), ledger(Begin(request_bytes)) {}

  Ledger Begin(size_t request_bytes) {
    const auto term = TermOf(etcd->Txn(CampaignRequest(kPlace, lease, "d")), lease);
    REQUIRE(term.has_value());
    Ledger begun(kPlace, lease, *term, request_bytes);
    const auto records = begun.Load(etcd->All());
    REQUIRE_OK(records);
    for (const v1::JobRecord& record : *records) jobs[record.founder().job_id()] = record.why();
    return begun;
  }

  void Want(const std::string& id, const std::string& why) {
    ledger.Want(id, RecordOf(id, why));
    jobs[id] = why;
  }
  void Forget(const std::string& id) {
    ledger.Want(id, std::nullopt);
    jobs.erase(id);
  }
  int Settle() {
    int transactions = 0;
    for (; !ledger.is_settled(); ++transactions)
      REQUIRE_OK(ledger.Answered(etcd->Txn(ledger.Next())));
    return transactions;
  }

  MemoryEtcd* const etcd;
  const int64_t lease;
  Jobs jobs;  // as they have to be
  Ledger ledger;
};

int KeysBelow(const MemoryEtcd& etcd, const std::string& prefix) {
  int count = 0;
  for (const auto& kv : etcd.All()) count += absl::StartsWith(kv.key(), prefix) ? 1 : 0;
  return count;
}

TEST_CASE(
    "a write beside the ledger counts before the next decision, and never in another's term") {
  MemoryEtcd etcd;
  Leader leader(&etcd, 7);
  const auto report = [&] {
    etcdserverpb::TxnRequest request = leader.ledger.Fenced();
    request.add_success()->mutable_request_put()->set_key(kPlace.incidents() + "1");
    return request;
  };
  const etcdserverpb::TxnRequest early = report();
  CHECK(etcd.Txn(early).succeeded());
  leader.Want("a", "1");
  CHECK(leader.Settle() == 1);  // the write before did not move the counter
  CHECK_FALSE(etcd.Txn(early).succeeded());
  const etcdserverpb::TxnRequest late = report();
  etcd.Expire(7);
  CHECK_FALSE(etcd.Txn(late).succeeded());
  Leader next(&etcd, 8);
  CHECK_FALSE(etcd.Txn(late).succeeded());
  CHECK(next.ledger.is_settled());  // the report is nothing of the ledger's
}

TEST_CASE("the next leader reads what the last one wrote") {
  MemoryEtcd etcd;
  Leader first(&etcd, 7);
  CHECK(first.ledger.is_settled());
  first.Want("a", "1");
  first.Want("a/0", "2");
  first.Want("b", "3");
  CHECK(first.Settle() == 1);
  first.Want("a", "4");
  first.Forget("b");
  CHECK(first.Settle() == 1);
  etcd.Expire(7);
  CHECK(Leader(&etcd, 8).jobs == Jobs{{"a", "4"}, {"a/0", "2"}});
}

TEST_CASE("a leader whose term is over changes nothing") {
  MemoryEtcd etcd;
  Leader first(&etcd, 7);
  first.Want("a", "1");
  first.Settle();
  first.Want("a", "of a dead leader");
  SECTION("when nobody leads") {
    etcd.Expire(7);
    CHECK_STATUS(first.ledger.Answered(etcd.Txn(first.ledger.Next())),
                 absl::StatusCode::kFailedPrecondition, "lease in etcd is over");
  }
  SECTION("when another one leads") {
    etcd.Expire(7);
    const Leader second(&etcd, 8);
    CHECK_STATUS(first.ledger.Answered(etcd.Txn(first.ledger.Next())),
                 absl::StatusCode::kFailedPrecondition, "another daemon leads: d");
  }
  etcd.Expire(8);
  CHECK(Leader(&etcd, 9).jobs == Jobs{{"a", "1"}});
}

TEST_CASE("the same lease that leads again begins another term, which fences the first") {
  MemoryEtcd etcd;
  Leader first(&etcd, 7);
  first.Want("a", "late");
  const etcdserverpb::TxnRequest late = first.ledger.Next();
  etcd.Expire(7);
  const Leader again(&etcd, 7);
  CHECK_FALSE(etcd.Txn(late).succeeded());
}

TEST_CASE("a transaction without an answer is looked up, and an old copy changes nothing") {
  MemoryEtcd etcd;
  Leader leader(&etcd, 7);
  leader.Want("a", "1");
  const etcdserverpb::TxnRequest lost = leader.ledger.Next();
  const bool was_applied = GENERATE(true, false);
  if (was_applied) etcd.Txn(lost);
  leader.Want("a", "2");
  CHECK(leader.ledger.Next().SerializeAsString() == lost.SerializeAsString());
  CHECK(leader.Settle() == 2);
  CHECK_FALSE(etcd.Txn(lost).succeeded());
  etcd.Expire(7);
  CHECK(Leader(&etcd, 8).jobs == Jobs{{"a", "2"}});
}

TEST_CASE("a large record is whole or the old one, and its parts go with it") {
  MemoryEtcd etcd;
  const std::string large(1000, 'x');
  Leader first(&etcd, 7);
  first.Want("a", "small");
  first.Settle();
  first.Want("a", large);
  first.Want("b", "1");
  const int done = GENERATE(0, 1, 5, 100);
  int transactions = 0;
  for (; !first.ledger.is_settled() && transactions < done; ++transactions) {
    REQUIRE_OK(first.ledger.Answered(etcd.Txn(first.ledger.Next())));
  }
  etcd.Expire(7);
  Leader second(&etcd, 8);
  CHECK(second.jobs["a"] == (done == 100 ? large : "small"));
  CHECK(KeysBelow(etcd, "p/parts/") >= (done == 100 ? 6 : done));
  second.Want("a", "small again");
  second.Settle();
  CHECK(KeysBelow(etcd, "p/parts/") == 0);
}

TEST_CASE("many changes keep to etcd's limits") {
  MemoryEtcd etcd;  // it checks them
  Leader leader(&etcd, 7, Ledger::kRequestBytes);
  for (int i = 0; i < 1000; ++i) leader.Want(absl::StrCat("job", i), std::string(10'000, 'y'));
  CHECK(leader.Settle() <= 12);
  leader.Want("huge", std::string(5 << 20, 'z'));
  CHECK(leader.Settle() == 7);
  for (int i = 0; i < 1000; ++i) leader.Forget(absl::StrCat("job", i));
  leader.Forget("huge");
  CHECK(leader.Settle() <= 12);
  CHECK(KeysBelow(etcd, "p/jobs/") + KeysBelow(etcd, "p/parts/") == 0);
}

TEST_CASE("another program's hand in our keys is seen") {
  MemoryEtcd etcd;
  Leader leader(&etcd, 7);
  etcdserverpb::TxnRequest hand;
  hand.add_success()->mutable_request_put()->set_key(kPlace.counter());
  etcd.Txn(hand);
  leader.Want("a", "1");
  CHECK_STATUS(leader.ledger.Answered(etcd.Txn(leader.ledger.Next())), absl::StatusCode::kInternal,
               "p/counter in etcd is not as this daemon left it");
}

TEST_CASE("keys that no daemon wrote are refused by name") {
  const auto load = [](const std::string& key, const v1::StoredJob& job) {
    etcdserverpb::KeyValue kv;
    kv.set_key(key);
    kv.set_value(job.SerializeAsString());
    return Ledger(kPlace, 7, 1).Load({kv}).status();
  };
  v1::StoredJob job;
  CHECK_STATUS(load("p/jobs/a", job), absl::StatusCode::kDataLoss, "p/jobs/a in etcd holds no job");
  job.set_format(2);
  CHECK_STATUS(load("p/jobs/a", job), absl::StatusCode::kFailedPrecondition, "has format 2");
  job.set_format(1);
  *job.mutable_record() = RecordOf("a", "");
  CHECK_OK(load("p/jobs/a", job));
  CHECK_STATUS(load("p/jobs/b", job), absl::StatusCode::kDataLoss, "another job's record");
  job.mutable_parts()->set_count(2);
  CHECK_STATUS(load("p/jobs/a", job), absl::StatusCode::kDataLoss, "misses its part 0");
}

// Answers are lost, copies of requests arrive late, leaders die in the midst of their writes. The
// next leader reads each job as it was stored, or as the last leader wanted it later.
TEST_CASE("nothing that was stored is lost, whatever becomes of requests and answers") {
  std::mt19937 random(static_cast<unsigned>(GENERATE(range(0, 200))));
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  MemoryEtcd etcd;
  std::deque<etcdserverpb::TxnRequest> in_flight;
  Jobs stored;
  int last = 0;
  for (int64_t lease = 1; lease <= 8; ++lease) {
    Leader leader(&etcd, lease, 60);
    // Each job is as it was stored, or newer.
    for (const auto& [id, why] : stored) {
      REQUIRE(leader.jobs.count(id) == 1);
      REQUIRE(std::stoi(leader.jobs[id]) >= std::stoi(why));
    }
    stored = leader.jobs;
    for (int step = below(40); step > 0; --step) {
      if (below(2) == 0) {
        const std::string number = absl::StrCat(++last);
        leader.Want(absl::StrCat("job", below(3)),
                    number + std::string(below(4) == 0 ? 300 : 0, ' '));
      }
      if (!in_flight.empty() && below(3) == 0) {
        etcd.Txn(in_flight.front());
        in_flight.pop_front();
      }
      if (leader.ledger.is_settled()) continue;
      const etcdserverpb::TxnRequest request = leader.ledger.Next();
      switch (below(4)) {
        case 0:  // lost on its way there, or late
          in_flight.push_back(request);
          break;
        case 1:  // lost on its way back
          etcd.Txn(request);
          break;
        default:
          REQUIRE_OK(leader.ledger.Answered(etcd.Txn(request)));
      }
      if (leader.ledger.is_settled()) stored = leader.jobs;
    }
    etcd.Expire(lease);
  }
}

}  // namespace
}  // namespace convene::rendezvous::etcd
