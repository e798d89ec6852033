// Measures the cost of agents for one daemon: N real gRPC streams join it, send heartbeats, and are
// watched; the daemon is a process of its own, whose use of resources the kernel tells. Then 10,000
// agents against the daemon's core, with messages encoded and decoded but no sockets. The output is
// ready for tests/bench/RESULTS.md. Usage: join_bench --help.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/bench/bench_agents.h"
#include "rendezvous/bench/bench_daemon.h"
#include "rendezvous/client/status_client.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/lock/testing/test_ca.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/wire/status_json.h"
#include "rendezvous/wire/wire.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/environment.h"
#include "tools/base/flag_reader.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);
// 10,000 agents at 5 s.
constexpr int kHeartbeatsPerSecond = 2000;
constexpr int kLeastAnswered = 200;  // a second: one a slice of SendHeartbeats
constexpr absl::Duration kHeartbeatPhase = absl::Seconds(10);
// Longer than HeapTrim::kQuiet.
constexpr absl::Duration kWavePause = absl::Seconds(6);
constexpr int kWatchers = 10;
constexpr int kWatchRounds = 5;
constexpr int kCoreAgents = 10000;

constexpr char kToken[] = "0123456789abcdefghijklmn";

struct Wanted {
  std::vector<std::string> locks;
  std::vector<int> counts;
  bool join_only = false;
  int waves = 0;
  int serve_seconds = 0;
  std::vector<std::string> under;
};

// As many clients of `convene status --watch`. False when one got no answer.
bool Watch(const Endpoint& endpoint, size_t agents) {
  std::vector<std::unique_ptr<StatusClient>> watchers;
  for (int i = 0; i < kWatchers; ++i) {
    auto client = StatusClient::Open(endpoint, kPatience);
    if (!client.ok()) return false;
    watchers.push_back(*std::move(client));
  }
  for (int round = 0; round < kWatchRounds; ++round) {
    const MonotonicTime begin = Clock::Real().Now();
    for (const auto& watcher : watchers) {
      const auto views = watcher->Fetch("bench", kPatience);
      if (!views.ok() || views->front().nodes.size() != agents) return false;
    }
    Clock::Real().SleepFor(absl::Seconds(1) - (Clock::Real().Now() - begin));
  }
  return true;
}

int64_t OwnResidentBytes() {
  int64_t pages = 0;
  int64_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident_pages;
  return resident_pages * sysconf(_SC_PAGESIZE);
}

absl::Duration OwnCpu() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return absl::DurationFromTimespec(time);
}

// Of a word of --lock; the files are in `directory`.
Credentials CredentialsOf(const std::string& lock, const std::string& directory) {
  Credentials credentials;
  if (lock == "certificates" || lock == "both") credentials = TestCa().Issue(directory);
  if (lock == "token" || lock == "both") credentials.join_token = kToken;
  return credentials;
}

std::unique_ptr<BenchDaemon> StartDaemon(const Wanted& wanted, const Credentials& credentials) {
  auto daemon = BenchDaemon::Start(wanted.under, credentials);
  if (daemon.ok()) return *std::move(daemon);
  std::fprintf(stderr, "%s\n", daemon.status().ToString().c_str());
  return nullptr;
}

// One line of the table.
bool BenchStreams(int count, const Wanted& wanted, const std::string& lock) {
  const testing::TempDir directory;
  const auto daemon = StartDaemon(wanted, CredentialsOf(lock, directory.path()));
  if (daemon == nullptr) return false;
  const BenchDaemon::Usage idle = daemon->usage();
  const absl::Duration own_cpu = OwnCpu();
  const MonotonicTime begin = Clock::Real().Now();
  BenchAgents agents(daemon->endpoint(), count);
  if (!agents.Join()) return false;
  const absl::Duration join = Clock::Real().Now() - begin;
  const BenchDaemon::Usage joined = daemon->usage();
  const absl::Duration agents_cpu = OwnCpu() - own_cpu;
  std::string beats_load = "–";
  std::string watch_load = "–";
  if (!wanted.join_only) {
    const MonotonicTime beats_begin = Clock::Real().Now();
    const int beats = agents.SendHeartbeats(kHeartbeatsPerSecond, kHeartbeatPhase);
    const absl::Duration beats_took = Clock::Real().Now() - beats_begin;
    const BenchDaemon::Usage beaten = daemon->usage();
    if (!Watch(daemon->endpoint(), static_cast<size_t>(count))) {
      std::fprintf(stderr, "%d agents: a watcher got no answer\n", count);
      return false;
    }
    beats_load = absl::StrFormat("%.1f %% of %.0f/s",
                                 100 * absl::FDivDuration(beaten.cpu - joined.cpu, beats_took),
                                 beats / absl::ToDoubleSeconds(beats_took));
    watch_load =
        absl::StrFormat("%.1f %%", 100 * absl::FDivDuration(daemon->usage().cpu - beaten.cpu,
                                                            kWatchRounds * absl::Seconds(1)));
  }
  const BenchDaemon::Usage last = daemon->usage();
  std::printf("| %d, %s | %.2f s | %.2f s + %.2f s | %s | %s | %.1f KB of %s |\n", count,
              lock.c_str(), absl::ToDoubleSeconds(join),
              absl::ToDoubleSeconds(joined.cpu - idle.cpu), absl::ToDoubleSeconds(agents_cpu),
              beats_load.c_str(), watch_load.c_str(),
              static_cast<double>(last.resident_bytes - idle.resident_bytes) / 1000 / count,
              HumanBytes(static_cast<double>(last.resident_bytes)).c_str());
  std::fflush(stdout);
  if (agents.lost() > 0) std::fprintf(stderr, "%d streams were lost\n", agents.lost());
  return agents.lost() == 0;
}

