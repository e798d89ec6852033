#include "worker_runtime/session/warm_spare.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/cpu_count.h"
#include "tools/base/files.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/contract/names.h"

namespace convene::worker {
namespace {

// agent/warm's warm.py has the same words and limits.
constexpr size_t kLongestMessage = 1 << 16;
constexpr size_t kMostFds = 4;  // stdin, stdout, stderr, environment
constexpr int kMostCpus = 1 << 16;
constexpr absl::Duration kBirthLimit = absl::Seconds(10);

using Variables = std::map<std::string, std::string>;
using Stamp = std::tuple<int64_t, int64_t, uint64_t, uint64_t>;

struct Message {
  std::string text;  // "": the other end is closed
  std::vector<UniqueFd> fds;
};

Message Receive(int socket) {
  Message message = {std::string(kLongestMessage, '\0'), {}};
  iovec part = {message.text.data(), message.text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostFds * sizeof(int))> control = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  ssize_t n = 0;
  do {
    n = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  message.text.resize(std::max<ssize_t>(n, 0));
  const cmsghdr* const rights = n > 0 ? CMSG_FIRSTHDR(&header) : nullptr;
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return message;
  for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= rights->cmsg_len; at += sizeof(int)) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(rights) + at, sizeof(fd));
    message.fds.emplace_back(fd);
  }
  return message;
}

bool Send(int socket, const std::string& text) {
  return send(socket, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

UniqueFd ConnectTo(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid() || path.size() >= sizeof(address.sun_path)) return UniqueFd();
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  if (connect(fd.get(), generic, sizeof(address)) != 0) return UniqueFd();
  return fd;
}

std::optional<Stamp> StampOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return std::nullopt;
  return Stamp(info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec, info.st_size,
               info.st_ino, info.st_dev);
}

// The program and its libraries, as this process has mapped them.
std::map<std::string, std::optional<Stamp>> MappedFiles() {
  std::map<std::string, std::optional<Stamp>> files;
  const absl::StatusOr<std::string> maps = ReadFile("/proc/self/maps");
  for (const absl::string_view line : absl::StrSplit(maps.value_or(""), '\n')) {
    const size_t at = line.find('/');
    if (at == absl::string_view::npos) continue;
    const std::string path(line.substr(at));
    if (files.count(path) == 0) files.emplace(path, StampOf(path));
  }
  return files;
}

Variables Parse(const std::vector<std::string>& entries) {
  Variables variables;
  for (const std::string& entry : entries) {
    const size_t at = entry.find('=');
    if (at != std::string::npos) variables[entry.substr(0, at)] = entry.substr(at + 1);
  }
  return variables;
}

Variables OwnEnvironment() {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  return Parse(entries);
}

// From now on this is the environment. `environ` turns in one step, and the old one stays where it
// is, because a library's thread may be reading it.
void SetEnvironment(const Variables& variables) {
  std::string& text = *new std::string;  // one for the life of a worker
  for (const auto& [name, value] : variables) {
    absl::StrAppend(&text, name, "=", value, absl::string_view("\0", 1));
  }
  auto& entries = *new std::vector<char*>;
  for (size_t at = 0; at < text.size(); at = text.find('\0', at) + 1) entries.push_back(&text[at]);
  entries.push_back(nullptr);
  environ = entries.data();
}

std::vector<std::string> Threads() {
  return ListDirectory("/proc/self/task").value_or(std::vector<std::string>());
}

// The agent has given the main thread its CPUs. The threads of a device follow.
void BindAllThreads() {
  std::vector<cpu_set_t> cpus(kMostCpus / CPU_SETSIZE);
  const size_t bytes = cpus.size() * sizeof(cpu_set_t);
  if (sched_getaffinity(0, bytes, cpus.data()) != 0) return;
  for (const std::string& thread : Threads()) {
    pid_t number = 0;
    // A thread may have ended by now.
    if (absl::SimpleAtoi(thread, &number)) (void)sched_setaffinity(number, bytes, cpus.data());
  }
}

class Parent {
 public:
  Parent(const WarmProgram& program, UniqueFd socket)
      : program_(program),
        socket_(std::move(socket)),
        agent_(getppid()),
        environment_(OwnEnvironment()),
        files_(MappedFiles()),
        cpus_(CountBoundCpus()) {}

  // Returns in a process that has become a worker.
  void Serve() {
    if (!Send(socket_.get(), "parent")) _exit(0);
    for (;;) {
      const Message message = Receive(socket_.get());
      const std::vector<std::string> words = absl::StrSplit(message.text, '\n');
      if (words[0] == "import" && words.size() > 1) {
        for (const absl::string_view name : absl::StrSplit(words[1], ',')) places_.emplace(name);
        if (!Send(socket_.get(), "warm\nhas loaded convene-train")) _exit(0);
      } else if (words[0] == "fork" && message.fds.size() == 1) {
        if (Fork(message.fds[0].get())) return;
      } else {
        _exit(0);
      }
    }
  }

