#include "agent/warm/warm_pool.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/warm/warm_script.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::agent {
namespace {

constexpr size_t kLongestMessage = 4096;  // bytes
constexpr size_t kMostGuests = 16;
// Of a reason that a worker's Python tells.
constexpr size_t kLongestReason = 500;
// For the write of the record, at the agent's end.
constexpr absl::Duration kWriteLimit = absl::Seconds(5);

using Fds = std::vector<int>;

absl::Status SendMessage(int socket, absl::string_view text, const Fds& fds = {}) {
  iovec part = {const_cast<char*>(text.data()), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(4 * sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  if (sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return absl::OkStatus();
  return ErrnoStatus(errno, "sendmsg");
}

// "": the other end is closed; nullopt: nothing is there.
std::optional<std::string> Receive(int socket) {
  std::string text(kLongestMessage, '\0');
  const ssize_t n = recv(socket, text.data(), text.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  text.resize(std::max<ssize_t>(n, 0));
  return text;
}

absl::StatusOr<UniqueFd> EnvironmentFile(const std::vector<std::string>& environment) {
  UniqueFd file(memfd_create("convene-environment", MFD_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "memfd_create");
  const std::string text = absl::StrJoin(environment, absl::string_view("\0", 1));
  CONVENE_RETURN_IF_ERROR(WriteAll(file.get(), text, "the environment of a warm worker"));
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

bool HasEnded(const UniqueFd& pidfd) {
  pollfd look = {pidfd.get(), POLLIN, 0};
  return poll(&look, 1, 0) != 0;
}

bool IsTerminal(const SpawnRequest& request) {
  return isatty(request.stdout_fd) == 1 || isatty(request.stderr_fd) == 1 ||
         (request.stdin_fd >= 0 && isatty(request.stdin_fd) == 1);
}

std::string ScriptPath(const std::string& folder) {
  return absl::StrCat(folder, "/sitecustomize.py");
}

std::string CurrentDirectory() {
  const std::unique_ptr<char, decltype(&std::free)> path(getcwd(nullptr, 0), &std::free);
  return path == nullptr ? "" : path.get();
}

std::optional<std::string> ValueIn(const std::vector<std::string>& environment,
                                   absl::string_view name) {
  for (const std::string& entry : environment) {
    absl::string_view rest = entry;
    if (absl::ConsumePrefix(&rest, name) && absl::ConsumePrefix(&rest, "=")) {
      return std::string(rest);
    }
  }
  return std::nullopt;
}

bool IsOwnChild(pid_t pid) {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == 0;
}

}  // namespace

WarmPool::WarmPool(EventLoop& loop, Options options, std::function<void(const std::string&)> on_say)
    : loop_(loop),
      options_(std::move(options)),
      on_say_(std::move(on_say)),
      places_(PlaceVariables(options_.own_device)),
      path_(absl::StrCat(options_.directory, "/socket")),
      plan_(static_cast<int>(options_.slots.size())),
      timer_(loop, [this] { Think(); }) {}

absl::StatusOr<std::unique_ptr<WarmPool>> WarmPool::Start(
    EventLoop& loop, Options options, std::function<void(const std::string&)> on_say) {
  std::unique_ptr<WarmPool> pool(new WarmPool(loop, std::move(options), std::move(on_say)));
  if (!pool->timer_.valid()) return absl::ResourceExhaustedError("no descriptor for a timer");
  CONVENE_RETURN_IF_ERROR(pool->Listen());
  return pool;
}

absl::Status WarmPool::Listen() {
  const std::string& folder = options_.directory;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof(address.sun_path) || path_.find(':') != std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("the path ", path_, " is too long for a socket, or has a colon"));
  }
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  if (mkdir(folder.c_str(), 0700) != 0) return ErrnoStatus(errno, absl::StrCat("mkdir ", folder));
  CONVENE_RETURN_IF_ERROR(WriteFileAtomic(ScriptPath(folder), kWarmScript));
  // A file in the place of Python's cache, so that no worker writes one.
  CONVENE_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(folder, "/__pycache__"), ""));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return ErrnoStatus(errno, "pipe2");
  unread_.Reset(ends[0]);
  output_.Reset(ends[1]);
  listener_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener_.valid() ||
      bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener_.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listen on ", path_));
  }
  return loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { OnGuest(); });
}

