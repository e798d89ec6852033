// Measures how long a decision takes to be stored and to leave: one node says Ready, and has its
// rank. Agents are values here, without sockets.
// Usage: decision_bench DIRECTORY|etcd://MEMBERS[/PREFIX] [DECISIONS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/etcd/candidate.h"
#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/etcd_journal.h"
#include "rendezvous/etcd/place.h"
#include "rendezvous/journal/file_journal.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr int kDecisions = 1000;
constexpr absl::Duration kPatience = absl::Seconds(20);

// Knows when the rank of the node came.
class Sink final : public StreamSink {
 public:
  void Queue(Item item) override {
    const auto* event = std::get_if<DaemonEvent>(&item);
    if (event == nullptr || !std::holds_alternative<Assignment>(event->body)) return;
    MutexLock lock(&mutex_);
    has_rank_ = true;
    changed_.Signal();
  }
  void Flush() override {}
  bool AwaitRank() {
    MutexLock lock(&mutex_);
    while (!has_rank_) {
      if (!changed_.WaitFor(&mutex_, kPatience)) return has_rank_;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool has_rank_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::vector<absl::Duration>> Decide(Daemon* daemon, int decisions) {
  std::vector<absl::Duration> took;
  for (int i = 0; i < decisions; ++i) {
    Hello hello;
    hello.job_id = absl::StrCat("bench", i);
    hello.host = "node";
    hello.nodes_min = hello.nodes_max = 1;
    hello.lease = absl::Seconds(60);
    const auto sink = std::make_shared<Sink>();
    const MemberId id = daemon->Open(sink);
    daemon->Join(id, Incarnation(1), hello);
    const MonotonicTime begin = Clock::Real().Now();
    daemon->Receive(id, Incarnation(1), Epoch(), Ready{"node", 1});
    if (!sink->AwaitRank()) return absl::DeadlineExceededError("no rank in time");
    took.push_back(Clock::Real().Now() - begin);
    daemon->Receive(id, Incarnation(1), Epoch(1), WorkersSucceeded{});
    daemon->Disconnect(id);
  }
  std::sort(took.begin(), took.end());
  return took;
}

absl::Status Measure(Journal::Opened memory, const std::string& where, int decisions) {
  Daemon daemon(&Clock::Real(), /*quiet=*/true, std::move(memory));
  CONVENE_RETURN_IF_ERROR(daemon.Start());
  const auto took = Decide(&daemon, decisions);
  daemon.Shutdown();
  CONVENE_RETURN_IF_ERROR(took.status());
  const auto at = [&](double part) {
    return absl::ToDoubleMilliseconds((*took)[static_cast<size_t>(part * (took->size() - 1))]);
  };
  std::printf("%s: %d decisions, median %.2f ms, p99 %.2f ms, longest %.2f ms\n", where.c_str(),
              decisions, at(0.5), at(0.99), at(1));
  return absl::OkStatus();
}

absl::Status Run(const std::string& where, int decisions) {
  if (!absl::StartsWith(where, "etcd://")) {
    CONVENE_ASSIGN_OR_RETURN(Journal::Opened memory, FileJournal::Open({.directory = where}));
    return Measure(std::move(memory), where, decisions);
  }
  CONVENE_ASSIGN_OR_RETURN(const etcd::Place place, etcd::ParsePlace(where));
  CONVENE_ASSIGN_OR_RETURN(const auto client, etcd::Client::Make(place.members, {}));
  Mutex mutex;
  CondVar changed;
  CONVENE_ASSIGN_OR_RETURN(
      const auto candidate,
      etcd::Candidate::Start(client.get(), {.place = place,
                                            .lease = absl::Seconds(4),
                                            .name = "decision_bench",
                                            .answer_by = Clock::Real().Now() + kPatience,
                                            .on_change = [&] { changed.Signal(); }}));
  etcd::Candidate::State state;
  {
    MutexLock lock(&mutex);
    while ((state = candidate->state()).tenure == nullptr && state.status.ok()) {
      changed.WaitFor(&mutex, absl::Milliseconds(100));
    }
  }
  CONVENE_RETURN_IF_ERROR(state.status);
  CONVENE_ASSIGN_OR_RETURN(Journal::Opened memory,
                           etcd::EtcdJournal::Open(client.get(), place, state.lease, state.tenure));
  return Measure(std::move(memory), where, decisions);
}

}  // namespace
}  // namespace convene::rendezvous

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: decision_bench DIRECTORY|etcd://MEMBERS[/PREFIX] [DECISIONS]\n");
    return 64;
  }
  const int decisions = argc > 2 ? std::atoi(argv[2]) : convene::rendezvous::kDecisions;
  const absl::Status status = convene::rendezvous::Run(argv[1], decisions);
  if (!status.ok()) std::fprintf(stderr, "decision_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
