#include "rendezvous/etcd/candidate.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "rendezvous/etcd/etcd.grpc.pb.h"
#include "rendezvous/etcd/testing/memory_etcd.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous::etcd {
namespace {

// One member of etcd; leases end when the test says so.
class FakeEtcd final : public etcdserverpb::KV::Service, public etcdserverpb::Lease::Service {
 public:
  FakeEtcd() {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(static_cast<etcdserverpb::KV::Service*>(this));
    builder.RegisterService(static_cast<etcdserverpb::Lease::Service*>(this));
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    place = {{absl::StrCat("127.0.0.1:", port)}, "p"};
  }
  ~FakeEtcd() override { server_->Shutdown(); }

  grpc::Status Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest* request,
                   etcdserverpb::TxnResponse* response) override {
    MutexLock lock(&mutex_);
    *response = etcd_.Txn(*request);
    return grpc::Status::OK;
  }
  grpc::Status Range(grpc::ServerContext*, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* response) override {
    etcdserverpb::TxnRequest read;
    *read.add_success()->mutable_request_range() = *request;
    MutexLock lock(&mutex_);
    *response = etcd_.Txn(read).responses(0).response_range();
    response->mutable_header()->set_raft_term(5);
    return grpc::Status::OK;
  }
  grpc::Status LeaseGrant(grpc::ServerContext*, const etcdserverpb::LeaseGrantRequest* request,
                          etcdserverpb::LeaseGrantResponse* response) override {
    response->set_id(++last_lease);
    response->set_ttl(request->ttl());
    return grpc::Status::OK;
  }
  grpc::Status LeaseKeepAlive(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                               etcdserverpb::LeaseKeepAliveRequest>* stream) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    etcdserverpb::LeaseKeepAliveResponse response;
    if (!stream->Read(&request)) return grpc::Status::OK;
    response.set_ttl(forgets_leases ? 0 : 1);
    response.mutable_header()->set_raft_term(renews_in_term);
    stream->Write(response);
    ++renewals;
    return grpc::Status::OK;
  }
  grpc::Status LeaseRevoke(grpc::ServerContext*, const etcdserverpb::LeaseRevokeRequest* request,
                           etcdserverpb::LeaseRevokeResponse*) override {
    if (refuses_revokes) return {grpc::StatusCode::UNAVAILABLE, "no leader"};
    MutexLock lock(&mutex_);
    etcd_.Expire(request->id());
    return grpc::Status::OK;
  }

  Place place;
  std::atomic<int64_t> last_lease = 0;
  std::atomic<bool> forgets_leases = false;
  std::atomic<bool> refuses_revokes = false;
  std::atomic<uint64_t> renews_in_term = 5;
  std::atomic<int> renewals = 0;

 private:
  Mutex mutex_;
  MemoryEtcd etcd_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

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

TEST_CASE("without a first answer in time a candidacy ends, and says why") {
  Runner runner({{"127.0.0.1:1"}, "p"}, In(0.3));
  CHECK_STATUS(runner.Await(true).status, absl::StatusCode::kUnavailable, "127.0.0.1:1: ");
}

}  // namespace
}  // namespace convene::rendezvous::etcd
