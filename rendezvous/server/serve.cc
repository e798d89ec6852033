#include "rendezvous/server/serve.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/etcd/candidate.h"
#include "rendezvous/etcd/client.h"
#include "rendezvous/etcd/etcd_journal.h"
#include "rendezvous/journal/file_journal.h"
#include "rendezvous/journal/tenure.h"
#include "rendezvous/lock/certificates.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/net/port_mark.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/doorbell.h"
#include "tools/base/event_loop.h"
#include "tools/base/exit_code.h"
#include "tools/base/exit_deadline.h"
#include "tools/base/host_port.h"
#include "tools/base/logging.h"
#include "tools/base/resource_limits.h"
#include "tools/base/signal_names.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

// The server's own threads and gRPC's.
constexpr int kThreads = 16;
constexpr int64_t kLeastFiles = 64;
// A descriptor for each agent's connection, as far as the hard limit goes.
constexpr int64_t kWantedFiles = 65536 + kLeastFiles;
// The streams get 2 s to hear that the daemon stops.
constexpr absl::Duration kStopPatience = absl::Seconds(15);
// Of etcd, at the start.
constexpr absl::Duration kFirstAnswer = absl::Seconds(10);
// A daemon that takes turns, where another program has its port: so long it does not lead.
constexpr absl::Duration kPortPause = absl::Seconds(5);
// At a lock, or at what the daemon cannot read for a while.
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(500);
constexpr absl::Duration kBetweenWarnings = absl::Minutes(1);

absl::Status WithAdvice(const absl::Status& status, int port) {
  std::string advice;
  if (!absl::StartsWith(status.message(), kCannotListen)) {
    // An error of the state directory says itself what to do.
  } else if (absl::IsAlreadyExists(status)) {
    advice = absl::StrCat(
        ".\nAnother program listens there, perhaps a convened of yours or of another user on this "
        "machine. See who it is with\n  ss -ltnp 'sport = :",
        port,
        "'\nand either let the jobs use that daemon (--rdzv-endpoint), stop it, or start this one "
        "on another port (--port).");
  } else if (absl::IsPermissionDenied(status)) {
    advice = ".\nPorts below 1024 are the system's; take another one (--port).";
  } else if (absl::IsInvalidArgument(status)) {
    advice =
        ".\nGive an address of this machine (`ip address` lists them), or 0.0.0.0 for all of them "
        "(--host).";
  }
  // A wrong file is a usage error, not a bug of this program.
  const absl::StatusCode code =
      absl::IsDataLoss(status) ? absl::StatusCode::kFailedPrecondition : status.code();
  return absl::Status(code, absl::StrCat(status.message(), advice));
}

std::vector<int> EndingSignals() {
  std::vector<int> ending = {SIGTERM, SIGINT, SIGQUIT};
  // Under nohup the daemon outlives the terminal's session.
  if (!IsIgnored(SIGHUP)) ending.push_back(SIGHUP);
  return ending;
}

// The steps of a daemon before its first thread begins. Blocks `ending`.
absl::Status Prepare(const std::vector<int>& ending) {
  BlockSignals(ending);
  // A write to a file that may not grow fails with an error instead of this signal.
  std::signal(SIGXFSZ, SIG_IGN);
  CONVENE_RETURN_IF_ERROR(EnsureOpenFiles(kLeastFiles, kWantedFiles));
  return CheckThreads(kThreads);
}

// Waits, on the main thread, for a signal that ends the daemon, or for a change that another thread
// tells.
class Vigil {
 public:
  explicit Vigil(const std::vector<int>& ending) : signals_(TakeSignals(ending)) {
    loop_.Watch(signals_.get(), [this] {
      signalfd_siginfo taken;
      if (read(signals_.get(), &taken, sizeof(taken)) == sizeof(taken)) {
        signal_ = static_cast<int>(taken.ssi_signo);
      }
    });
    CONVENE_CHECK(change_.Attach(loop_, [] {}).ok());
  }

  // Returns the signal, or 0 at `until` or when `is_changed` returns true, which is asked after
  // each Tell.
  int Keep(const std::function<bool()>& is_changed,
           MonotonicTime until = MonotonicTime::InfiniteFuture()) {
    while (signal_ == 0 && !is_changed() && Clock::Real().Now() < until) loop_.RunOnce(until);
    return signal_;
  }
  // From any thread.
  void Tell() { change_.Ring(); }

