#include "rendezvous/etcd/client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "rendezvous/etcd/etcd.grpc.pb.h"
#include "rendezvous/etcd/place.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/lock/testing/test_ca.h"
#include "rendezvous/net/listen.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous::etcd {
namespace {

// A member of etcd that answers as it is told to: the first request with the first status, and so
// on, and all others with the last one.
class FakeMember final : public etcdserverpb::KV::Service, public etcdserverpb::Lease::Service {
 public:
  explicit FakeMember(const grpc::Status& status,
                      const std::shared_ptr<grpc::ServerCredentials>& credentials =
                          grpc::InsecureServerCredentials())
      : FakeMember(std::vector<grpc::Status>{status}, credentials) {}
  explicit FakeMember(std::vector<grpc::Status> statuses,
                      const std::shared_ptr<grpc::ServerCredentials>& credentials =
                          grpc::InsecureServerCredentials())
      : statuses_(std::move(statuses)) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", credentials, &port);
    builder.RegisterService(static_cast<etcdserverpb::KV::Service*>(this));
    builder.RegisterService(static_cast<etcdserverpb::Lease::Service*>(this));
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    address = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeMember() override { server_->Shutdown(); }

  grpc::Status Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest*,
                   etcdserverpb::TxnResponse* response) override {
    response->set_succeeded(true);
    return statuses_[std::min<size_t>(asked++, statuses_.size() - 1)];
  }

  grpc::Status LeaseKeepAlive(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<etcdserverpb::LeaseKeepAliveResponse,
                               etcdserverpb::LeaseKeepAliveRequest>* stream) override {
    etcdserverpb::LeaseKeepAliveRequest request;
    etcdserverpb::LeaseKeepAliveResponse response;
    response.set_ttl(8);
    if (statuses_[0].ok() && stream->Read(&request) && request.id() != 0) {
      if (request.id() == 7) response.set_ttl(0);
      stream->Write(response);
    }
    return statuses_[0];
  }

  std::atomic<int> asked = 0;
  std::string address;

 private:
  const std::vector<grpc::Status> statuses_;
  std::unique_ptr<grpc::Server> server_;
};

std::unique_ptr<Client> MakeClient(const std::vector<std::string>& members,
                                   const TlsFiles& tls = {}) {
  auto client = Client::Make(members, tls);
  REQUIRE_OK(client);
  return *std::move(client);
}

MonotonicTime In(double seconds) { return Clock::Real().Now() + absl::Seconds(seconds); }

grpc::Status Error(grpc::StatusCode code, const std::string& text = "why") { return {code, text}; }

TEST_CASE("a call goes on to the next member, and stays with the one that answers") {
  FakeMember lost(Error(grpc::UNAVAILABLE));
  FakeMember leaderless(Error(grpc::UNKNOWN, "context deadline exceeded"));
  // Its connections are the kernel's.
  const auto stopped = ListenOn("127.0.0.1", 0);
  REQUIRE_OK(stopped);
  FakeMember good(grpc::Status::OK);
  const auto client = MakeClient({lost.address, "127.0.0.1:1", leaderless.address,
                                  absl::StrCat("127.0.0.1:", stopped->port), good.address});
  REQUIRE_OK(client->Txn({}, In(20)));
  REQUIRE_OK(client->Txn({}, In(20)));
  CHECK(lost.asked == 1);
  CHECK(leaderless.asked == 1);
  CHECK(good.asked == 2);
}

TEST_CASE("without an answer each member is named with its reason") {
  FakeMember lost(Error(grpc::UNAVAILABLE, "no leader"));
  const auto client = MakeClient({lost.address, "127.0.0.1:1"});
  const auto answer = client->Txn({}, In(0.3));
  CHECK_STATUS(answer, absl::StatusCode::kUnavailable, lost.address + ": no leader; 127.0.0.1:1: ");
  CHECK(lost.asked > 1);
  CHECK_STATUS(client->Txn({}, In(0)), absl::StatusCode::kUnavailable, "was not asked in time");
}

TEST_CASE("an answer that is an error is not asked for again") {
  const auto [code, expected, text] =
      GENERATE(table<grpc::StatusCode, absl::StatusCode, std::string>(
          {{grpc::RESOURCE_EXHAUSTED, absl::StatusCode::kResourceExhausted, "etcdctl alarm disarm"},
           {grpc::PERMISSION_DENIED, absl::StatusCode::kPermissionDenied, "why"},
           {grpc::NOT_FOUND, absl::StatusCode::kNotFound, "why"}}));
  FakeMember wrong(Error(code));
  FakeMember good(grpc::Status::OK);
  const auto client = MakeClient({wrong.address, good.address});
  CHECK_STATUS(client->Txn({}, In(20)), expected, text);
  CHECK(wrong.asked + good.asked == 1);
}

TEST_CASE("a program that is no etcd ends the search where each member is such a one") {
  FakeMember wrong(Error(grpc::UNIMPLEMENTED, ""));
  FakeMember good(grpc::Status::OK);
  CHECK_OK(MakeClient({wrong.address, good.address})->Txn({}, In(20)));
  CHECK_STATUS(MakeClient({wrong.address})->Txn({}, In(20)), absl::StatusCode::kFailedPrecondition,
               absl::StrCat("the program at ", wrong.address, " does not speak version 3"));
  FakeMember lost(Error(grpc::UNAVAILABLE, "no leader"));
  CHECK_STATUS(MakeClient({wrong.address, lost.address})->Txn({}, In(0.5)),
               absl::StatusCode::kUnavailable, "does not speak version 3 of etcd's API; ");
}