WarmPool::~WarmPool() {
  if (listener_.valid()) loop_.Forget(listener_.get());
  for (const UniqueFd& guest : guests_) loop_.Forget(guest.get());
  if (parent_socket_.valid()) loop_.Forget(parent_socket_.get());
  if (parent_ != 0) {
    loop_.Forget(parent_pidfd_.get());
    KillParent();
    Disown(parent_);  // Not waited for: it may hang in the kernel.
  }
  KillSpares();
  for (const auto& spare : spares_) loop_.Forget(spare->socket.get());
  // Where the home folder hangs, the file and its thread are left to the end of the process.
  if (record_file_ != nullptr && !record_file_->IsWritten(kWriteLimit)) {
    (void)record_file_.release();
  }
  (void)RemoveTree(options_.directory);  // The next agent sweeps a rest.
}

void WarmPool::OnGuest() {
  UniqueFd guest(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!guest.valid() || guests_.size() >= kMostGuests) return;
  const int fd = guest.get();
  if (!loop_.Add(fd, EPOLLIN, [this, fd](uint32_t) { OnFirstWord(fd); }).ok()) return;
  guests_.push_back(std::move(guest));
}

void WarmPool::OnFirstWord(int fd) {
  const std::optional<std::string> word = Receive(fd);
  if (!word.has_value()) return;
  const auto found = std::find_if(guests_.begin(), guests_.end(),
                                  [fd](const UniqueFd& guest) { return guest.get() == fd; });
  loop_.Forget(fd);
  UniqueFd guest = std::move(*found);
  guests_.erase(found);
  ucred peer = {};
  socklen_t size = sizeof(peer);
  getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
  if (*word == "recorded") {
    plan_.Recorded();
    Keep();
  }
  if (*word == "parent" && peer.pid == parent_ && !parent_socket_.valid()) {
    parent_socket_ = std::move(guest);
    loop_.Watch(fd, [this] { OnParentWord(); });
    plan_.ParentConnected();
  }
  Think();
}

void WarmPool::Think() {
  Act();
  CheckStart();
}

void WarmPool::CheckStart() {
  const size_t ready = ReadySpares();
  if (!holds_start_ || plan_.HoldsStart(static_cast<int>(ready), Clock::Real().Now())) return;
  holds_start_ = false;
  plan_.StartBegins();
  if (ready < options_.slots.size() && !plan_.wants_record() && !plan_.is_off()) {
    on_say_(absl::StrCat("the first start waits no longer for its spares: ", ready, " of ",
                         options_.slots.size(), " are ready; the other workers start cold"));
    if (ready == 0) DropRecord();
  }
  options_.on_start();
}

void WarmPool::BeginFromRecord(const SpawnRequest& example, const std::string& cache,
                               absl::Duration limit) {
  SetExample(example);
  record_file_ = std::make_unique<WarmRecordFile>(cache, example.program, example.arguments,
                                                  CurrentDirectory());
  if (const absl::Status usable = record_file_->MakeFolder(); !usable.ok()) {
    record_file_.reset();
    return on_say_(absl::StrCat(
        "the first start of every run is cold: no record can be kept for later runs: ",
        usable.message(), ". Mend that, or set XDG_CACHE_HOME to a folder that can be written"));
  }
  absl::StatusOr<WarmRecord> record = record_file_->Load();
  if (absl::IsNotFound(record.status())) return;
  const absl::Status status = record.ok() ? TakeRecord(*record) : record.status();
  if (!status.ok()) {
    return on_say_(absl::StrCat("the workers start cold, until a start has been seen again: ",
                                record_file_->path(), ": ", status.message()));
  }
  if (record->modules.empty()) {
    const std::string path = record_file_->path();
    record_file_.reset();
    return on_say_(absl::StrCat(
        "the first start is cold: in an earlier run the spares had other variables than their "
        "workers, which a script in the place of Python causes; start Python itself, or remove ",
        path, " to try again"));
  }
  for (const std::string& name : record->left_out) plan_.LeaveOut(name);
  plan_.Kept(Clock::Real().Now() + limit);
  holds_start_ = true;
  on_say_(absl::StrCat("the first start waits, at most ", absl::FormatDuration(limit),
                       ", for spares with the imports of an earlier run (", record_file_->path(),
                       ")"));
  Think();
}

