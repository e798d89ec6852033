#include "worker_runtime/session/session.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/contract/names.h"

namespace convene::worker {
namespace {

// A line is a word and a reason; a sender of more bytes without a newline is not our agent.
constexpr size_t kLineBytesMax = 4096;

// The signals that end an agent too. Under nohup the end of a terminal's session is not the end of
// a run.
std::vector<int> StopSignals() {
  std::vector<int> signals = {SIGTERM, SIGINT, SIGQUIT};
  if (!IsIgnored(SIGHUP)) signals.push_back(SIGHUP);
  return signals;
}

// Not exit(): other threads may be inside a collective, and destructors would wait for them.
[[noreturn]] void EndNow(int code) { _exit(code); }

absl::StatusOr<UniqueFd> ConnectToAgent(const Contract& contract) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (contract.session_path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(contract::kSession, "=", contract.session_path, " is too long for a socket"));
  }
  std::memcpy(address.sun_path, contract.session_path.c_str(), contract.session_path.size() + 1);
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "session socket");
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot reach the agent at ", contract.session_path,
                                               ": ", strerror(errno),
                                               "; it ended after it started this worker, or its "
                                               "folder was removed"));
  }
  CONVENE_RETURN_IF_ERROR(WriteAll(fd.get(),
                                   absl::StrCat(contract::kSessionHello, " ", contract.local_rank,
                                                " ", contract.epoch.value(), "\n"),
                                   contract.session_path));
  return fd;
}

}  // namespace

void BlockStopSignals() {
  BlockSignals(StopSignals());
  signal(SIGUSR1, SIG_IGN);
}

absl::StatusOr<std::unique_ptr<Session>> Session::Start(const Contract& contract,
                                                        StopToken& token) {
  const sigset_t stop_signals = SignalSet(StopSignals());
  UniqueFd signals(signalfd(-1, &stop_signals, SFD_CLOEXEC | SFD_NONBLOCK));
  UniqueFd wake(eventfd(0, EFD_CLOEXEC));
  if (!signals.valid() || !wake.valid()) return ErrnoStatus(errno, "session descriptors");
  UniqueFd socket;
  if (!contract.session_path.empty()) {
    CONVENE_ASSIGN_OR_RETURN(socket, ConnectToAgent(contract));
  }
  std::unique_ptr<Session> session(
      new Session(std::move(signals), std::move(socket), std::move(wake), token));
  session->thread_ = Thread("session", [raw = session.get()] { raw->Listen(); });
  return session;
}

Session::Session(UniqueFd signals, UniqueFd socket, UniqueFd wake, StopToken& token)
    : signals_(std::move(signals)),
      socket_(std::move(socket)),
      wake_(std::move(wake)),
      token_(token) {}

Session::~Session() {
  if (thread_.joinable()) EndThread();
}

void Session::Leave() {
  EndThread();  // First: it would take the agent's answer, a closed socket, for the agent's end.
  // An agent that is gone needs no word.
  if (socket_.valid()) {
    (void)WriteAll(socket_.get(), absl::StrCat(contract::kSessionLeave, "\n"), "the session");
  }
}

void Session::EndThread() {
  const uint64_t one = 1;
  CONVENE_CHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.Join();
}

void Session::Listen() {
  // poll() ignores a negative descriptor: a session without an agent hears signals alone.
  pollfd descriptors[] = {
      {wake_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}, {socket_.get(), POLLIN, 0}};
  while (true) {
    if (poll(descriptors, 3, -1) < 0) {
      CONVENE_CHECK(errno == EINTR);
      continue;
    }
    if (descriptors[0].revents != 0) return;
    if (descriptors[1].revents != 0) OnSignal();
    if (descriptors[2].revents != 0 && !OnSocket()) {
      EndNow(static_cast<int>(ExitCode::kMembershipChanged));
    }
  }
}

void Session::OnSignal() {
  signalfd_siginfo info;
  if (read(signals_.get(), &info, sizeof(info)) != sizeof(info)) return;
  const ReceivedSignal signal = SignalOf(info);
  const StopRequest::Meaning meaning = stop_request_.Hear(signal).meaning;
  if (meaning == StopRequest::Meaning::kAtOnce || !token_.is_watched()) {
    EndNow(ExitCodeForSignal(signal.number));
  }
  if (meaning == StopRequest::Meaning::kEcho) return;
  // The agent says "checkpoint" first and sends TERM to programs that do not listen: the word
  // outranks the signal.
  if (token_.reason() == StopReason::kNone) token_.Request(StopReason::kTerminated, signal.number);
}

bool Session::OnSocket() {
  char buffer[512];
  const ssize_t n = read(socket_.get(), buffer, sizeof(buffer));
  if (n < 0) return errno == EINTR || errno == EAGAIN;
  if (n == 0) return false;
  partial_line_.append(buffer, n);
  size_t newline;
  while ((newline = partial_line_.find('\n')) != std::string::npos) {
    OnLine(partial_line_.substr(0, newline));
    partial_line_.erase(0, newline + 1);
  }
  return partial_line_.size() <= kLineBytesMax;
}

void Session::OnLine(const std::string& line) {
  const bool is_checkpoint = absl::StartsWith(line, contract::kSessionCheckpoint);
  if (absl::StartsWith(line, contract::kSessionAbort) || (is_checkpoint && !token_.is_watched())) {
    EndNow(static_cast<int>(ExitCode::kMembershipChanged));
  }
  if (is_checkpoint) token_.Request(StopReason::kMembershipChanged, 0);
}

}  // namespace convene::worker