// Jobs of `count` agents one after the other, at one daemon.
bool BenchWaves(int count, const Wanted& wanted) {
  const auto daemon = StartDaemon(wanted, {});
  if (daemon == nullptr) return false;
  std::printf(
      "\nthe daemon's memory with no agent: %s; with a wave of %d, and when they are gone:\n",
      HumanBytes(static_cast<double>(daemon->usage().resident_bytes)).c_str(), count);
  for (int wave = 0; wave < wanted.waves; ++wave) {
    auto agents = std::make_unique<BenchAgents>(daemon->endpoint(), count);
    if (!agents->Join()) return false;
    const BenchDaemon::Usage joined = daemon->usage();
    if (!agents->Finish()) return false;
    agents.reset();
    Clock::Real().SleepFor(kWavePause);
    std::printf("  %2d: %s, %s\n", wave + 1,
                HumanBytes(static_cast<double>(joined.resident_bytes)).c_str(),
                HumanBytes(static_cast<double>(daemon->usage().resident_bytes)).c_str());
    std::fflush(stdout);
  }
  return true;
}

// A running job for somebody who looks at it, or disturbs it: `count` nodes of 8 ranks, each of
// which tells its times once a second or more often. Prints where the daemon is, and then each
// second how long answers to heartbeats took.
bool ServeJob(int count, const Wanted& wanted) {
  constexpr int kRanks = 8;
  const testing::TempDir directory;
  const auto daemon = StartDaemon(wanted, CredentialsOf(wanted.locks.front(), directory.path()));
  if (daemon == nullptr) return false;
  BenchAgents agents(daemon->endpoint(), count, kRanks);
  if (!agents.Join()) return false;
  std::printf("daemon %d %s\n", daemon->pid(), daemon->endpoint().address().c_str());
  std::fflush(stdout);
  for (int second = 0; second < wanted.serve_seconds; ++second) {
    const absl::Duration cpu = daemon->usage().cpu;
    agents.SendHeartbeats(std::max(count, kLeastAnswered), absl::Seconds(1));
    std::vector<absl::Duration> times = agents.TakeAnswerTimes();
    std::sort(times.begin(), times.end());
    const auto quantile_ms = [&](double share) {
      if (times.empty()) return -1.0;
      return absl::ToDoubleMilliseconds(times[static_cast<size_t>(share * (times.size() - 1))]);
    };
    std::printf("answers %zu median_ms %.3f p99_ms %.3f most_ms %.3f daemon_cpu %.3f lost %d\n",
                times.size(), quantile_ms(0.5), quantile_ms(0.99), quantile_ms(1),
                absl::ToDoubleSeconds(daemon->usage().cpu - cpu), agents.lost());
    std::fflush(stdout);
  }
  return agents.lost() == 0;
}

// Encodes its events, as a stream would.
class EncodingSink final : public StreamSink {
 public:
  void Queue(Item item) override {
    if (const auto* event = std::get_if<DaemonEvent>(&item)) {
      bytes_ += ToWire(Incarnation(1), *event).SerializeAsString().size();
    }
  }
  void Flush() override {}

 private:
  size_t bytes_ = 0;
};

// Decodes `bytes` and tells the daemon, as a stream would.
void Tell(Daemon* daemon, MemberId id, const std::string& bytes) {
  pb::AgentMessage message;
  if (!message.ParseFromString(bytes)) return;
  const auto envelope = FromWire(message);
  if (const auto* hello = std::get_if<Hello>(&envelope->body)) {
    daemon->Join(id, envelope->incarnation, *hello);
  } else {
    daemon->Receive(id, envelope->incarnation, envelope->epoch,
                    std::get<AgentEvent>(envelope->body));
  }
}

std::string Encoded(size_t i, Epoch epoch, decltype(AgentEnvelope::body) body) {
  return ToWire(AgentEnvelope{Incarnation(i + 1), epoch, std::move(body)}).SerializeAsString();
}

