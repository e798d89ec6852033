// Bytes that no agent of ours would send, as they may come from whoever reaches the port: they are
// refused, or do what a message with these values does. They are data; nothing runs them.
#include <catch2/catch.hpp>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/attend/job_table.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/wire/status_json.h"
#include "rendezvous/wire/wire.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

constexpr int kMessages = 20'000;

Hello HelloTo(const std::string& run, const std::string& host, int nodes) {
  Hello hello;
  hello.job_id = run;
  hello.host = host;
  hello.nodes_min = 1;
  hello.nodes_max = nodes;
  hello.lease = absl::Hours(1);
  return hello;
}

std::vector<std::string> GoodMessages() {
  WorkerFailure failure;
  failure.why = "killed by SIGKILL";
  failure.last_log_lines = {"one", "two"};
  const std::vector<decltype(AgentEnvelope::body)> bodies = {
      HelloTo("hostile", "h", 4),
      AgentEvent(Ready{"h", 4000}),
      AgentEvent(Heartbeat{WorkerProgress{7, 0.5, "step"}}),
      AgentEvent(failure),
      AgentEvent(WorkersSucceeded()),
      AgentEvent(Leave{"SIGTERM", true})};
  std::vector<std::string> messages;
  for (const auto& body : bodies) {
    messages.push_back(ToWire({Incarnation(5), Epoch(1), body}).SerializeAsString());
  }
  return messages;
}

class Mutator {
 public:
  // Some bytes changed, cut off, said twice, or made up.
  std::string Next(std::string bytes) {
    for (int times = Draw(4); times > 0; --times) {
      const size_t at = Draw(static_cast<int>(bytes.size()) + 1);
      switch (Draw(4)) {
        case 0:
          if (at < bytes.size()) bytes[at] = static_cast<char>(Draw(256));
          break;
        case 1:
          bytes.resize(at);
          break;
        case 2:
          bytes += bytes.substr(at);
          break;
        default:
          bytes.insert(at, Draw(12) + 1, static_cast<char>(Draw(2) == 0 ? 0xff : Draw(256)));
      }
    }
    return bytes;
  }
  int Draw(int bound) { return static_cast<int>(random_() % bound); }

 private:
  std::mt19937_64 random_{20261122};  // NOLINT(cert-msc51-cpp): the same messages each time
};

TEST_CASE("whatever bytes come, other jobs go on and the state can be shown") {
  JobTable table;
  MonotonicTime now = MonotonicTime::FromEpoch(absl::Hours(1));
  Outbox outbox;
  constexpr MemberId kHonest(1);
  REQUIRE_OK(table.Join(now, kHonest, Incarnation(1), HelloTo("honest", "a", 1), &outbox));
  table.Receive(now, kHonest, Incarnation(1), Epoch(), Ready{"a", 1}, &outbox);
  const std::vector<std::string> good = GoodMessages();
  Mutator mutator;
  int64_t last_id = kHonest.value() + 1;
  int understood = 0;
  for (int i = 0; i < kMessages; ++i) {
    INFO("message " << i);
    now = now + absl::Milliseconds(mutator.Draw(200));
    outbox = Outbox();
    table.Tick(now, &outbox);
    table.Receive(now, kHonest, Incarnation(1), Epoch(1), Heartbeat(), &outbox);
    pb::AgentMessage message;
    if (!message.ParseFromString(mutator.Next(good[mutator.Draw(static_cast<int>(good.size()))]))) {
      continue;
    }
    const auto envelope = FromWire(message);
    if (!envelope.ok()) continue;
    ++understood;
    if (const auto* hello = std::get_if<Hello>(&envelope->body)) {
      ++last_id;
      if (!table.Join(now, MemberId(last_id), envelope->incarnation, *hello, &outbox).ok()) {
        table.Disconnect(now, MemberId(last_id), &outbox);
      }
    } else {  // On the latest stream that said a Hello.
      table.Receive(now, MemberId(last_id), envelope->incarnation, envelope->epoch,
                    std::get<AgentEvent>(envelope->body), &outbox);
    }
  }
  CHECK(understood > kMessages / 10);
  CHECK(understood < kMessages * 9 / 10);
  const auto views = table.Views(now, "");
  REQUIRE_OK(views);
  CHECK_FALSE(StatusJson(*views).empty());
  CHECK(table.Views(now, "honest")->front().phase == "running");
}

}  // namespace
}  // namespace convene::rendezvous
