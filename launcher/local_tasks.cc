#include "launcher/local_tasks.h"

#include <fcntl.h>
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
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
// For task 0 to come, after its launcher of another job has: one shell may start both.
constexpr absl::Duration kBesidePatience = absl::Seconds(5);

struct Place {
  sockaddr_un address = {};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// `name`: the same for all who meet.
Place PlaceOf(std::string name) {
  Place place;
  place.address.sun_family = AF_UNIX;
  char* const bytes = place.address.sun_path + 1;  // after a 0: the name is in no file system
  constexpr size_t kRoom = sizeof(place.address.sun_path) - 1;
  name = absl::StrCat("convene-", geteuid(), "-", name);
  if (name.size() > kRoom) {
    name = absl::StrCat(name.substr(0, kReadableBytes), "-", std::hash<std::string>()(name));
  }
  std::copy(name.begin(), name.end(), bytes);
  place.length =
      static_cast<socklen_t>(bytes + name.size() - reinterpret_cast<const char*>(&place.address));
  return place;
}

// The place where the tasks of one job meet, and the one of all tasks of the step on this node.
Place PlaceOfJob(const LocalTask& task) { return PlaceOf(absl::StrCat(task.group, "/", task.job)); }
Place PlaceOfGroup(const LocalTask& task) { return PlaceOf(task.group); }

UniqueFd NewSocket(int flags) {
  return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
}

// AlreadyExists where another process listens there.
absl::StatusOr<UniqueFd> ListenAt(const Place& place, int most) {
  UniqueFd listener = NewSocket(SOCK_NONBLOCK);
  if (!listener.valid()) return ErrnoStatus(errno, "socket");
  if (bind(listener.get(), place.get(), place.length) != 0) {
    if (errno == EADDRINUSE) return absl::AlreadyExistsError("another process is there");
    return ErrnoStatus(errno, "bind a Unix socket");
  }
  if (listen(listener.get(), most) != 0) return ErrnoStatus(errno, "listen");
  return listener;
}

struct Contact {
  bool is_there = false;
  UniqueFd socket;  // not valid where too many others wait at that place
};

absl::StatusOr<Contact> ConnectTo(const Place& place) {
  // Where too many wait, a connect() that blocks would wait without a limit.
  UniqueFd socket = NewSocket(SOCK_NONBLOCK);
  if (!socket.valid()) return ErrnoStatus(errno, "socket");
  if (connect(socket.get(), place.get(), place.length) == 0) {
    fcntl(socket.get(), F_SETFL, fcntl(socket.get(), F_GETFL) & ~O_NONBLOCK);
    return Contact{true, std::move(socket)};
  }
  if (errno == EAGAIN) return Contact{true, UniqueFd()};
  if (errno != ECONNREFUSED && errno != EINTR) return ErrnoStatus(errno, "connect to task 0");
  return Contact();
}

// nullopt: not to be known.
std::optional<ucred> PeerOf(int fd) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return std::nullopt;
  return peer;
}

// Whether the process at the other end is of this user.
bool IsOwn(int fd) {
  const auto peer = PeerOf(fd);
  return peer.has_value() && peer->uid == geteuid();
}

// All zeros where the machine has more CPUs than the set has bits.
cpu_set_t OwnCpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) CPU_ZERO(&cpus);
  return cpus;
}

// The first word of a task to the leader of its job.
struct TaskHello {
  int32_t rank = 0;
  uint64_t command = 0;  // CommandMark's
  cpu_set_t cpus = {};
};

// The leader's word to a task whose command it does not run; no exit code is negative.
constexpr int32_t kOtherCommand = -1;

// Differs where the commands differ.
uint64_t CommandMark(const std::vector<std::string>& command) {
  return std::hash<std::string>()(absl::StrJoin(command, std::string(1, '\0')));
}

// The next connection, if it is of a process of this user; such a one says a first word at once.
UniqueFd AcceptOwn(int listener) {
  UniqueFd peer(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!peer.valid()) return peer;
  if (!IsOwn(peer.get())) return UniqueFd();
  const timeval timeout = absl::ToTimeval(kHelloPatience);
  setsockopt(peer.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  return peer;
}

// The one that OnSignal speaks for.
std::atomic<LocalTaskLeader*> the_leader = nullptr;
static_assert(std::atomic<LocalTaskLeader*>::is_always_lock_free);  // in a signal's handler

}  // namespace

