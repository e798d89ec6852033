#include "launcher/local_tasks.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "tools/base/backoff.h"
#include "tools/base/clock.h"
#include "tools/base/exit_code.h"
#include "tools/base/random.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

// A task that has connected says at once which CPUs it has.
constexpr absl::Duration kHelloPatience = absl::Seconds(5);
constexpr size_t kReadableBytes = 64;  // of a name that is too long for a socket's

struct Place {
  sockaddr_un address = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Place PlaceOf(const LocalTask& task) {
  Place place;
  place.address.sun_family = AF_UNIX;
  char* const bytes = place.address.sun_path + 1;  // after a 0: the name is in no file system
  constexpr size_t kRoom = sizeof(place.address.sun_path) - 1;
  std::string name = absl::StrCat("convene-", geteuid(), "-", task.group);
  if (name.size() > kRoom) {
    name = absl::StrCat(name.substr(0, kReadableBytes), "-", std::hash<std::string>()(name));
  }
  std::copy(name.begin(), name.end(), bytes);
  place.length =
      static_cast<socklen_t>(bytes + name.size() - reinterpret_cast<const char*>(&place.address));
  return place;
}

UniqueFd NewSocket(int flags) {
  return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
}

// nullopt: not to be known.
std::optional<ucred> PeerOf(int fd) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer;
}

// All zeros where the machine has more CPUs than the set has bits.
cpu_set_t OwnCpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) CPU_ZERO(&cpus);
  return cpus;
}

// The one that OnSignal speaks for.
std::atomic<LocalTaskLeader*> the_leader = nullptr;
static_assert(std::atomic<LocalTaskLeader*>::is_always_lock_free);  // in a signal's handler

}  // namespace

LocalTaskLeader::LocalTaskLeader(const LocalTask& task, UniqueFd listener)
    : pid_(getpid()), others_(task.count - 1), listener_(std::move(listener)) {
  peers_.reserve(static_cast<size_t>(others_));
}

LocalTaskLeader::~LocalTaskLeader() { the_leader = nullptr; }

void LocalTaskLeader::DismissAtSignals(const std::vector<int>& signals) {
  the_leader = this;
  for (const int number : signals) {
    if (!IsIgnored(number)) signal(number, OnSignal);
  }
}

