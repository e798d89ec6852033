// Real gRPC on loopback, through the agents' own client.
#include "rendezvous/server/server.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/client/agent_stream.h"
#include "rendezvous/client/status_client.h"
#include "rendezvous/journal/file_journal.h"
#include "rendezvous/journal/tenure.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/store/store_client.h"
#include "rendezvous/store/store_server.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/clock.h"
#include "tools/base/host_port.h"
#include "tools/base/mutex.h"
#include "tools/base/source_address.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

std::unique_ptr<Server> StartServer(const std::string& join_token = "",
                                    const std::string& host = "127.0.0.1") {
  Server::Options options;
  options.host = host;
  options.credentials.join_token = join_token;
  auto server = Server::Start(options);
  REQUIRE_OK(server);
  return *std::move(server);
}

std::string EndpointOf(const Server& server) { return absl::StrCat("127.0.0.1:", server.port()); }

Hello HelloFrom(const std::string& host, int nodes_min, int nodes_max) {
  Hello hello;
  hello.job_id = "job";
  hello.host = host;
  hello.nodes_min = nodes_min;
  hello.nodes_max = nodes_max;
  hello.max_restarts = 1;
  hello.last_call = absl::ZeroDuration();
  hello.lease = absl::Seconds(30);
  return hello;
}

// An agent without workers; it keeps its events for the test to take.
class TestAgent {
 public:
  TestAgent(const Endpoint& endpoint, uint64_t incarnation, const Hello& hello) {
    AgentStream::Handlers handlers;
    handlers.on_event = [this](DaemonEvent event) {
      MutexLock lock(&mutex_);
      events_.push_back(std::move(event));
      changed_.Signal();
    };
    handlers.on_end = [this](absl::Status status) {
      MutexLock lock(&mutex_);
      end_ = std::move(status);
      changed_.Signal();
    };
    auto stream = AgentStream::Open(endpoint, Incarnation(incarnation), hello, handlers, kPatience);
    REQUIRE_OK(stream);
    stream_ = *std::move(stream);
  }

  // The next event must be a Body.
  template <typename Body>
  Body Take() {
    MutexLock lock(&mutex_);
    const MonotonicTime deadline = Clock::Real().Now() + kPatience;
    while (events_.empty()) {
      REQUIRE(Clock::Real().Now() < deadline);
      changed_.WaitFor(&mutex_, absl::Seconds(1));
    }
    const DaemonEvent event = std::move(events_.front());
    events_.pop_front();
    epoch_ = event.epoch;
    REQUIRE(std::holds_alternative<Body>(event.body));
    return std::get<Body>(event.body);
  }

  absl::Status TakeEnd() {
    MutexLock lock(&mutex_);
    const MonotonicTime deadline = Clock::Real().Now() + kPatience;
    while (!end_.has_value()) {
      REQUIRE(Clock::Real().Now() < deadline);
      changed_.WaitFor(&mutex_, absl::Seconds(1));
    }
    return *end_;
  }

  void Say(AgentEvent event) { stream_->Send(epoch_, std::move(event)); }
  void Die() { stream_.reset(); }
  Epoch epoch() const { return epoch_; }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<DaemonEvent> events_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  Epoch epoch_;
  std::unique_ptr<AgentStream> stream_;  // first to go: its handlers use what stands above
};

TEST_CASE("the store's clients are the nodes' addresses, also where the daemon sees loopback") {
  const std::string token = GENERATE(std::string(), std::string("Xz3Vq0k7sT1mN8bYw5Jr2aPh"));
  INFO("token: " << token);
  const auto server = StartServer(token);
  TestAgent a({EndpointOf(*server), {.join_token = token}}, 1, HelloFrom("a", 1, 1));
  a.Take<Welcome>();
  a.Say(Ready{"a", 1000, {"192.0.2.1"}});
  CHECK(a.Take<Assignment>().store_clients == std::vector<std::string>{"192.0.2.1", "a"});
}

// An address of this machine beside loopback; "": it has none.
std::string OtherOwnAddress() {
  const auto own = OwnAddresses(/*with_link_local=*/false);
  REQUIRE_OK(own);
  const auto other = std::find_if(own->begin(), own->end(), [](const std::string& address) {
    return address.find(':') == std::string::npos && address.substr(0, 4) != "127.";
  });
  return other == own->end() ? "" : *other;
}