// Answers every connection in HTTP/1, as an etcd of version 2 does.
class Version2 {
 public:
  Version2() {
    auto listener = ListenOn("127.0.0.1", 0);
    REQUIRE_OK(listener);
    address = absl::StrCat("127.0.0.1:", listener->port);
    listener_ = std::move(listener->fd);
    thread_ = Thread("version-2", [this] { Serve(); });
  }
  ~Version2() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.Join();
  }

  std::string address;

 private:
  void Serve() {
    constexpr char kAnswer[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    pollfd ready = {listener_.get(), POLLIN, 0};
    while (poll(&ready, 1, -1) == 1 && (ready.revents & POLLHUP) == 0) {
      const UniqueFd fd(accept(listener_.get(), nullptr, nullptr));
      char bytes[256];
      if (!fd.valid() || recv(fd.get(), bytes, sizeof(bytes), 0) <= 0) continue;
      (void)send(fd.get(), kAnswer, sizeof(kAnswer) - 1, MSG_NOSIGNAL);
      while (recv(fd.get(), bytes, sizeof(bytes), 0) > 0) {
      }
    }
  }

  UniqueFd listener_;
  Thread thread_;
};

TEST_CASE(
    "an etcd of version 2 at each address is the user's to mend, and one that is away is not") {
  Version2 second, third;
  CHECK_STATUS(MakeClient({second.address, third.address})->Txn({}, In(1)),
               absl::StatusCode::kFailedPrecondition, "an etcd of version 2 is there");
  FakeMember wrong(Error(grpc::UNIMPLEMENTED, ""));
  CHECK_STATUS(MakeClient({second.address, wrong.address})->Txn({}, In(1)),
               absl::StatusCode::kFailedPrecondition, second.address);
  CHECK_STATUS(MakeClient({second.address, "127.0.0.1:1"})->Txn({}, In(1)),
               absl::StatusCode::kUnavailable, "an etcd of version 2 is there");
  const grpc::Status stranger = Error(grpc::UNIMPLEMENTED, "");
  FakeMember wakes({stranger, Error(grpc::UNAVAILABLE, "no leader")});
  CHECK_STATUS(MakeClient({second.address, wakes.address})->Txn({}, In(1)),
               absl::StatusCode::kUnavailable, "no leader");
  // An etcd that has answered once may be behind a proxy that answers for it now.
  FakeMember hides({grpc::Status::OK, stranger});
  const auto client = MakeClient({hides.address, second.address});
  REQUIRE_OK(client->Txn({}, In(20)));
  CHECK_STATUS(client->Txn({}, In(1)), absl::StatusCode::kUnavailable, second.address);
}

TEST_CASE("a lease is alive, gone, or not known to be either") {
  FakeMember good(grpc::Status::OK);
  const auto client = MakeClient({good.address});
  CHECK(client->KeepAlive(1, In(20))->ttl() == 8);
  CHECK(client->KeepAlive(7, In(20))->ttl() == 0);
  // The stream ends without an answer: that is no "gone".
  CHECK_STATUS(client->KeepAlive(0, In(0.2)), absl::StatusCode::kUnavailable, "without an answer");
}

// A member that takes clients with a certificate of its CA alone.
std::shared_ptr<grpc::ServerCredentials> Locked(const Credentials& files) {
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = *ReadFile(files.tls_ca);
  options.pem_key_cert_pairs = {{*ReadFile(files.tls_key), *ReadFile(files.tls_cert)}};
  return grpc::SslServerCredentials(options);
}

TEST_CASE("over TLS both sides have a certificate of the CA, and the member the right name") {
  const TestCa ca, other;
  const testing::TempDir here, there, elsewhere;
  const Credentials own = ca.Issue(here.path(), {.names = "DNS:daemon"});
  FakeMember member(grpc::Status::OK, Locked(ca.Issue(there.path())));
  const TlsFiles tls = {own.tls_ca, own.tls_cert, own.tls_key};
  CHECK_OK(MakeClient({member.address}, tls)->Txn({}, In(20)));

  const Credentials strange = other.Issue(elsewhere.path());
  const TlsFiles another_ca = {strange.tls_ca, own.tls_cert, own.tls_key};
  const TlsFiles another_key = {own.tls_ca, strange.tls_cert, strange.tls_key};
  const TlsFiles no_key = {own.tls_ca, "", ""};
  for (const TlsFiles& wrong : {another_ca, another_key, no_key, TlsFiles()}) {
    CHECK_STATUS(MakeClient({member.address}, wrong)->Txn({}, In(1)),
                 absl::StatusCode::kUnavailable, member.address);
  }
  FakeMember misnamed(grpc::Status::OK, Locked(ca.Issue(elsewhere.path(), {.names = "DNS:etcd2"})));
  CHECK_STATUS(MakeClient({misnamed.address}, tls)->Txn({}, In(1)), absl::StatusCode::kUnavailable,
               misnamed.address);
}

TEST_CASE("a file of TLS that is missing, or a key that others may read, is named") {
  const testing::TempDir here;
  const Credentials own = TestCa().Issue(here.path());
  CHECK_STATUS(Client::Make({"a:1"}, {here.File("none"), "", ""}), absl::StatusCode::kNotFound,
               here.File("none"));
  REQUIRE(chmod(own.tls_key.c_str(), 0644) == 0);
  CHECK_STATUS(Client::Make({"a:1"}, {own.tls_ca, own.tls_cert, own.tls_key}),
               absl::StatusCode::kPermissionDenied, own.tls_key);
}

}  // namespace
}  // namespace convene::rendezvous::etcd
