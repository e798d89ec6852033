// Agent and daemon of different versions, over real gRPC: one side says what the other one does not
// know, or what makes no sense.
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "proto/rendezvous.grpc.pb.h"
#include "rendezvous/client/agent_stream.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/server/server.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr int kKindOfTomorrow = 15;

Hello AnyHello() {
  Hello hello;
  hello.job_id = "job";
  hello.host = "node0";
  return hello;
}

template <typename Message>
Message OfTomorrow() {
  Message message;
  message.set_incarnation(7);
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(kKindOfTomorrow);
  return message;
}

// A daemon that says its lines to each agent, whatever the agent says, and waits for its end.
class ScriptedDaemon final : public pb::Rendezvous::Service {
 public:
  explicit ScriptedDaemon(std::vector<pb::DaemonMessage> lines) : lines_(std::move(lines)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~ScriptedDaemon() override { server_->Shutdown(); }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  grpc::Status Attend(
      grpc::ServerContext* /*context*/,
      grpc::ServerReaderWriter<pb::DaemonMessage, pb::AgentMessage>* stream) override {
    for (const pb::DaemonMessage& line : lines_) stream->Write(line);
    pb::AgentMessage heard;
    while (stream->Read(&heard)) {
    }
    return grpc::Status::OK;
  }

  const std::vector<pb::DaemonMessage> lines_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// The events that an agent hears until its stream ends, or until `enough` events have come.
struct Listener {
  explicit Listener(size_t enough) : enough(enough) {}

  void Attend(const std::string& endpoint) {
    AgentStream::Handlers handlers;
    handlers.on_event = [this](const DaemonEvent& event) {
      MutexLock lock(&mutex);
      events.push_back(event);
      changed.SignalAll();
    };
    handlers.on_end = [this](const absl::Status& status) {
      MutexLock lock(&mutex);
      end = status;
      changed.SignalAll();
    };
    const auto stream =
        AgentStream::Open(endpoint, Incarnation(1), AnyHello(), handlers, kPatience);
    REQUIRE_OK(stream);
    MutexLock lock(&mutex);
    const MonotonicTime deadline = Clock::Real().Now() + kPatience;
    while (!end.has_value() && events.size() < enough) {
      REQUIRE(Clock::Real().Now() < deadline);
      changed.WaitFor(&mutex, absl::Seconds(1));
    }
  }

  const size_t enough;
  Mutex mutex;
  CondVar changed;
  std::vector<DaemonEvent> events;
  std::optional<absl::Status> end;
};

pb::DaemonMessage Said(uint64_t daemon, decltype(DaemonEvent::body) body) {
  return ToWire(Incarnation(daemon), DaemonEvent{Epoch(), std::move(body)});
}

TEST_CASE("an agent overlooks what a newer daemon says, and stays") {
  const ScriptedDaemon daemon({OfTomorrow<pb::DaemonMessage>(), Said(7, Welcome()),
                               OfTomorrow<pb::DaemonMessage>(), Said(7, Heard())});
  Listener agent(2);
  agent.Attend(daemon.endpoint());
  CHECK_FALSE(agent.end.has_value());
  REQUIRE(agent.events.size() == 2);
  CHECK(std::holds_alternative<Welcome>(agent.events[0].body));
  CHECK(std::holds_alternative<Heard>(agent.events[1].body));
}

TEST_CASE("an agent that is told nothing with sense says so, and does not come back") {
  pb::DaemonMessage empty;
  empty.set_incarnation(7);
  const ScriptedDaemon daemon({Said(7, Welcome()), empty});
  Listener agent(9);
  agent.Attend(daemon.endpoint());
  REQUIRE(agent.end.has_value());
  CHECK_STATUS(*agent.end, absl::StatusCode::kInvalidArgument, "without a body");
}

TEST_CASE("a word of another daemon ends the stream, and names both") {
  const ScriptedDaemon daemon({Said(7, Welcome()), Said(8, Heard())});
  Listener agent(9);
  agent.Attend(daemon.endpoint());
  REQUIRE(agent.end.has_value());
  CHECK_STATUS(*agent.end, absl::StatusCode::kUnavailable, "daemon 7");
  CHECK_STATUS(*agent.end, absl::StatusCode::kUnavailable, "daemon 8");
  CHECK(agent.events.size() == 1);
}

TEST_CASE("the daemon overlooks what a newer agent says, and answers the rest") {
  Server::Options options;
  options.host = "127.0.0.1";
  auto server = Server::Start(options);
  REQUIRE_OK(server);
  const auto stub = pb::Rendezvous::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", (*server)->port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_seconds(absl::ToInt64Seconds(kPatience), GPR_TIMESPAN)));
  const auto stream = stub->Attend(&context);
  REQUIRE(stream->Write(ToWire(AgentEnvelope{Incarnation(7), Epoch(), AnyHello()})));
  pb::DaemonMessage heard;
  REQUIRE(stream->Read(&heard));
  CHECK(heard.has_welcome());
  CHECK(std::get<Welcome>(FromWire(heard)->body).awaits_old_workers);
  REQUIRE(stream->Write(OfTomorrow<pb::AgentMessage>()));
  REQUIRE(stream->Write(ToWire(AgentEnvelope{Incarnation(7), Epoch(), AgentEvent(Heartbeat())})));
  REQUIRE(stream->Read(&heard));
  CHECK(heard.has_heard());
  context.TryCancel();
}

}  // namespace
}  // namespace convene::rendezvous