TEST_CASE("a node at an address that it does not know lets every address come to the store") {
  const std::string other = OtherOwnAddress();
  if (other.empty()) return;  // a network namespace with loopback alone
  const bool is_translated = GENERATE(false, true);
  const std::string told = is_translated ? "192.0.2.250" : other;
  const std::string token = GENERATE(std::string(), std::string("Xz3Vq0k7sT1mN8bYw5Jr2aPh"));
  INFO(told << ", token: " << token);
  const auto server = StartServer(token, other);
  const std::string endpoint = absl::StrCat(other, ":", server->port());
  TestAgent a({endpoint, {.join_token = token}}, 1, HelloFrom("a", 1, 1));
  a.Take<Welcome>();
  a.Say(Ready{other, 1000, {told}});
  CHECK(a.Take<Assignment>().store_clients.size() == (is_translated ? 0 : 1));
}

TEST_CASE("two agents meet, work and are told that the job succeeded") {
  const auto server = StartServer();
  TestAgent a(EndpointOf(*server), 1, HelloFrom("a", 2, 2));
  TestAgent b(EndpointOf(*server), 2, HelloFrom("b", 2, 2));
  CHECK(a.Take<Welcome>().heartbeat_interval == absl::Seconds(10));
  b.Take<Welcome>();
  b.Say(Ready{"b", 2000});
  a.Say(Ready{"a", 1000});
  const Assignment first = a.Take<Assignment>();
  const Assignment second = b.Take<Assignment>();
  CHECK(first.group_rank == 0);
  CHECK(second.group_rank == 1);
  CHECK(second.world_size == 2);
  CHECK(second.store_host == "a");
  CHECK(second.store_port == 1000);
  CHECK(a.epoch() == Epoch(1));
  a.Say(WorkersSucceeded());
  b.Say(WorkersSucceeded());
  CHECK(a.Take<Close>().outcome == Outcome::kSucceeded);
  CHECK(b.Take<Close>().outcome == Outcome::kSucceeded);
  CHECK_OK(a.TakeEnd());
  CHECK_OK(b.TakeEnd());
}

TEST_CASE("when an agent's connection closes the others are stopped at once") {
  const auto server = StartServer();
  TestAgent a(EndpointOf(*server), 1, HelloFrom("a", 1, 2));
  TestAgent b(EndpointOf(*server), 2, HelloFrom("b", 1, 2));
  a.Take<Welcome>();
  b.Take<Welcome>();
  a.Say(Ready{"a", 1000});
  b.Say(Ready{"b", 2000});
  // The first epoch may begin with either agent alone; in the end both are in it.
  while (a.Take<Assignment>().group_world_size != 2) {
    CHECK(a.Take<Stop>().kind == StopKind::kCheckpoint);
    a.Say(Ready{"a", 1000});
  }
  b.Die();
  const Stop stop = a.Take<Stop>();
  CHECK(stop.kind == StopKind::kAbort);
  CHECK(stop.why == "b is lost: its connection closed");
  a.Say(Ready{"a", 1001});
  CHECK(a.Take<Assignment>().group_world_size == 1);
}

TEST_CASE("a hello that contradicts the job is refused with both values") {
  const auto server = StartServer();
  TestAgent a(EndpointOf(*server), 1, HelloFrom("a", 2, 2));
  a.Take<Welcome>();
  TestAgent b(EndpointOf(*server), 2, HelloFrom("b", 2, 3));
  CHECK_STATUS(b.TakeEnd(), absl::StatusCode::kInvalidArgument,
               "nodes_max (--nnodes) is 3 on this node, but the job began with 2");
}

TEST_CASE("a daemon of one run alone refuses another run's agent, and names both") {
  Server::Options options;
  options.host = "127.0.0.1";
  options.only_run = "job";
  const auto server = Server::Start(options);
  REQUIRE_OK(server);
  TestAgent a(EndpointOf(**server), 1, HelloFrom("a", 2, 2));
  a.Take<Welcome>();
  Hello hello = HelloFrom("b", 2, 2);
  hello.job_id = "another";
  TestAgent b(EndpointOf(**server), 2, hello);
  CHECK_STATUS(b.TakeEnd(), absl::StatusCode::kFailedPrecondition,
               "this daemon is that of run \"job\" alone, and not of run \"another\"");
}

