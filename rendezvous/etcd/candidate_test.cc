#include "rendezvous/etcd/candidate.h"

#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/testing/fake_etcd.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous::etcd {
namespace {

MonotonicTime In(double seconds) { return Clock::Real().Now() + absl::Seconds(seconds); }

// A candidate whose lease has one second.
class Runner {
 public:
  explicit Runner(const Place& place, MonotonicTime answer_by = In(20), int64_t earlier_lease = 0) {
    auto client = Client::Make(place.members, {});
    REQUIRE_OK(client);
    client_ = *std::move(client);
    auto started = Candidate::Start(client_.get(), {.place = place,
                                                    .lease = absl::Seconds(1),
                                                    .name = "runner",
                                                    .answer_by = answer_by,
                                                    .earlier_lease = earlier_lease,
                                                    .on_change = [this] {
                                                      MutexLock lock(&mutex_);
                                                      changed_.Signal();
                                                    }});
    REQUIRE_OK(started);
    candidate_ = *std::move(started);
  }

  // The state in which it leads, or after its end.
  Candidate::State Await(bool is_end, MonotonicTime deadline = In(20)) {
    MutexLock lock(&mutex_);
    for (;;) {
      Candidate::State state = candidate_->state();
      const absl::Duration left = deadline - Clock::Real().Now();
      const bool is_enough = is_end ? !state.status.ok() : state.tenure != nullptr;
      if (is_enough || left <= absl::ZeroDuration()) return state;
      changed_.WaitFor(&mutex_, left);
    }
  }

 private:
  std::unique_ptr<Client> client_;
  Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<Candidate> candidate_;
};

TEST_CASE("one leads, keeps its lease, and the next one leads at once when it ends in order") {
  FakeEtcd etcd;
  auto first = std::make_unique<Runner>(etcd.place);
  const auto tenure = first->Await(false).tenure;
  REQUIRE(tenure != nullptr);
  Runner second(etcd.place);
  CHECK(second.Await(false, In(1.5)).tenure == nullptr);  // longer than the lease
  CHECK(tenure->Covers(Clock::Real().Now()));
  CHECK(etcd.renewals >= 3);
  first.reset();
  CHECK_FALSE(tenure->Covers(Clock::Real().Now()));
  const auto next = second.Await(false).tenure;
  REQUIRE(next != nullptr);
  CHECK(next->term() > tenure->term());
}

TEST_CASE("a lease that etcd does not know any more ends the tenure at once") {
  FakeEtcd etcd;
  Runner runner(etcd.place);
  const auto tenure = runner.Await(false).tenure;
  REQUIRE(tenure != nullptr);
  etcd.forgets_leases = true;
  CHECK_STATUS(runner.Await(true).status, absl::StatusCode::kAborted, "not renewed");
  CHECK_FALSE(tenure->Covers(Clock::Real().Now()));
}

TEST_CASE(
    "a lease that could not be given back is given back by the same daemon's next candidacy") {
  FakeEtcd etcd;
  auto first = std::make_unique<Runner>(etcd.place);
  const Candidate::State led = first->Await(false);
  REQUIRE(led.tenure != nullptr);
  etcd.forgets_leases = etcd.refuses_revokes = true;  // as an etcd without quorum
  first.reset();
  etcd.forgets_leases = etcd.refuses_revokes = false;
  CHECK(Runner(etcd.place).Await(false, In(0.6)).tenure == nullptr);
  Runner again(etcd.place, In(20), led.lease);
  const auto next = again.Await(false).tenure;
  REQUIRE(next != nullptr);
  CHECK(next->term() > led.tenure->term());
}

TEST_CASE("a leader's key that has no lease is another's, and no lease is granted beside it") {
  FakeEtcd etcd;
  etcdserverpb::TxnRequest request;
  request.add_success()->mutable_request_put()->set_key(etcd.place.leader());
  etcdserverpb::TxnResponse response;
  REQUIRE(etcd.Txn(nullptr, &request, &response).ok());
  CHECK(Runner(etcd.place).Await(false, In(0.6)).tenure == nullptr);
  CHECK(etcd.last_lease == 0);
}

TEST_CASE("a renewal by a leader of etcd that is cut off does not count") {
  FakeEtcd etcd;
  etcd.renews_in_term = 4;
  Runner runner(etcd.place);
  REQUIRE(runner.Await(false).tenure != nullptr);
  CHECK_STATUS(runner.Await(true).status, absl::StatusCode::kAborted, "");
}

TEST_CASE(
    "etcd hears one renewal more where its answers are lost, so that the next one leads soon") {
  FakeEtcd etcd;
  etcd.ttl = 8;
  Runner runner(etcd.place);
  REQUIRE(runner.Await(false).tenure != nullptr);
  // The tenure of 7 s is there once a renewal has had its answer; the next one comes a second
  // later.
  CHECK(runner.Await(true, In(0.5)).status.ok());
  etcd.loses_answers = true;
  const int heard = etcd.renewals;
  CHECK(runner.Await(true, In(4)).status.ok());
  CHECK(etcd.renewals - heard == 1);
  etcd.loses_answers = false;
  CHECK(runner.Await(true, In(2)).status.ok());
  CHECK(etcd.renewals - heard > 1);
}

TEST_CASE("without a first answer in time a candidacy ends, and says why") {
  Runner runner({{"127.0.0.1:1"}, "p"}, In(0.3));
  CHECK_STATUS(runner.Await(true).status, absl::StatusCode::kUnavailable, "127.0.0.1:1: ");
}

}  // namespace
}  // namespace convene::rendezvous::etcd