void BenchCore() {
  Daemon daemon(&Clock::Real(), true);
  CONVENE_CHECK(daemon.Start().ok());
  std::vector<MemberId> ids;
  malloc_trim(0);
  const int64_t resident = OwnResidentBytes();
  const absl::Duration begin = OwnCpu();
  for (int i = 0; i < kCoreAgents; ++i) {
    ids.push_back(daemon.Open(std::make_shared<EncodingSink>()));
    Tell(&daemon, ids[i], Encoded(i, Epoch(), BenchHello(i, kCoreAgents)));
    Tell(&daemon, ids[i], Encoded(i, Epoch(), AgentEvent(Ready{"node", 1})));
  }
  const absl::Duration joined = OwnCpu();
  const int64_t grown = OwnResidentBytes() - resident;
  std::vector<std::string> beats;
  for (int i = 0; i < kCoreAgents; ++i) {
    beats.push_back(Encoded(i, Epoch(1), AgentEvent(BenchHeartbeat())));
  }
  const absl::Duration encoded = OwnCpu();
  for (int i = 0; i < kCoreAgents; ++i) Tell(&daemon, ids[i], beats[i]);
  const absl::Duration beaten = OwnCpu();
  const auto views = daemon.Views("");
  const absl::Duration viewed = OwnCpu();
  pb::StatusReply reply;
  for (const JobView& view : *views) ToWire(view, reply.add_jobs());
  const size_t reply_bytes = reply.SerializeAsString().size();
  const absl::Duration serialized = OwnCpu();
  const size_t json_bytes = StatusJson(*views).size();
  const absl::Duration printed = OwnCpu();
  std::printf(
      "\ncore, %d agents (%s), %.1f KB each; CPU: join %.0f ms; heartbeats at 5 s %.2f %% of a "
      "core;\n"
      "status: %.1f ms under the lock, %.1f ms to write %s, %.1f ms for %s of JSON\n",
      kCoreAgents, views->front().phase.c_str(), static_cast<double>(grown) / 1000 / kCoreAgents,
      absl::ToDoubleMilliseconds(joined - begin),
      100 * absl::FDivDuration(beaten - encoded, absl::Seconds(5)),
      absl::ToDoubleMilliseconds(viewed - beaten), absl::ToDoubleMilliseconds(serialized - viewed),
      HumanBytes(static_cast<double>(reply_bytes)).c_str(),
      absl::ToDoubleMilliseconds(printed - serialized),
      HumanBytes(static_cast<double>(json_bytes)).c_str());
  daemon.Shutdown();
}

int Main(int argc, char** argv) {
  spdlog::set_level(spdlog::level::off);
  if (argc == 6 && std::strcmp(argv[1], kBenchDaemonFlag) == 0) return BenchDaemon::Serve(argv);
  Wanted wanted;
  std::string under;
  std::string locks = "none";
  std::vector<std::string> counts;
  FlagReader reader("join_bench", "Measures the cost of agents for one rendezvous daemon.");
  reader.Rest("[AGENTS...]", &counts);  // several: one after the other
  reader.Switch("join-only", &wanted.join_only, "no heartbeats, nobody who watches, no core");
  reader.Option("waves", &wanted.waves,
                "instead: as many jobs one after the other, and the daemon's memory");
  reader.Option("serve-for", &wanted.serve_seconds,
                "instead: for so many seconds, a job whose nodes have 8 ranks that tell their "
                "times each second (pages_bench.py looks at it)");
  reader.Option("lock", &locks,
                "how the door is locked: none, token, certificates, both; with several words, "
                "separated by commas, each count is measured with one after the other");
  reader.Option("under", &under, "a tool to run the daemon under, such as valgrind; its words");
  reader.Check([&]() -> absl::Status {
    wanted.locks = absl::StrSplit(locks, ',');
    for (const std::string& lock : wanted.locks) {
      if (lock != "none" && lock != "token" && lock != "certificates" && lock != "both") {
        return absl::InvalidArgumentError("--lock: write none, token, certificates or both");
      }
    }
    if (counts.empty()) counts = {"100", "500", "1000", "2000"};
    for (const std::string& count : counts) {
      CONVENE_RETURN_IF_ERROR(ParseValue(count, &wanted.counts.emplace_back()));
      if (wanted.counts.back() < 1) return absl::InvalidArgumentError("write 1 agent or more");
    }
    return absl::OkStatus();
  });
  const auto text = reader.Read({argv + 1, argv + argc}, ProcessEnvironment());
  if (!text.ok() || text->has_value()) {
    std::fputs((text.ok() ? **text : text.status().ToString() + "\n").c_str(), stdout);
    return text.ok() ? 0 : 64;
  }
  wanted.under = absl::StrSplit(under, ' ', absl::SkipEmpty());

  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (wanted.serve_seconds > 0) return ServeJob(wanted.counts.front(), wanted) ? 0 : 1;
  if (wanted.waves > 0) {
    for (const int count : wanted.counts) {
      if (!BenchWaves(count, wanted)) return 1;
    }
    return 0;
  }
  std::printf(
      "| agents, lock | join, wall | join, CPU of daemon + agents | heartbeats, daemon's CPU | 10 "
      "x "
      "`status --watch`, daemon's CPU | memory an agent, of all |\n|---|---|---|---|---|---|\n");
  for (const int count : wanted.counts) {
    for (const std::string& lock : wanted.locks) {
      if (!BenchStreams(count, wanted, lock)) return 1;
    }
  }
  if (!wanted.join_only) BenchCore();
  return 0;
}

}  // namespace
}  // namespace convene::rendezvous

int main(int argc, char** argv) { return convene::rendezvous::Main(argc, argv); }