TEST_CASE("a daemon that stops ends its streams with Unavailable") {
  auto server = StartServer();
  TestAgent a(EndpointOf(*server), 1, HelloFrom("a", 2, 2));
  a.Take<Welcome>();
  server.reset();
  CHECK_STATUS(a.TakeEnd(), absl::StatusCode::kUnavailable, "daemon is stopping");
}

TEST_CASE("a silent agent is given up after its lease") {
  const auto server = StartServer();
  Hello hello = HelloFrom("a", 2, 2);
  hello.lease = absl::Milliseconds(100);
  // Where all were silent, none would be judged.
  TestAgent b(EndpointOf(*server), 2, HelloFrom("b", 2, 2));
  b.Take<Welcome>();
  TestAgent a(EndpointOf(*server), 1, hello);
  a.Take<Welcome>();
  CHECK_STATUS(a.TakeEnd(), absl::StatusCode::kUnavailable, "silent for its lease of 100ms");
}

TEST_CASE("a connection carries a hundred calls and no more") {
  const auto server = StartServer();
  const auto stub = pb::Rendezvous::NewStub(
      grpc::CreateChannel(EndpointOf(*server), grpc::InsecureChannelCredentials()));
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<pb::AgentMessage, pb::DaemonMessage>> stream;
  };
  // Its stream begins when the daemon's first word has come.
  const auto begin = [&](absl::Duration patience) {
    auto call = std::make_unique<Call>();
    call->context.set_deadline(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_millis(absl::ToInt64Milliseconds(patience), GPR_TIMESPAN)));
    call->stream = stub->Attend(&call->context);
    call->stream->WaitForInitialMetadata();
    return call;
  };
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 100; ++i) calls.push_back(begin(kPatience));
  CHECK(begin(absl::Milliseconds(200))->stream->Finish().error_code() ==
        grpc::StatusCode::DEADLINE_EXCEEDED);
  for (const auto& open : calls) {
    open->context.TryCancel();
    CHECK(open->stream->Finish().error_code() == grpc::StatusCode::CANCELLED);
  }
  calls.clear();
  const auto next = begin(kPatience);
  next->context.TryCancel();
  CHECK(next->stream->Finish().error_code() == grpc::StatusCode::CANCELLED);
}

TEST_CASE("an agent that leaves gets its answer and a clean end") {
  const auto server = StartServer();
  TestAgent a(EndpointOf(*server), 1, HelloFrom("a", 2, 2));
  a.Take<Welcome>();
  a.Say(Leave{"SIGTERM"});
  CHECK(a.Take<Close>().outcome == Outcome::kLeft);
  CHECK_OK(a.TakeEnd());
}

constexpr char kToken[] = "Xz3Vq0k7sT1mN8bYw5Jr2aPf";

TEST_CASE("with a join token agents meet over TLS, and everybody else stays outside") {
  const auto server = StartServer(kToken);
  const std::string address = EndpointOf(*server);
  const Endpoint door(address, {.join_token = kToken});
  {
    TestAgent first(door, 1, HelloFrom("a", 2, 2));
    TestAgent second(door, 2, HelloFrom("b", 2, 2));
    first.Take<Welcome>();
    second.Take<Welcome>();
    for (TestAgent* agent : {&first, &second}) agent->Say(Ready{"127.0.0.1", 1234});
    CHECK(first.Take<Assignment>().world_size == 2);
    CHECK(second.Take<Assignment>().world_size == 2);
    const auto views = FetchStatus(door, "job", kPatience);
    REQUIRE_OK(views);
    CHECK(views->front().nodes.size() == 2);
  }
  const auto open = [&](const Endpoint& endpoint) {
    return AgentStream::Open(endpoint, Incarnation(3), HelloFrom("c", 1, 1), {}, absl::Seconds(5))
        .status();
  };
  CHECK_STATUS(open({address, {.join_token = "Xz3Vq0k7sT1mN8bYw5Jr2aPg"}}),
               absl::StatusCode::kPermissionDenied, "does not take this join token");
  CHECK_STATUS(open(address), absl::StatusCode::kFailedPrecondition, "--join-token-file");
  CHECK_STATUS(FetchStatus(address, "", absl::Seconds(5)), absl::StatusCode::kFailedPrecondition,
               "--join-token-file");
  CHECK_STATUS(FetchStatus({EndpointOf(*StartServer()), {.join_token = kToken}}, "",
                           absl::Milliseconds(200)),
               absl::StatusCode::kUnavailable, "with the same join token or certificates?");
}