absl::Status WarmPool::TakeRecord(const WarmRecord& record) const {
  const std::string changed =
      ChangedVariable(record.variables, MarksOf(example_.environment, places_));
  if (!changed.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the variable ", changed, " has changed"));
  }
  return WriteFileAtomic(absl::StrCat(options_.directory, "/record"), record.modules);
}

void WarmPool::Keep() {
  if (record_file_ == nullptr || !keeps_ || plan_.is_off()) return;
  const absl::StatusOr<std::string> modules = ReadFile(absl::StrCat(options_.directory, "/record"));
  if (!modules.ok()) return;  // convene-train has none.
  record_file_->Keep({MarksOf(example_.environment, places_), plan_.left_out(), *modules});
}

void WarmPool::GiveUp(absl::string_view why) {
  on_say_(absl::StrCat("no more warm workers: ", why));
  DropRecord();
}

void WarmPool::DropRecord() {
  if (record_file_ != nullptr) record_file_->Drop();
  keeps_ = false;
}

void WarmPool::SetExample(const SpawnRequest& request) {
  example_ = request;
  example_.cgroup_fd = -1;
  example_.pid_slot = nullptr;
}

void WarmPool::Act() {
  for (;;) {
    absl::Status status;
    switch (plan_.Next(Clock::Real().Now())) {
      case WarmPlan::Deed::kNone: {
        const MonotonicTime deadline = plan_.deadline();
        if (deadline == MonotonicTime::InfiniteFuture()) return timer_.Cancel();
        return timer_.Set(deadline - Clock::Real().Now());
      }
      case WarmPlan::Deed::kStartParent:
        // Python without it would run the script as a worker that nobody knows of.
        if (const std::string script = ScriptPath(options_.directory); !IsFile(script)) {
          plan_.TurnOff();
          return on_say_(absl::StrCat("no more warm workers: ", script,
                                      " was removed, as a logout removes $XDG_RUNTIME_DIR"));
        }
        status = StartParent();
        if (!status.ok()) plan_.ParentEnded();
        break;
      case WarmPlan::Deed::kImport:
        status =
            SendMessage(parent_socket_.get(),
                        absl::StrCat("import\n", absl::StrJoin(places_, ","), "\n",
                                     absl::StrJoin(plan_.left_out(), ","), "\n", example_.program));
        break;
      case WarmPlan::Deed::kFork:
        status = Fork();
        break;
      case WarmPlan::Deed::kEndParent:
        status = absl::DeadlineExceededError("its imports take too long");
        break;
    }
    if (status.ok()) continue;
    on_say_(absl::StrCat("the parent of warm workers: ", status.message()));
    if (parent_ != 0) return KillParent();  // Its end brings this loop back.
  }
}

absl::Status WarmPool::StartParent() {
  SpawnRequest request = example_;
  request.environment =
      ParentEnvironment(request.arguments[0], std::move(request.environment), places_, path_);
  request.stdout_fd = request.stderr_fd = output_.get();
  parent_environment_ = example_.environment;
  CONVENE_ASSIGN_OR_RETURN(Child child, Spawn(request));
  parent_ = child.pid;
  parent_pidfd_ = std::move(child.pidfd);
  loop_.Watch(parent_pidfd_.get(), [this] { OnParentEnded(); });
  return absl::OkStatus();
}

void WarmPool::KillParent() {
  if (parent_ != 0) kill(-parent_, SIGKILL);
}

void WarmPool::OnParentWord() {
  std::optional<std::string> message;
  while (parent_socket_.valid() && (message = Receive(parent_socket_.get())).has_value()) {
    const std::vector<std::string> words = absl::StrSplit(*message, absl::MaxSplits('\n', 2));
    if (words[0].empty()) {
      loop_.Forget(parent_socket_.get());
      parent_socket_.Reset();
    } else if (words[0] == "warm" && words.size() == 2) {
      KillSpares();  // They know less.
      plan_.Warm(Clock::Real().Now());
      has_told_ready_ = false;
      on_say_(absl::StrCat("the parent of warm workers ", Utf8(words[1], kLongestReason)));
    } else if (words[0] == "leave" && words.size() == 3) {
      plan_.LeaveOut(words[1]);
      Keep();
      on_say_(absl::StrCat("warm workers import ", Utf8(words[1], kLongestReason),
                           " only when their script does: ", Utf8(words[2], kLongestReason)));
    } else if (words[0] == "changed" && words.size() == 2) {
      Changed(words[1]);
    } else if (words[0] == "never" && words.size() == 2) {
      plan_.TurnOff();
      GiveUp(Utf8(words[1], kLongestReason));
    }
  }
  Think();
}