LocalTaskLeader::LocalTaskLeader(const LocalTask& task, UniqueFd listener, UniqueFd group_listener)
    : pid_(getpid()),
      others_(task.count - 1),
      command_(CommandMark(task.command)),
      listener_(std::move(listener)),
      group_listener_(std::move(group_listener)) {
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

absl::StatusOr<std::unique_ptr<LocalTaskLeader>> LocalTaskLeader::Lead(
    const LocalTask& task, const std::vector<int>& signals) {
  // A task that finds the listener at once has ignored the signals since: no signal may end this
  // process before its handler tells that task.
  const ScopedAllSignalsBlocked blocked;
  auto listener = ListenAt(PlaceOfJob(task), task.count);
  if (absl::IsAlreadyExists(listener.status())) {
    return absl::AlreadyExistsError(absl::StrCat(
        "another process leads the tasks of this node already (", task.group,
        "): one `convene run` at a time can use the tasks of a step. Start each one in "
        "a step of its own: `srun --overlap ... convene run ...`"));
  }
  CONVENE_RETURN_IF_ERROR(listener.status());
  // After the job's own socket: a task that finds this one alone belongs to another job. Task 0's
  // launcher of another job may listen here already.
  auto group_listener = ListenAt(PlaceOfGroup(task), SOMAXCONN);
  if (absl::IsAlreadyExists(group_listener.status())) group_listener = UniqueFd();
  CONVENE_RETURN_IF_ERROR(group_listener.status());
  std::unique_ptr<LocalTaskLeader> leader(
      new LocalTaskLeader(task, *std::move(listener), *std::move(group_listener)));
  leader->DismissAtSignals(signals);
  return leader;
}

bool LocalTaskLeader::Accept(absl::Duration patience) {
  // poll() takes no notice of a descriptor of -1.
  pollfd ready[] = {{listener_.get(), POLLIN, 0}, {group_listener_.get(), POLLIN, 0}};
  const int64_t milliseconds = std::max<int64_t>(0, absl::ToInt64Milliseconds(patience));
  const int found = poll(ready, 2, static_cast<int>(std::min<int64_t>(milliseconds, INT32_MAX)));
  if (found <= 0) return found < 0 && errno == EINTR;
  if (ready[0].revents != 0) AcceptPeer();
  if (ready[1].revents != 0) AcceptBeside();
  return true;
}

void LocalTaskLeader::AcceptPeer() {
  // Between the listener and peers_ a handler would not find the task.
  const ScopedAllSignalsBlocked blocked;
  UniqueFd peer = AcceptOwn(listener_.get());
  TaskHello hello;
  if (!peer.valid() || recv(peer.get(), &hello, sizeof(hello), 0) != sizeof(hello)) return;
  if (hello.command != command_) return Refuse(peer, hello.rank);
  cpus_.push_back(hello.cpus);
  peers_.push_back(std::move(peer));
  peer_count_ = peers_.size();
}

void LocalTaskLeader::Refuse(const UniqueFd& peer, int rank) {
  (void)send(peer.get(), &kOtherCommand, sizeof(kOtherCommand), MSG_NOSIGNAL | MSG_DONTWAIT);
  spdlog::warn("task {} of this node has another command, and this one's workers do not run it",
               rank);
  if (rank > 0 && rank <= others_) refused_.insert(rank);
}

void LocalTaskLeader::AcceptBeside() {
  const UniqueFd peer = AcceptOwn(group_listener_.get());
  int32_t rank = 0;
  if (peer.valid() && recv(peer.get(), &rank, sizeof(rank), 0) == sizeof(rank) && rank > 0 &&
      rank <= others_) {
    beside_.insert(rank);  // it may come again with its next job
  }
}

int LocalTaskLeader::Gather(absl::Duration patience) {
  const MonotonicTime deadline = Clock::Real().Now() + patience;
  while (Missing() > 0 && Accept(deadline - Clock::Real().Now())) {
  }
  if (Missing() > 0) {
    spdlog::warn("{} of the {} other tasks of this node did not come within {}; the job goes on",
                 Missing(), others_, absl::FormatDuration(patience));
  }
  const cpu_set_t own = OwnCpus();
  cpu_set_t all = own;
  for (const cpu_set_t& cpus : cpus_) CPU_OR(&all, &all, &cpus);
  std::string with_cpus;
  if (CPU_COUNT(&own) > 0 && CPU_COUNT(&all) > CPU_COUNT(&own) &&
      sched_setaffinity(0, sizeof(all), &all) == 0) {
    with_cpus = absl::StrCat(", and runs on the CPUs of all: ", CPU_COUNT(&all), " in place of ",
                             CPU_COUNT(&own));
  }
  const int beside = static_cast<int>(beside_.size());
  if (beside > 0) {
    spdlog::info("{} of the {} other tasks of this node are jobs of their own", beside, others_);
  }
  const int led = others_ - beside - static_cast<int>(refused_.size());
  if (led > 0) {
    spdlog::info("this task is the launcher of the {} other tasks of this node, too{}", led,
                 with_cpus);
  }
  return beside;
}

void LocalTaskLeader::Dismiss(int exit_code) {
  while (Missing() > 0 && Accept(absl::ZeroDuration())) {
  }
  peer_count_ = 0;
  // First, so that a task which starts the next command at once does not find this leader.
  group_listener_.Reset();
  listener_.Reset();
  const int32_t message = exit_code;
  for (const UniqueFd& peer : peers_) {
    (void)send(peer.get(), &message, sizeof(message), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  peers_.clear();
}

namespace {

// Errors as of AwaitLocalLeader.
absl::StatusOr<UniqueFd> FindLocalLeader(const LocalTask& task, absl::Duration patience) {
  Clock& clock = Clock::Real();
  const MonotonicTime deadline = clock.Now() + patience;
  MonotonicTime beside_deadline = MonotonicTime::InfiniteFuture();
  Backoff backoff(absl::Milliseconds(5), absl::Milliseconds(200));
  for (;;) {
    CONVENE_ASSIGN_OR_RETURN(Contact leader, ConnectTo(PlaceOfJob(task)));
    if (leader.socket.valid()) return std::move(leader.socket);
    const bool is_over = clock.Now() >= beside_deadline;
    if (is_over || beside_deadline == MonotonicTime::InfiniteFuture()) {
      CONVENE_ASSIGN_OR_RETURN(const Contact group, ConnectTo(PlaceOfGroup(task)));
      if (!group.is_there || (group.socket.valid() && !IsOwn(group.socket.get()))) {
        beside_deadline = MonotonicTime::InfiniteFuture();
      } else if (!is_over) {
        beside_deadline = clock.Now() + kBesidePatience;
      } else {
        const int32_t rank = task.rank;
        (void)send(group.socket.get(), &rank, sizeof(rank), MSG_NOSIGNAL);
        return absl::NotFoundError("task 0 of this node leads another job");
      }
    }
    if (clock.Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("task 0 of this node, which starts the workers, did not come within ",
                       absl::FormatDuration(patience), " (", task.group, "); this is task ",
                       task.rank, " of ", task.count,
                       ". Look for the error of task 0 in the job's output. To run this task by "
                       "itself, add --standalone"));
    }
    clock.SleepFor(backoff.Next(RandomFraction()));
  }
}

}  // namespace

absl::StatusOr<int> AwaitLocalLeader(const LocalTask& task, const std::vector<int>& signals,
                                     absl::Duration patience) {
  CONVENE_ASSIGN_OR_RETURN(const UniqueFd leader, FindLocalLeader(task, patience));
  const auto peer = PeerOf(leader.get());
  if (!peer.has_value() || peer->uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "a process of another user (uid ", peer.has_value() ? absl::StrCat(peer->uid) : "unknown",
        ") has taken the place of task 0 of this node (", task.group, ")"));
  }
  for (const int number : signals) signal(number, SIG_IGN);
  const TaskHello hello = {task.rank, CommandMark(task.command), OwnCpus()};
  (void)send(leader.get(), &hello, sizeof(hello), MSG_NOSIGNAL);
  int32_t exit_code = 0;
  ssize_t received = 0;
  do {
    received = recv(leader.get(), &exit_code, sizeof(exit_code), 0);
  } while (received < 0 && errno == EINTR);
  if (received == static_cast<ssize_t>(sizeof(exit_code)) && exit_code == kOtherCommand) {
    return absl::InvalidArgumentError(absl::StrCat(
        "task 0 of this node (pid ", peer->pid, ") runs another command than this task (",
        task.rank, " of ", task.count, "), which is: ", absl::StrJoin(task.command, " "),
        ". The tasks of a node are one job, and task 0 runs its command: write the same command in "
        "each task (a worker finds its number in LOCAL_RANK and RANK). For jobs beside each other "
        "give each one its own --rdzv-id, or --standalone"));
  }
  if (received == static_cast<ssize_t>(sizeof(exit_code))) return exit_code;
  return absl::UnavailableError(absl::StrCat("task 0 of this node (pid ", peer->pid,
                                             "), which ran the workers, is gone without a word: it "
                                             "was killed (SIGKILL, out of memory?). Task ",
                                             task.rank, " of ", task.count,
                                             " waited for it and ends too"));
}

}  // namespace convene::launcher
