// A MemoryEtcd behind gRPC, for a Client.
#pragma once

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "rendezvous/etcd/etcd.grpc.pb.h"
#include "rendezvous/etcd/place.h"
#include "rendezvous/etcd/testing/memory_etcd.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous::etcd {

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
    constexpr int kMostOperations = 128;  // etcd's --max-txn-ops by default
    if (request->success_size() > kMostOperations) {
      return {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: too many operations in txn request"};
    }
    MutexLock lock(&mutex_);
    *response = etcd_.Txn(*request);
    return grpc::Status::OK;
  }
  grpc::Status Range(grpc::ServerContext* context, const etcdserverpb::RangeRequest* request,
                     etcdserverpb::RangeResponse* response) override {
    AwaitAnswers(context);
    if (has_compacted) return {grpc::StatusCode::OUT_OF_RANGE, "the revision has been compacted"};
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
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                               etcdserverpb::LeaseKeepAliveRequest>* stream) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    etcdserverpb::LeaseKeepAliveResponse response;
    if (!stream->Read(&request)) return grpc::Status::OK;
    ++renewals;
    AwaitAnswers(context);
    response.set_ttl(forgets_leases ? 0 : ttl.load());
    response.mutable_header()->set_raft_term(renews_in_term);
    stream->Write(response);
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
  std::atomic<int64_t> ttl = 1;  // that a renewal gives
  std::atomic<bool> loses_answers = false;
  std::atomic<bool> forgets_leases = false;
  std::atomic<bool> refuses_revokes = false;
  std::atomic<bool> has_compacted = false;
  std::atomic<uint64_t> renews_in_term = 5;
  std::atomic<int> renewals = 0;

 private:
  void AwaitAnswers(grpc::ServerContext* context) const {
    while (loses_answers && !context->IsCancelled()) {
      Clock::Real().SleepFor(absl::Milliseconds(5));
    }
  }

  Mutex mutex_;
  MemoryEtcd etcd_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace convene::rendezvous::etcd
