#include "worker_runtime/session/warm_spare.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {
namespace {

using Words = std::vector<std::string>;

constexpr int kLimitMs = 30'000;
constexpr char kSocketName[] = "socket";

void Send(int socket, const std::string& text, const std::vector<int>& fds = {}) {
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
  REQUIRE(sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
}

// "": the other end is closed.
std::string Read(int fd) {
  pollfd look = {fd, POLLIN, 0};
  REQUIRE(poll(&look, 1, kLimitMs) == 1);
  std::array<char, 1 << 16> text;
  return std::string(text.data(), std::max<ssize_t>(read(fd, text.data(), text.size()), 0));
}

std::string ReadAll(int fd) {
  std::string text;
  for (std::string part; !(part = Read(fd)).empty();) text += part;
  return text;
}

UniqueFd Pipe(UniqueFd& in) {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
  in.Reset(ends[1]);
  return UniqueFd(ends[0]);
}

struct Given {
  std::string role = "parent";
  bool still_works = true;
  std::string mapped;  // a file that the program has mapped; "": none
};

// The agent's side, and a child that is asked to be warm.
class Agent {
 public:
  explicit Agent(const Given& given) {
    REQUIRE(chdir(folder_.path().c_str()) == 0);  // A test's folder is too long for a socket.
    REQUIRE(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, kSocketName);
    listener_.Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
    REQUIRE(bind(listener_.get(), generic, sizeof(address)) == 0);
    REQUIRE(listen(listener_.get(), 1) == 0);
    UniqueFd in;
    output_ = Pipe(in);
    child_ = fork();
    if (child_ == 0) BeProgram(given, in.get());
    pollfd look = {listener_.get(), POLLIN, 0};
    REQUIRE(poll(&look, 1, kLimitMs) == 1);
    child_socket_.Reset(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  ~Agent() {
    kill(child_, SIGKILL);
    while (wait(nullptr) > 0) {
    }
  }

  int child_socket() const { return child_socket_.get(); }
  // Of the child itself.
  std::string Output() const { return ReadAll(output_.get()); }

  // A spare that is settled as local rank 1; returns its socket.
  UniqueFd MakeSpare() {
    CHECK(Read(child_socket()) == "parent");
    Send(child_socket(), "import\nRANK,LOCAL_RANK,MASTER_PORT\n");
    CHECK(absl::StartsWith(Read(child_socket()), "warm\n"));
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    UniqueFd spare(ends[0]);
    const UniqueFd other(ends[1]);
    Send(child_socket(), "fork", {other.get()});
    const Words born = absl::StrSplit(Read(spare.get()), '\n');
    REQUIRE(born[0] == "born");
    REQUIRE(absl::SimpleAtoi(born[1], &spare_pid_));
    Send(spare.get(), "settle\nLOCAL_RANK=1");
    CHECK(Read(spare.get()) == "ready");
    CHECK(getsid(spare_pid_) == spare_pid_);
    return spare;
  }

  // Returns the worker's output. `why` becomes the last word of the spare to its agent.
  std::string Run(const UniqueFd& spare, const Words& environment, std::string* why) {
    UniqueFd in;
    const UniqueFd out = Pipe(in);
    UniqueFd told_in;
    UniqueFd told = Pipe(told_in);
    REQUIRE_OK(WriteAll(told_in.get(), absl::StrJoin(environment, absl::string_view("\0", 1)), ""));
    told_in.Reset();
    const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
    Send(spare.get(), "run", {null.get(), in.get(), in.get(), told.get()});
    in.Reset();
    *why = Read(spare.get());
    return ReadAll(out.get());
  }
  pid_t spare_pid() const { return spare_pid_; }

 private:
  // In the child. As a worker it writes what it has: variables, descriptors, what it opened.
  [[noreturn]] void BeProgram(const Given& given, int out) const {
    dup2(out, STDOUT_FILENO);
    closefrom(3);
    if (!given.mapped.empty()) {
      const UniqueFd file(open(given.mapped.c_str(), O_RDONLY));
      if (mmap(nullptr, 1, PROT_READ, MAP_PRIVATE, file.get(), 0) == MAP_FAILED) _exit(1);
    }
    clearenv();
    setenv("HOME", "/h", 1);
    setenv("OWN", "1", 1);
    setenv("CONVENE_WARM", absl::StrCat(given.role, ":", kSocketName, ":").c_str(), 1);
    std::array<char*, 4> argv = {const_cast<char*>("sh"), const_cast<char*>("-c"),
                                 const_cast<char*>("echo cold; exec env"), nullptr};
    int opened = -1;
    ServeAsWarm({.path = "/bin/sh",
                 .argv = argv.data(),
                 .settings =
                     [](const EnvironmentLookup& environment) {
                       return std::vector<std::pair<std::string, std::string>>{
                           {"OWN", environment("RANK") == "9" ? "2" : "1"}};
                     },
                 .open = [&](int local_rank) { opened = local_rank; },
                 .still_works = [&] { return given.still_works; }});
    Words words;
    for (char** entry = environ; *entry != nullptr; ++entry) words.emplace_back(*entry);
    std::sort(words.begin(), words.end());
    const size_t fds = ListDirectory("/proc/self/fd").value_or(Words()).size();
    words.push_back(absl::StrCat("opened ", opened, ", descriptors ", fds));
    const std::string text = absl::StrJoin(words, "\n");
    (void)!write(STDOUT_FILENO, text.data(), text.size());
    _exit(0);
  }

  const testing::TempDir folder_;
  UniqueFd listener_;
  UniqueFd output_;
  UniqueFd child_socket_;
  pid_t child_ = 0;
  pid_t spare_pid_ = 0;
};

TEST_CASE("a spare becomes the worker that it is told to be, and has nothing else") {
  Agent agent({});
  const UniqueFd spare = agent.MakeSpare();
  std::string why;
  // The fourth descriptor is that of the listing.
  CHECK(agent.Run(spare, {"HOME=/h", "RANK=3", "LOCAL_RANK=1", "MASTER_PORT=7"}, &why) ==
        "HOME=/h\nLOCAL_RANK=1\nMASTER_PORT=7\nOWN=1\nRANK=3\nopened 1, descriptors 4");
  CHECK(why.empty());
}

TEST_CASE("a spare that would differ from a new process says why, and becomes one") {
  const testing::TempDir folder;
  const std::string mapped = folder.path() + "/mapped";
  struct Row {
    Given given;
    Words environment;
    std::string why;
  };
  const Words same = {"HOME=/h", "LOCAL_RANK=1", "RANK=3"};
  const std::vector<Row> rows = {
      {{}, {"HOME=/other", "LOCAL_RANK=1"}, "the variable HOME has changed"},
      {{}, {"HOME=/h", "LOCAL_RANK=1", "NEW=1"}, "the variable NEW has changed"},
      {{}, {"LOCAL_RANK=1"}, "the variable HOME has changed"},
      {{}, {"HOME=/h", "LOCAL_RANK=1", "RANK=9"}, "the variable OWN has changed"},
      {{}, {"HOME=/h", "LOCAL_RANK=2"}, "the variable LOCAL_RANK has changed"},
      {{.still_works = false}, same, "the device of a spare has failed"},
      {{.mapped = mapped}, same, mapped + " has changed"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.why);
    REQUIRE_OK(WriteFileAtomic(mapped, "one"));
    Agent agent(row.given);
    const UniqueFd spare = agent.MakeSpare();
    REQUIRE_OK(WriteFileAtomic(mapped, "another"));
    std::string why;
    const std::string output = agent.Run(spare, row.environment, &why);
    CHECK(why == "changed\n" + row.why);
    const Words lines = absl::StrSplit(output, '\n');
    CHECK(lines[0] == "cold");
    for (const std::string& entry : row.environment) {
      CHECK(std::count(lines.begin(), lines.end(), entry) == 1);
    }
    // It sets its own variables itself.
    CHECK(std::count(lines.begin(), lines.end(), "OWN=1") == 0);
  }
}

TEST_CASE("a spare and the parent of spares end with the agent's end of their sockets") {
  Agent agent({});
  UniqueFd spare = agent.MakeSpare();
  spare.Reset();
  int status = -1;
  CHECK(waitpid(agent.spare_pid(), &status, 0) == agent.spare_pid());
  CHECK(status == 0);
}

TEST_CASE("a worker that records tells the agent, and goes on without a word of it") {
  const Agent agent({.role = "record"});
  CHECK(Read(agent.child_socket()) == "recorded");
  CHECK(agent.Output() == "HOME=/h\nOWN=1\nopened -1, descriptors 4");
}

}  // namespace
}  // namespace convene::worker