void WarmPool::OnParentEnded() {
  OnParentWord();  // Its last words.
  loop_.Forget(parent_pidfd_.get());
  if (parent_socket_.valid()) loop_.Forget(parent_socket_.get());
  parent_socket_.Reset();
  parent_pidfd_.Reset();
  kill(-parent_, SIGKILL);  // Its imports may have started processes.
  Reap(std::exchange(parent_, 0));
  const bool was_off = plan_.is_off();
  plan_.ParentEnded();
  if (!was_off && plan_.is_off()) {
    GiveUp("their parent has ended too often; the workers start cold");
  }
  Think();
}

absl::Status WarmPool::Fork() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    plan_.SpareEnded();
    return ErrnoStatus(errno, "socketpair");
  }
  auto spare = std::make_unique<Spare>();
  spare->slot = FreeSlot();
  spare->socket.Reset(ends[0]);
  const UniqueFd other(ends[1]);
  Spare* const raw = spare.get();
  loop_.Watch(ends[0], [this, raw] { OnSpareWord(*raw); });
  spares_.push_back(std::move(spare));
  // When it fails, the spare's socket is at its end, and Died follows.
  return SendMessage(parent_socket_.get(), "fork", {other.get()});
}

int WarmPool::FreeSlot() const {
  std::vector<int> open = options_.slots;
  for (const auto& spare : spares_) {
    if (!spare->is_used) open.erase(std::find(open.begin(), open.end(), spare->slot));
  }
  return open.front();
}

void WarmPool::OnSpareWord(Spare& spare) {
  const std::optional<std::string> message = Receive(spare.socket.get());
  if (!message.has_value()) return;
  const std::vector<std::string> words = absl::StrSplit(*message, absl::MaxSplits('\n', 1));
  if (words[0] == "born" && words.size() == 2 && TakeBirth(spare, words[1])) return;
  if (words[0] == "ready" && spare.pid != 0) {
    spare.is_ready = true;
    const size_t ready = ReadySpares();
    if (!has_told_ready_ && ready >= options_.slots.size()) {
      has_told_ready_ = true;
      on_say_(absl::StrCat("spares that are ready to become workers: ", ready));
    }
    return CheckStart();
  }
  if (spare.is_used && words.size() == 2 && (words[0] == "changed" || words[0] == "unlike")) {
    return words[0] == "changed" ? Changed(words[1]) : OnUnlike(words[1]);
  }
  Died(spare);
  Think();
}

void WarmPool::Died(Spare& spare) {
  const bool was_off = plan_.is_off();
  if (!spare.is_used) plan_.SpareDied(Clock::Real().Now());
  Forget(spare);
  if (was_off || !plan_.is_off()) return;
  GiveUp("spares have ended too often before their use");
  KillParent();
}

size_t WarmPool::ReadySpares() const {
  return static_cast<size_t>(std::count_if(spares_.begin(), spares_.end(), [](const auto& spare) {
    return spare->is_ready && !spare->is_used;
  }));
}

bool WarmPool::TakeBirth(Spare& spare, absl::string_view pid) {
  pid_t number = 0;
  if (spare.pid != 0 || !absl::SimpleAtoi(pid, &number) || !IsOwnChild(number)) return false;
  spare.pidfd.Reset(static_cast<int>(syscall(SYS_pidfd_open, number, 0)));
  if (!spare.pidfd.valid()) return false;
  spare.pid = number;
  return SendMessage(spare.socket.get(),
                     absl::StrCat("settle\n", absl::StrJoin(slots_[spare.slot], "\n")))
      .ok();
}

void WarmPool::Forget(Spare& spare) {
  loop_.Forget(spare.socket.get());
  if (!spare.is_used && spare.pidfd.valid()) {
    syscall(SYS_pidfd_send_signal, spare.pidfd.get(), SIGKILL, 0, 0);
  }
  spares_.erase(std::find_if(spares_.begin(), spares_.end(),
                             [&](const auto& other) { return other.get() == &spare; }));
}