// Only what signal-safety(7) allows.
void LocalTaskLeader::OnSignal(int number) {
  const int32_t message = ExitCodeForSignal(number);
  // A child of the leader's may get here before it runs another program.
  const LocalTaskLeader* const leader = the_leader;
  if (leader != nullptr && leader->pid_ == getpid()) {
    for (size_t i = 0; i < leader->peer_count_; ++i) {
      (void)send(leader->peers_[i].get(), &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    // Some may have come and not been let in yet. The process's end closes these descriptors.
    for (int peer; (peer = accept(leader->listener_.get(), nullptr, nullptr)) >= 0;) {
      (void)send(peer, &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
  // A signal without a handler does not end pid 1, which a container's command is.
  if (getpid() == 1) _exit(message);
  signal(number, SIG_DFL);
  raise(number);  // takes effect when this handler returns
}

absl::StatusOr<std::unique_ptr<LocalTaskLeader>> LocalTaskLeader::Lead(const LocalTask& task) {
  UniqueFd listener = NewSocket(SOCK_NONBLOCK);
  if (!listener.valid()) return ErrnoStatus(errno, "socket");
  const Place place = PlaceOf(task);
  if (bind(listener.get(), place.get(), place.length) != 0) {
    if (errno != EADDRINUSE) return ErrnoStatus(errno, "bind a Unix socket");
    return absl::AlreadyExistsError(absl::StrCat(
        "another process leads the tasks of this node already (", task.group,
        "): one `convene run` at a time can use the tasks of a step. Start each one in "
        "a step of its own: `srun --overlap ... convene run ...`"));
  }
  if (listen(listener.get(), task.count) != 0) return ErrnoStatus(errno, "listen");
  return std::unique_ptr<LocalTaskLeader>(new LocalTaskLeader(task, std::move(listener)));
}

bool LocalTaskLeader::Accept(absl::Duration patience) {
  pollfd ready = {listener_.get(), POLLIN, 0};
  const int64_t milliseconds = std::max<int64_t>(0, absl::ToInt64Milliseconds(patience));
  const int found = poll(&ready, 1, static_cast<int>(std::min<int64_t>(milliseconds, INT32_MAX)));
  if (found <= 0) return found < 0 && errno == EINTR;
  UniqueFd peer(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer.valid()) return true;
  const auto sender = PeerOf(peer.get());
  if (!sender.has_value() || sender->uid != geteuid()) return true;
  const timeval timeout = absl::ToTimeval(kHelloPatience);
  setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  std::string cpus(sizeof(cpu_set_t), '\0');
  if (recv(peer.get(), cpus.data(), cpus.size(), 0) != static_cast<ssize_t>(cpus.size())) {
    return true;
  }
  cpus_.push_back(std::move(cpus));
  peers_.push_back(std::move(peer));
  peer_count_ = peers_.size();
  return true;
}

void LocalTaskLeader::Gather(absl::Duration patience) {
  const MonotonicTime deadline = Clock::Real().Now() + patience;
  while (static_cast<int>(peers_.size()) < others_ && Accept(deadline - Clock::Real().Now())) {
  }
  const int missing = others_ - static_cast<int>(peers_.size());
  if (missing > 0) {
    spdlog::warn("{} of the {} other tasks of this node did not come within {}; the job goes on",
                 missing, others_, absl::FormatDuration(patience));
  }
  const cpu_set_t own = OwnCpus();
  cpu_set_t all = own;
  for (const std::string& bytes : cpus_) {
    cpu_set_t cpus;
    std::memcpy(&cpus, bytes.data(), sizeof(cpus));
    CPU_OR(&all, &all, &cpus);
  }
  std::string with_cpus;
  if (CPU_COUNT(&own) > 0 && CPU_COUNT(&all) > CPU_COUNT(&own) &&
      sched_setaffinity(0, sizeof(all), &all) == 0) {
    with_cpus = absl::StrCat(", and runs on the CPUs of all: ", CPU_COUNT(&all), " in place of ",
                             CPU_COUNT(&own));
  }
  spdlog::info("this task starts the workers for the {} other tasks of this node{}", others_,
               with_cpus);
}

void LocalTaskLeader::Dismiss(int exit_code) {
  while (static_cast<int>(peers_.size()) < others_ && Accept(absl::ZeroDuration())) {
  }
  peer_count_ = 0;
  // First, so that a task which starts the next command at once does not find this leader.
  listener_.Reset();
  const int32_t message = exit_code;
  for (const UniqueFd& peer : peers_) {
    (void)send(peer.get(), &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  peers_.clear();
}

absl::StatusOr<int> AwaitLocalLeader(const LocalTask& task, const std::vector<int>& signals,
                                     absl::Duration patience) {
  Clock& clock = Clock::Real();
  const Place place = PlaceOf(task);
  const MonotonicTime deadline = clock.Now() + patience;
  Backoff backoff(absl::Milliseconds(5), absl::Milliseconds(200));
  UniqueFd leader;
  for (;;) {
    leader = NewSocket(0);
    if (!leader.valid()) return ErrnoStatus(errno, "socket");
    if (connect(leader.get(), place.get(), place.length) == 0) break;
    if (errno != ECONNREFUSED && errno != EINTR) return ErrnoStatus(errno, "connect to task 0");
    if (clock.Now() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "task 0 of this node, which starts the workers, did not come within ",
          absl::FormatDuration(patience), " (", task.group, "); this is task ", task.rank, " of ",
          task.count, ". Look for the error of task 0 in the job's output"));
    }
    clock.SleepFor(backoff.Next(RandomFraction()));
  }
  const auto peer = PeerOf(leader.get());
  if (!peer.has_value() || peer->uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "a process of another user (uid ", peer.has_value() ? absl::StrCat(peer->uid) : "unknown",
        ") has taken the place of task 0 of this node (", task.group, ")"));
  }
  for (const int number : signals) signal(number, SIG_IGN);
  const cpu_set_t cpus = OwnCpus();
  (void)send(leader.get(), &cpus, sizeof(cpus), MSG_NOSIGNAL);
  int32_t exit_code = 0;
  ssize_t received = 0;
  do {
    received = recv(leader.get(), &exit_code, sizeof(exit_code), 0);
  } while (received < 0 && errno == EINTR);
  if (received == static_cast<ssize_t>(sizeof(exit_code))) return exit_code;
  return absl::UnavailableError(absl::StrCat("task 0 of this node (pid ", peer->pid,
                                             "), which ran the workers, is gone without a word: it "
                                             "was killed (SIGKILL, out of memory?). Task ",
                                             task.rank, " of ", task.count,
                                             " waited for it and ends too"));
}

}  // namespace convene::launcher