 private:
  // True in the spare, once it is a worker. The process between is gone at once, so that the agent,
  // a reaper, becomes the parent.
  bool Fork(int socket) {
    const pid_t between = fork();
    if (between < 0) return false;  // The socket's end tells the agent.
    if (between > 0) {
      waitpid(between, nullptr, 0);
      return false;
    }
    if (fork() != 0) _exit(0);
    socket_.Reset();
    DieWithAgent();
    if (!Send(socket, absl::StrCat("born\n", getpid()))) _exit(0);
    for (;;) {
      const Message message = Receive(socket);
      if (absl::StartsWith(message.text, "settle\n")) {
        setsid();
        Settle(absl::StrSplit(message.text, '\n'));
        if (!Send(socket, "ready")) _exit(0);
      } else if (message.text == "run" && message.fds.size() == kMostFds) {
        Become(socket, message.fds);
        return true;
      } else {
        _exit(0);
      }
    }
  }

  // `place`: a word, and SlotVariables (agent/warm/warm_plan.h).
  void Settle(const std::vector<std::string>& place) {
    slot_ = Parse(place);
    for (const auto& [name, value] : slot_) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    const auto own = slot_.find(slot_.count(contract::kNodeLocalRank) > 0 ? contract::kNodeLocalRank
                                                                          : contract::kLocalRank);
    int local_rank = 0;
    if (own == slot_.end() || !absl::SimpleAtoi(own->second, &local_rank)) return;
    program_.open(local_rank);
  }

  // The kernel kills this process with the agent, as every worker, once the agent is its parent.
  void DieWithAgent() const {
    Clock& clock = Clock::Real();
    const MonotonicTime deadline = clock.Now() + kBirthLimit;
    while (getppid() != agent_ && clock.Now() < deadline) clock.SleepFor(absl::Milliseconds(1));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != agent_) _exit(0);
  }

  void Become(int socket, const std::vector<UniqueFd>& fds) const {
    std::string text;
    std::array<char, 4096> part;
    for (ssize_t n; (n = read(fds[3].get(), part.data(), part.size())) > 0;) {
      text.append(part.data(), n);
    }
    const std::vector<std::string> told = absl::StrSplit(text, '\0');
    for (int number = 0; number < 3; ++number) dup2(fds[number].get(), number);
    Variables wanted = Parse(told);
    const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
      const auto found = wanted.find(name);
      if (found == wanted.end()) return std::nullopt;
      return found->second;
    };
    for (const auto& [name, value] : program_.settings(lookup)) wanted[name] = value;
    const std::string why = WhyCold(wanted);
    SetEnvironment(why.empty() ? wanted : Parse(told));
    if (why.empty()) return BindAllThreads();
    (void)Send(socket, "changed\n" + why);
    execv(program_.path.c_str(), program_.argv);
    _exit(1);
  }

  // Why a new process would be another one than this; "": it would not.
  std::string WhyCold(const Variables& wanted) const {
    for (const auto& [path, stamp] : files_) {
      if (!stamp.has_value() || StampOf(path) != stamp) return absl::StrCat(path, " has changed");
    }
    if (CountBoundCpus() != cpus_) return "the number of its CPUs has changed";
    const auto in = [](const Variables& variables, const std::string& name) {
      const auto found = variables.find(name);
      return found == variables.end() ? std::nullopt : std::optional(found->second);
    };
    for (const Variables* variables : {&wanted, &environment_}) {
      for (const auto& [name, value] : *variables) {
        if (places_.count(name) == 0 && in(wanted, name) != in(environment_, name)) {
          return absl::StrCat("the variable ", name, " has changed");
        }
      }
    }
    for (const auto& [name, value] : slot_) {
      if (in(wanted, name) != value) return absl::StrCat("the variable ", name, " has changed");
    }
    return program_.still_works() ? "" : "the device of a spare has failed";
  }

  const WarmProgram& program_;
  UniqueFd socket_;
  const pid_t agent_;
  const Variables environment_;
  const std::map<std::string, std::optional<Stamp>> files_;
  const int cpus_;
  std::set<std::string> places_;  // variables that each worker has for itself
  Variables slot_;                // in a spare: those that it has been told already
};

}  // namespace

void ServeAsWarm(const WarmProgram& program) {
  const char* const asked = getenv(contract::kWarm);
  if (asked == nullptr) return;
  const std::vector<std::string> words = absl::StrSplit(asked, absl::MaxSplits(':', 2));
  unsetenv(contract::kWarm);
  UniqueFd socket = words.size() < 2 ? UniqueFd() : ConnectTo(words[1]);
  if (words[0] != "parent") {
    if (socket.valid()) (void)Send(socket.get(), "recorded");
    return;
  }
  // It must never go on as a worker: that would be one too many.
  if (!socket.valid() || Threads().size() != 1) _exit(1);
  Parent(program, std::move(socket)).Serve();
}

}  // namespace convene::worker