 private:
  EventLoop loop_;
  const UniqueFd signals_;
  const Doorbell change_;
  int signal_ = 0;  // the first that came
};

// The exit code for a server that did not start, or an error with advice.
absl::StatusOr<int> NotStarted(const absl::Status& status, int port) {
  if (!absl::IsResourceExhausted(status)) return WithAdvice(status, port);
  spdlog::error("{}", std::string(status.message()));
  return static_cast<int>(ExitCode::kUnfitNode);
}

void SayServing(const Server::Options& options, const Server& server) {
  spdlog::info("serving the rendezvous on {}", FormatHostPort(options.host, server.port()));
}

// Before the daemon stands by again. A server that hangs on its way out would never let it lead:
// then the process ends, and whoever started it starts it anew.
void StopServing(const std::function<void()>& stop) {
  const ExitDeadline deadline(kStopPatience, static_cast<int>(ExitCode::kUnavailable),
                              "the rendezvous that leads no more did not stop in time");
  stop();
}

// Ends the daemon within a bounded time by `stop`.
int EndBy(int signal, const std::function<void()>& stop) {
  spdlog::info("stopping: {}", SignalName(signal));
  const int exit_code = ExitCodeForSignal(signal);
  const ExitDeadline deadline(kStopPatience, exit_code, "the rendezvous did not stop in time");
  stop();
  return exit_code;
}

// gRPC tells little of a handshake that failed.
std::string TlsAdvice(const etcd::TlsFiles& tls) {
  if (tls.ca.empty()) {
    return "\nThis daemon speaks to it without TLS: where its --listen-client-urls are https, give "
           "--etcd-ca.";
  }
  return absl::StrCat(
      "\nThis daemon speaks TLS to it: is its certificate of a CA in ", tls.ca,
      " (--etcd-ca), with these names or addresses? ",
      tls.cert.empty()
          ? "Where etcd wants a certificate (--client-cert-auth), give --etcd-cert and --etcd-key."
          : absl::StrCat("Does etcd take ", tls.cert, " (--etcd-cert; its --trusted-ca-file)?"));
}

absl::Status NoEtcd(const absl::Status& status, const etcd::Place& place,
                    const etcd::TlsFiles& tls) {
  return absl::Status(
      status.code(),
      absl::StrCat(
          "--journal ", place.url(), ": ", status.message(),
          absl::IsUnavailable(status)
              ? absl::StrCat(
                    ".\nIs etcd running there, and more than half of its members, and does the "
                    "network let this machine reach them? See\n  etcdctl --endpoints HOST:2379 "
                    "endpoint status",
                    TlsAdvice(tls))
              : ""));
}

// For people: which daemon leads.
std::string NameOf(const Server::Options& options) {
  return absl::StrCat("the daemon on ", HostName(), ", port ", options.port, ", process ",
                      getpid());
}

// So that no agent on this machine serves at the port while this daemon does not.
std::unique_ptr<PortMark> LeaveMark(int port, const std::string& memory) {
  if (memory.empty() || port == 0) return nullptr;
  auto left = PortMark::Leave(port, memory);
  if (left.ok()) return *std::move(left);
  spdlog::warn(
      "{}: while this daemon does not serve, an agent on this machine may serve in its place",
      std::string(left.status().message()));
  return nullptr;
}

// Returns the signal, or 0 when so long has passed.
int Pause(Vigil* vigil, absl::Duration duration) {
  return vigil->Keep([] { return false; }, Clock::Real().Now() + duration);
}

// Whether a daemon that takes turns waits, in place of ending, for the program that has its port.
// `signal`: what came meanwhile.
bool WaitsForPort(const absl::Status& status, Vigil* vigil, int* signal) {
  if (!absl::IsAlreadyExists(status)) return false;
  spdlog::warn("{}: this daemon lets another one lead, and stands by again in {}",
               std::string(status.message()), absl::FormatDuration(kPortPause));
  *signal = Pause(vigil, kPortPause);
  return true;
}

