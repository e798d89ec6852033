// The calls of the daemon that a role may make: each method of the service, over real gRPC.
#include <google/protobuf/descriptor.h>

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "grpcpp/create_channel_posix.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "rendezvous/client/agent_stream.h"
#include "rendezvous/client/status_client.h"
#include "rendezvous/lock/testing/pumps.h"
#include "rendezvous/lock/testing/test_ca.h"
#include "rendezvous/lock/token.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/net/resolve.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/server/server.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::rendezvous {
namespace {

// A new method of the service has no line here, and the test fails until it has. A reader may make
// no call that changes anything, in the jobs or in what others see.
const std::map<std::string, bool> kMayReaderCall = {
    {"Attend", false},
    {"PublishLogs", false},
    {"Status", true},
    {"WatchLogs", true},
};

std::unique_ptr<Server> StartServer(const Credentials& credentials = Token(kToken)) {
  Server::Options options;
  options.host = "127.0.0.1";
  options.credentials = credentials;
  auto server = Server::Start(options);
  REQUIRE_OK(server);
  return *std::move(server);
}

std::string EndpointOf(const Server& server) { return absl::StrCat("127.0.0.1:", server.port()); }

// The end of a call with one empty message, from a client that has `token` for its join token.
grpc::StatusCode Call(const Server& server, const std::string& token, const std::string& method) {
  const auto addresses = ResolveHost("127.0.0.1", kPatience, server.port());
  REQUIRE_OK(addresses);
  auto socket = ConnectTo(addresses->front(), Soon(), Segments::kShort);
  REQUIRE_OK(socket);
  const auto pump = Pump(Token(token.c_str()), TlsContext::Side::kClient);
  Waiter waiter;
  pump->Open(*std::move(socket), "", waiter.Callback());
  auto opened = waiter.Take();
  REQUIRE_OK(opened);
  grpc::GenericStub stub(grpc::CreateInsecureChannelFromFd("daemon", opened->plain.Release()));
  grpc::ClientContext context;
  context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_millis(absl::ToInt64Milliseconds(kPatience), GPR_TIMESPAN)));
  grpc::CompletionQueue done;
  const auto call = stub.PrepareCall(&context, method, &done);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  REQUIRE(done.Next(&tag, &ok));
  call->WriteLast(grpc::ByteBuffer(static_cast<const grpc::Slice*>(nullptr), 0), {}, nullptr);
  REQUIRE(done.Next(&tag, &ok));
  for (ok = true; ok;) {
    grpc::ByteBuffer reply;
    call->Read(&reply, nullptr);
    REQUIRE(done.Next(&tag, &ok));
  }
  grpc::Status end;
  call->Finish(&end, nullptr);
  REQUIRE(done.Next(&tag, &ok));
  return end.error_code();
}

TEST_CASE("a reader may make the calls that change nothing, a member all of them") {
  const auto server = StartServer();
  const auto* const service =
      pb::StatusRequest::descriptor()->file()->FindServiceByName("Rendezvous");
  REQUIRE(service != nullptr);
  REQUIRE(service->method_count() == static_cast<int>(kMayReaderCall.size()));
  for (int i = 0; i < service->method_count(); ++i) {
    const std::string name = service->method(i)->name();
    INFO(name);
    REQUIRE(kMayReaderCall.count(name) == 1);
    const std::string path = absl::StrCat("/", service->full_name(), "/", name);
    const grpc::StatusCode of_reader = Call(*server, ReadToken(kToken), path);
    CHECK(of_reader != grpc::StatusCode::UNIMPLEMENTED);
    CHECK((of_reader != grpc::StatusCode::PERMISSION_DENIED) == kMayReaderCall.at(name));
    const grpc::StatusCode of_member = Call(*server, kToken, path);
    CHECK(of_member != grpc::StatusCode::UNIMPLEMENTED);
    CHECK(of_member != grpc::StatusCode::PERMISSION_DENIED);
  }
}

absl::Status Attend(const Endpoint& endpoint) {
  Hello hello;
  hello.job_id = "job";
  hello.host = "a";
  hello.nodes_min = hello.nodes_max = 1;
  const AgentStream::Handlers deaf = {.on_event = [](const DaemonEvent&) {},
                                      .on_end = [](const absl::Status&) {}};
  return AgentStream::Open(endpoint, Incarnation(1), hello, deaf, kPatience).status();
}

TEST_CASE("with the read token status comes, and a node hears what it lacks") {
  const auto server = StartServer();
  const Endpoint reader(EndpointOf(*server), {.join_token = ReadToken(kToken)});
  const auto views = FetchStatus(reader, "", kPatience);
  REQUIRE_OK(views);
  CHECK(views->empty());
  CHECK_STATUS(Attend(reader), absl::StatusCode::kPermissionDenied, "needs the join token");
  // The read token of a read token is nobody's.
  const Endpoint stranger(EndpointOf(*server), {.join_token = ReadToken(ReadToken(kToken))});
  CHECK_STATUS(FetchStatus(stranger, "", kPatience), absl::StatusCode::kPermissionDenied,
               "does not take this join token");
}

TEST_CASE("where there are certificates a reader needs one too") {
  const testing::TempDir of_server, of_reader;
  const TestCa ca;
  Credentials daemon = ca.Issue(of_server.path(), {.names = "IP:127.0.0.1"});
  daemon.join_token = kToken;
  Credentials shown = ca.Issue(of_reader.path());
  const auto server = StartServer(daemon);
  shown.join_token = ReadToken(kToken);
  const Endpoint reader(EndpointOf(*server), shown);
  CHECK_OK(FetchStatus(reader, "", kPatience));
  CHECK_STATUS(Attend(reader), absl::StatusCode::kPermissionDenied, "needs the join token");
  CHECK_FALSE(
      FetchStatus({EndpointOf(*server), {.join_token = ReadToken(kToken)}}, "", kPatience).ok());
  shown.join_token = kToken;
  CHECK_OK(Attend({EndpointOf(*server), shown}));
}

}  // namespace
}  // namespace convene::rendezvous
