// How long N agents need to join one daemon over real gRPC streams: from the first dial to the last
// Assignment, daemon and agents in one process. Usage: join_bench [N...], 100 500 1000 2000 when
// none is given.
#include <sys/resource.h>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/client/agent_stream.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/server/server.h"
#include "spdlog/spdlog.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/text.h"
#include "tools/base/thread.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);
constexpr int kDialers = 4;

class Meeting {
 public:
  Meeting(int port, int nodes) : endpoint_(absl::StrCat("127.0.0.1:", port)), agents_(nodes) {}

  // False when one of them could not join or time was over.
  bool Join() {
    std::vector<Thread> dialers;
    for (int i = 0; i < kDialers; ++i) {
      dialers.emplace_back(absl::StrCat("dialer", i), [this, i] { DialEvery(i); });
    }
    for (Thread& dialer : dialers) dialer.Join();
    const MonotonicTime deadline = Clock::Real().Now() + kPatience;
    MutexLock lock(&mutex_);
    while (assigned_ < agents_.size() && Clock::Real().Now() < deadline) {
      changed_.WaitFor(&mutex_, absl::Seconds(1));
    }
    return assigned_ == agents_.size();
  }

 private:
  void DialEvery(int first) {
    for (size_t i = first; i < agents_.size(); i += kDialers) {
      Hello hello;
      hello.job_id = absl::StrCat("bench", agents_.size());
      hello.host = absl::StrCat("node", i);
      hello.nodes_min = hello.nodes_max = static_cast<int>(agents_.size());
      hello.lease = absl::Minutes(5);
      AgentStream::Handlers handlers;
      handlers.on_event = [this](const DaemonEvent& event) {
        if (!std::holds_alternative<Assignment>(event.body)) return;
        MutexLock lock(&mutex_);
        if (++assigned_ == agents_.size()) changed_.Signal();
      };
      handlers.on_end = [](const absl::Status&) {};
      auto stream = AgentStream::Open(endpoint_, Incarnation(i + 1), hello, handlers, kPatience);
      if (!stream.ok()) {
        std::fprintf(stderr, "%s\n", stream.status().ToString().c_str());
        return;
      }
      agents_[i] = *std::move(stream);
      agents_[i]->Send(Epoch(), Ready{hello.host, 1});
    }
  }

  const std::string endpoint_;
  Mutex mutex_;
  CondVar changed_;
  size_t assigned_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<AgentStream>> agents_;  // each written by one dialer
};

double PeakRssBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024.0;
}

int Main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::off);
  // Two descriptors an agent.
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);

  std::vector<int> counts;
  for (int i = 1; i < argc; ++i) {
    int count = 0;
    if (!absl::SimpleAtoi(argv[i], &count) || count < 1) {
      std::fprintf(stderr, "%s is no number of agents\n", argv[i]);
      return 64;
    }
    counts.push_back(count);
  }
  if (counts.empty()) counts = {1, 100, 500, 1000, 2000};
  std::printf("%8s %12s %12s %22s\n", "agents", "start (ms)", "join (ms)", "peak RSS, both sides");
  for (const int count : counts) {
    const MonotonicTime begin = Clock::Real().Now();
    Server::Options options;
    options.host = "127.0.0.1";
    auto server = Server::Start(options);
    if (!server.ok()) {
      std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
      return 1;
    }
    const MonotonicTime started = Clock::Real().Now();
    Meeting meeting((*server)->port(), count);
    if (!meeting.Join()) {
      std::fprintf(stderr, "%d agents: not all joined\n", count);
      return 1;
    }
    const MonotonicTime joined = Clock::Real().Now();
    std::printf("%8d %12.1f %12.1f %22s\n", count, absl::ToDoubleMilliseconds(started - begin),
                absl::ToDoubleMilliseconds(joined - started), HumanBytes(PeakRssBytes()).c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace convene::rendezvous

int main(int argc, char** argv) { return convene::rendezvous::Main(argc, argv); }