// The shared things of daemons that take turns, a folder or the files for etcd, while they cannot
// be read: a daemon that has read them once looks again, for the leader may end meanwhile.
class Outage {
 public:
  // FailedPrecondition and DataLoss say that a person has to do something first.
  static bool MayPass(const absl::Status& status) {
    return !absl::IsFailedPrecondition(status) && !absl::IsDataLoss(status);
  }
  void Warn(const absl::Status& status) {
    const MonotonicTime now = Clock::Real().Now();
    if (now < warns_again_at_) return;
    warns_again_at_ = now + kBetweenWarnings;
    spdlog::warn("{}: this daemon stands by, and looks again every {}",
                 std::string(status.message()), absl::FormatDuration(kBetweenLooks));
  }

 private:
  MonotonicTime warns_again_at_;
};

// A fresh client for each candidacy: files that were replaced are read. The first one looks whether
// they are right; a later one waits for files that cannot be read, and is null when `signal` came
// meanwhile.
absl::StatusOr<std::unique_ptr<etcd::Client>> MakeClient(const etcd::Place& place,
                                                         const etcd::TlsFiles& tls, bool is_first,
                                                         Vigil* vigil, int* signal) {
  if (is_first && !tls.ca.empty()) {
    CONVENE_RETURN_IF_ERROR(
        CheckFiles({.tls_cert = tls.cert, .tls_key = tls.key, .tls_ca = tls.ca},
                   {.cert = "--etcd-cert", .key = "--etcd-key", .ca = "--etcd-ca"}));
  }
  Outage outage;
  for (;;) {
    auto made = etcd::Client::Make(place.members, tls);
    if (made.ok() || is_first || !Outage::MayPass(made.status())) return made;
    outage.Warn(made.status());
    *signal = Pause(vigil, kBetweenLooks);
    if (*signal != 0) return nullptr;
  }
}

// Up to the colon: without the advice for a daemon that must not wait.
std::string FirstClause(const absl::Status& status) {
  return std::string(status.message().substr(0, status.message().find(": ")));
}

// A daemon whose port is taken would be of no use when its turn comes.
absl::Status CheckPort(const Server::Options& options) {
  return ReserveOn(options.host, options.port).status();
}

}  // namespace

absl::StatusOr<int> ServeUntilSignal(const Server::Options& options) {
  const std::vector<int> ending = EndingSignals();
  const absl::Status prepared = Prepare(ending);
  if (!prepared.ok()) return NotStarted(prepared, options.port);
  Vigil vigil(ending);
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  if (!server.ok()) return NotStarted(server.status(), options.port);
  const std::unique_ptr<PortMark> mark = LeaveMark((*server)->port(), options.state_dir);
  SayServing(options, **server);
  const int signal = vigil.Keep([] { return false; });
  return EndBy(signal, [&] { server->reset(); });
}

absl::StatusOr<int> ServeInTurn(const Server::Options& options, const etcd::Place& place,
                                const etcd::TlsFiles& tls, absl::Duration lease) {
  const std::vector<int> ending = EndingSignals();
  absl::Status prepared = Prepare(ending);
  if (prepared.ok()) prepared = CheckPort(options);
  if (!prepared.ok()) return NotStarted(prepared, options.port);
  Vigil vigil(ending);
  const std::unique_ptr<PortMark> mark = LeaveMark(options.port, place.url());
  MonotonicTime answer_by = Clock::Real().Now() + kFirstAnswer;
  etcd::Candidate::State state;
  for (bool is_first = true;; is_first = false, answer_by = MonotonicTime::InfiniteFuture()) {
    int signal = 0;
    CONVENE_ASSIGN_OR_RETURN(const auto client, MakeClient(place, tls, is_first, &vigil, &signal));
    if (signal != 0) return EndBy(signal, [] {});
    auto started = etcd::Candidate::Start(client.get(), {.place = place,
                                                         .lease = lease,
                                                         .name = NameOf(options),
                                                         .answer_by = answer_by,
                                                         .earlier_lease = state.lease,
                                                         .on_change = [&] { vigil.Tell(); }});
    if (!started.ok()) return NotStarted(started.status(), options.port);
    std::unique_ptr<etcd::Candidate> candidate = *std::move(started);
    signal = vigil.Keep([&] {
      state = candidate->state();
      return state.tenure != nullptr || !state.status.ok();
    });
    if (signal != 0) return EndBy(signal, [&] { candidate.reset(); });
    // A process that stood still for a lease (a paused machine) sees its begin and end at once.
    if (state.tenure != nullptr && absl::IsAborted(state.status)) continue;
    if (!state.status.ok()) return NoEtcd(state.status, place, tls);
    auto memory = etcd::EtcdJournal::Open(client.get(), place, state.lease, state.tenure);
    if (absl::IsUnavailable(memory.status())) {
      spdlog::warn("the journal was not read in time: {}", std::string(memory.status().message()));
      continue;
    }
    if (!memory.ok()) return NotStarted(memory.status(), options.port);
    spdlog::info("this daemon leads, in term {}; the journal at {} knows {} job{}",
                 state.tenure->term(), place.url(), memory->jobs.size(),
                 memory->jobs.size() == 1 ? "" : "s");
    auto server = Server::Start(options, *std::move(memory));
    if (!server.ok()) {
      candidate.reset();
      if (!WaitsForPort(server.status(), &vigil, &signal)) {
        return NotStarted(server.status(), options.port);
      }
      if (signal != 0) return EndBy(signal, [] {});
      continue;
    }
    SayServing(options, **server);
    signal = vigil.Keep([&] {
      state = candidate->state();
      return !state.status.ok();
    });
    const auto stop = [&] {
      server->reset();
      candidate.reset();
    };
    if (signal != 0) return EndBy(signal, stop);
    spdlog::warn("this daemon leads no more: {}. It stands by",
                 std::string(state.status.message()));
    StopServing(stop);
  }
}