TEST_CASE("a server with a join token takes TCPStore clients from where its agents are") {
  const auto server = StartServer(kToken);
  const auto connect = [&] {
    return StoreClient::Connect("127.0.0.1", server->port(), absl::Milliseconds(300));
  };
  const auto refused = connect();
  CHECK((!refused.ok() || !(*refused)->Set("key", "value").ok()));
  TestAgent agent({EndpointOf(*server), {.join_token = kToken}}, 1, HelloFrom("a", 1, 1));
  agent.Take<Welcome>();
  const auto store = connect();
  REQUIRE_OK(store);
  CHECK_OK((*store)->Set("key", "value"));
}

TEST_CASE("behind a locked door an agent's machine is one, whichever of its addresses is used") {
  const std::string other = OtherOwnAddress();
  if (other.empty()) return;  // a network namespace with loopback alone
  const auto server = StartServer(kToken, "0.0.0.0");
  TestAgent agent({EndpointOf(*server), {.join_token = kToken}}, 1, HelloFrom("a", 1, 1));
  agent.Take<Welcome>();
  const auto store = StoreClient::Connect(other, server->port(), kPatience);
  REQUIRE_OK(store);
  CHECK_OK((*store)->Set("key", "value"));
}

TEST_CASE("a daemon without a store closes clients of TCPStore, and serves a given store") {
  Server::Options options;
  options.host = "127.0.0.1";
  options.no_store = true;
  const auto server = Server::Start(options);
  REQUIRE_OK(server);
  const auto connect = [&] {
    return StoreClient::Connect("127.0.0.1", (*server)->port(), absl::Milliseconds(300));
  };
  const auto closed = connect();
  CHECK((!closed.ok() || !(*closed)->Set("key", "value").ok()));
  const auto given = StoreServer::Start({.listen = false});
  REQUIRE_OK(given);
  (*server)->ServeStore(given->get());
  const auto client = connect();
  REQUIRE_OK(client);
  CHECK_OK((*client)->Set("key", "value"));
  (*server)->ServeStore(std::nullopt);
}

TEST_CASE("a given store says itself whom it serves, behind a locked door too") {
  const auto server = StartServer(kToken);
  const auto given = StoreServer::Start({.listen = false, .is_shut = true});
  REQUIRE_OK(given);
  server->ServeStore(given->get());
  (*given)->Admit({"192.0.2.1"});
  const auto client = StoreClient::Connect("127.0.0.1", server->port(), kPatience);
  REQUIRE_OK(client);
  CHECK((*client)->Add("count", 1).value() == 1);
}

TEST_CASE("a port that is taken is not shared") {
  const auto server = StartServer();
  Server::Options options;
  options.host = "127.0.0.1";
  options.port = server->port();
  CHECK_STATUS(Server::Start(options), absl::StatusCode::kAlreadyExists, "Address already in use");
}