void WarmPool::KillSpares() {
  std::vector<Spare*> unused;
  for (const auto& spare : spares_) {
    if (!spare->is_used) unused.push_back(spare.get());
  }
  // The end of the socket ends a spare that is not born yet.
  for (Spare* const spare : unused) {
    plan_.SpareEnded();
    Forget(*spare);
  }
}

bool WarmPool::IsCompanion(pid_t session) const {
  return (parent_ != 0 && session == parent_) ||
         std::any_of(spares_.begin(), spares_.end(),
                     [&](const auto& spare) { return !spare->is_used && spare->pid == session; });
}

void WarmPool::Changed(absl::string_view why) {
  if (plan_.wants_record()) return;
  on_say_(absl::StrCat("the workers start cold, until a start has been seen again: ",
                       Utf8(why, kLongestReason)));
  plan_.Changed();
  KillParent();
  KillSpares();
}

// The agent gave both the same value: so it is the program that sets the variable, in each process
// that it begins, before Python starts. The parent cannot know its value for a worker.
void WarmPool::OnUnlike(absl::string_view variable) {
  if (plan_.is_off()) return;  // Another spare has told.
  if (ValueIn(parent_environment_, variable) != ValueIn(example_.environment, variable)) {
    return Changed(absl::StrCat("the variable ", variable, " has changed"));
  }
  if (record_file_ != nullptr) {
    // The start of every later run would wait in vain.
    record_file_->Keep({MarksOf(example_.environment, places_), {}, ""});
    keeps_ = false;
  }
  plan_.TurnOff();
  on_say_(absl::StrCat(
      "no more warm workers: ", example_.program,
      " is a script or a launcher that sets the variable ", Utf8(variable, kLongestReason),
      " and starts Python (a shim of pyenv, say), so each worker starts by it, cold. Start Python "
      "itself: `",
      example_.arguments[0], " -c 'import sys; print(sys.executable)'` tells its path"));
  KillParent();
  KillSpares();
}

bool WarmPool::HandOver(Spare& spare, const SpawnRequest& request) {
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const absl::StatusOr<UniqueFd> environment = EnvironmentFile(request.environment);
  if (!null.valid() || !environment.ok() || HasEnded(spare.pidfd)) return false;
  if (!Adopt(request, spare.pid).ok()) return false;
  const int stdin_fd = request.stdin_fd >= 0 ? request.stdin_fd : null.get();
  const Fds fds = {stdin_fd, request.stdout_fd, request.stderr_fd, environment->get()};
  if (SendMessage(spare.socket.get(), "run", fds).ok()) return true;
  Disown(spare.pid);
  if (request.pid_slot != nullptr) request.pid_slot->store(0);
  return false;
}

absl::StatusOr<Child> WarmPool::SpawnWorker(const SpawnRequest& request, int local_rank) {
  if (local_rank == 0) {
    SetExample(request);
    if (++starts_ == 2 && plan_.wants_record()) {
      on_say_(
          "the workers start cold: none of them has told the agent what a start needs (a script "
          "does so when it initialises torch.distributed)");
    }
  }
  slots_[local_rank] = SlotVariables(request.environment);
  for (size_t i = 0; i < spares_.size() && !IsTerminal(request);) {
    Spare& spare = *spares_[i];
    if (spare.is_used || !spare.is_ready || spare.slot != local_rank) {
      ++i;
      continue;
    }
    if (!HandOver(spare, request)) {
      Died(spare);
      continue;
    }
    spare.is_used = true;
    ++used_;
    plan_.Used(Clock::Real().Now());
    Think();
    Child child;
    child.pid = spare.pid;
    child.pidfd = std::move(spare.pidfd);
    return child;
  }
  // Without the script nobody would take the recorder's variables out again.
  const bool records =
      local_rank == 0 && plan_.wants_record() && IsFile(ScriptPath(options_.directory));
  if (!records) return Spawn(request);
  SpawnRequest recording = request;
  recording.environment =
      RecorderEnvironment(request.arguments[0], std::move(recording.environment), path_);
  return Spawn(recording);
}

}  // namespace convene::agent