absl::StatusOr<int> ServeByLock(const Server::Options& options) {
  const std::vector<int> ending = EndingSignals();
  absl::Status prepared = Prepare(ending);
  if (prepared.ok()) prepared = CheckPort(options);
  if (!prepared.ok()) return NotStarted(prepared, options.port);
  Vigil vigil(ending);
  const std::unique_ptr<PortMark> mark = LeaveMark(options.port, options.state_dir);
  const auto directory = FileJournal::MakeDirectory(options.state_dir);
  if (!directory.ok()) return NotStarted(directory.status(), options.port);
  Outage outage;
  for (bool has_told = false, is_first = true;; is_first = false) {
    auto memory = FileJournal::Open({.directory = options.state_dir,
                                     .is_shared = true,
                                     .on_lost = [&] { vigil.Tell(); },
                                     .directory_number = *directory});
    if (!memory.ok()) {
      const bool is_led = absl::IsAlreadyExists(memory.status());
      if (is_led && !std::exchange(has_told, true)) {
        spdlog::info("this daemon stands by: {}", FirstClause(memory.status()));
      }
      // A first look that has no room is in the right folder.
      const bool is_wrong = is_first && !absl::IsResourceExhausted(memory.status());
      if (!is_led && (is_wrong || !Outage::MayPass(memory.status()))) {
        return NotStarted(memory.status(), options.port);
      }
      if (!is_led) outage.Warn(memory.status());
      if (const int signal = Pause(&vigil, kBetweenLooks)) return EndBy(signal, [] {});
      continue;
    }
    const std::shared_ptr<Tenure> tenure = memory->tenure;
    spdlog::info("this daemon leads, in term {}; the journal in {} knows {} job{}", tenure->term(),
                 options.state_dir, memory->jobs.size(), memory->jobs.size() == 1 ? "" : "s");
    if (tenure->term() == 1) {
      spdlog::warn(
          "no daemon has led in {} before: where others use it, is its file system mounted?",
          options.state_dir);
    }
    auto server = Server::Start(options, *std::move(memory));
    int signal = 0;
    if (!server.ok()) {
      if (!WaitsForPort(server.status(), &vigil, &signal)) {
        return NotStarted(server.status(), options.port);
      }
      if (signal != 0) return EndBy(signal, [] {});
      continue;
    }
    SayServing(options, **server);
    signal = vigil.Keep([&] { return !tenure->Covers(Clock::Real().Now()); });
    if (signal != 0) return EndBy(signal, [&] { server->reset(); });
    spdlog::warn(
        "this daemon leads no more: another one may have taken {} over, or another folder stands "
        "in its place. It stands by",
        options.state_dir);
    StopServing([&] { server->reset(); });
    has_told = false;
  }
}

}  // namespace convene::rendezvous