bool HasIpv6() {
  const UniqueFd probe(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return probe.valid() &&
         bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
}

TEST_CASE("a job is not taken over once another daemon may have gone on with it") {
  Server::Options options;
  options.host = "127.0.0.1";
  options.handed_over = {"a job", Clock::Real().Now() - absl::Seconds(1)};
  CHECK_STATUS(Server::Start(options), absl::StatusCode::kUnavailable, "too old to go on with");
  options.handed_over.good_until = Clock::Real().Now() + absl::Hours(1);
  CHECK_OK(Server::Start(options));
}

TEST_CASE("all addresses are those of IPv4 and IPv6") {
  if (!HasIpv6()) {
    std::puts("SKIPPED: this machine has no IPv6");
    return;
  }
  for (const char* all : {"0.0.0.0", "::"}) {
    Server::Options options;
    options.host = all;
    const auto server = Server::Start(options);
    REQUIRE_OK(server);
    for (const char* host : {"127.0.0.1", "::1"}) {
      INFO(all << " from " << host);
      CHECK_OK(FetchStatus(FormatHostPort(host, (*server)->port()), "", kPatience));
    }
  }
}

TEST_CASE("an address of another machine cannot be bound") {
  Server::Options options;
  options.host = "192.0.2.1";
  CHECK_STATUS(Server::Start(options), absl::StatusCode::kInvalidArgument,
               "no address of this machine");
}

TEST_CASE("a given store serves the port's TCPStore clients until it is taken away") {
  const auto server = StartServer();
  StoreServer::Options options;
  options.listen = false;
  const auto store_of = [&] {
    auto store = StoreServer::Start(options);
    REQUIRE_OK(store);
    return *std::move(store);
  };
  const auto connect = [&](absl::Duration timeout) {
    return StoreClient::Connect("127.0.0.1", server->port(), timeout);
  };
  auto first = store_of();
  server->ServeStore(first.get());
  auto client = connect(kPatience);
  REQUIRE_OK(client);
  CHECK((*client)->Add("count", 1).value() == 1);
  CHECK(first->counts().keys == 1);

  server->ServeStore(nullptr);
  first.reset();
  CHECK_FALSE((*client)->Add("count", 1).ok());
  CHECK_STATUS(connect(absl::Milliseconds(100)), absl::StatusCode::kUnavailable, "127.0.0.1");

  auto second = store_of();
  server->ServeStore(second.get());
  client = connect(kPatience);
  REQUIRE_OK(client);
  CHECK((*client)->Add("count", 1).value() == 1);

  server->ServeStore(std::nullopt);
  second.reset();
  client = connect(kPatience);
  REQUIRE_OK(client);
  CHECK((*client)->Add("count", 1).value() == 1);  // in the daemon's own store
}

TEST_CASE("a server without a thread of its own does not start, and says which one") {
  const testing::TempDir directory;
  for (const std::string thread : {"rdzv-journal", "rdzv-tick", "front"}) {
    const ScopedThreadFault fault(thread);
    Server::Options options;
    options.host = "127.0.0.1";
    options.state_dir = directory.path();
    CHECK_STATUS(Server::Start(options).status(), absl::StatusCode::kResourceExhausted,
                 absl::StrCat("cannot start the thread \"", thread, "\""));
  }
}

TEST_CASE("status shows the nodes of a job in the order of their ranks") {
  const auto server = StartServer();
  TestAgent b(EndpointOf(*server), 2, HelloFrom("b", 2, 2));
  TestAgent a(EndpointOf(*server), 1, HelloFrom("a", 2, 2));
  b.Take<Welcome>();
  a.Take<Welcome>();
  b.Say(Ready{"b", 2000});
  a.Say(Ready{"a", 1000});
  a.Take<Assignment>();
  const auto views = FetchStatus(EndpointOf(*server), "job", kPatience);
  REQUIRE_OK(views);
  REQUIRE(views->size() == 1);
  const JobView& view = views->front();
  CHECK(view.phase == "running");
  CHECK(view.epoch == Epoch(1));
  CHECK(view.why == "running on 2 nodes");
  REQUIRE(view.nodes.size() == 2);
  CHECK(view.nodes[0].host == "a");
  CHECK(view.nodes[1].group_rank == 1);
  CHECK_STATUS(FetchStatus(EndpointOf(*server), "other", kPatience), absl::StatusCode::kNotFound,
               "knows no job other");
}

TEST_CASE("who watches the status hears that the daemon went, or leads no more") {
  auto server = StartServer();
  const std::string endpoint = EndpointOf(*server);
  const auto client = StatusClient::Open(endpoint, kPatience);
  REQUIRE_OK(client);
  CHECK_OK((*client)->Fetch("", kPatience));
  server.reset();
  CHECK_STATUS((*client)->Fetch("", kPatience), absl::StatusCode::kUnavailable,
               absl::StrCat("lost the daemon at ", endpoint));
  const testing::TempDir directory;
  auto memory = FileJournal::Open({.directory = directory.path(), .is_shared = true});
  REQUIRE_OK(memory);
  const std::shared_ptr<Tenure> tenure = memory->tenure;
  Server::Options options;
  options.host = "127.0.0.1";
  const auto former = Server::Start(options, *std::move(memory));
  REQUIRE_OK(former);
  tenure->End();
  const absl::Status asked = FetchStatus(EndpointOf(**former), "", kPatience).status();
  CHECK(absl::IsUnavailable(asked));
  CHECK(absl::StartsWith(asked.message(), "this daemon leads no more"));
}

}  // namespace
}  // namespace convene::rendezvous
