#include "agent/custody/guardian.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "agent/custody/cgroup.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"
#include "tools/base/directory_entries.h"
#include "tools/base/signals.h"

namespace convene::agent {
namespace {

constexpr char kName[] = "convene-guard";
// The longest time from the agent's end to the guardian's.
constexpr unsigned kPatienceSeconds = 5;
// The first pause between two looks at the leftovers.
constexpr int kFirstPauseMilliseconds = 1;
constexpr int kLongestPauseMilliseconds = 50;
// After so many restarts something kills guardians as fast as they come, and no more are started.
constexpr int kMostRestarts = 20;

// ---- in the guardian: only system calls, no malloc, no locks (agents have threads) ----

// So that a search for the agent's command line (pkill -f) does not find the guardian.
void RenameCommandLine() {
  ProcessStat stat;
  if (!ReadStat(getpid(), stat)) return;
  const uintptr_t start = stat[48], end = stat[49];  // arg_start and arg_end
  if (start == 0 || end <= start + sizeof(kName)) return;
  auto* const arguments = std::bit_cast<char*>(start);
  std::memset(arguments, 0, end - start);
  std::memcpy(arguments, kName, sizeof(kName));
}

template <typename Deed>
void ForEachCgroup(const GuardianPage& page, const Deed& deed) {
  if (page.cgroup_parent[0] == '\0') return;
  const UniqueFd parent(open(page.cgroup_parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent.valid()) return;
  ForEachEntry(parent.get(), [&](const dirent64& entry) {
    const size_t length = std::strlen(page.cgroup_prefix);
    if (std::strncmp(entry.d_name, page.cgroup_prefix, length) == 0)
      deed(parent.get(), entry.d_name);
  });
}

void KillCgroups(const GuardianPage& page) {
  ForEachCgroup(page, [](int parent, const char* name) {
    const UniqueFd cgroup(openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (cgroup.valid()) KillCgroup(cgroup.get());
  });
}

bool RemoveCgroups(const GuardianPage& page) {
  bool all = true;
  ForEachCgroup(page, [&](int parent, const char* name) {
    if (!RemoveCgroup(parent, name)) all = false;
  });
  return all;
}

template <typename Sessions>
bool Contains(const Sessions& sessions, pid_t session) {
  return session > 0 && std::any_of(sessions.begin(), sessions.end(),
                                    [&](const auto& known) { return known.load() == session; });
}

bool KillMarked(GuardianPage& page) {
  ProcessTable& table = ProcessTable::Read();
  page.FollowReleased(table);
  for (ProcessEntry& entry : table) {
    entry.chosen = !entry.ended() && Contains(page.sessions, entry.session);
  }
  const bool any_in_session = table.KillChosen();
  // The environments come last, because reading one may hang: a reader of the memory of a process
  // that hangs in the kernel (state D) may hang with it. Such a process is looked at again in the
  // next round.
  for (ProcessEntry& entry : table) {
    if (entry.ended() || entry.state == 'D' || entry.pid == getpid()) continue;
    if (page.IsReleased(entry.session)) continue;
    if (!entry.chosen) entry.chosen = EnvironmentHolds(entry.pid, page.token);
  }
  return table.KillChosen() || any_in_session;
}

void EndAll(GuardianPage& page) {
  alarm(kPatienceSeconds);  // Ends this process, wherever it hangs.
  for (int pause = kFirstPauseMilliseconds;;
       pause = std::min(2 * pause, kLongestPauseMilliseconds)) {
    KillCgroups(page);
    if (!KillMarked(page) && RemoveCgroups(page)) return;
    poll(nullptr, 0, pause);
  }
}

// A message with room for one descriptor.
struct Parcel {
  Parcel() {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  Parcel(const Parcel&) = delete;
  Parcel& operator=(const Parcel&) = delete;

  char byte = 0;
  iovec data = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
};

// The descriptor that came in a message; -1 when the agent has closed its end.
int ReceiveDescriptor(int channel) {
  Parcel parcel;
  if (recvmsg(channel, &parcel.message, MSG_DONTWAIT) <= 0) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int received = -1;
  std::memcpy(&received, CMSG_DATA(header), sizeof(received));
  return received;
}

// Waits until the agent has ended. The descriptor that came last stays open.
void WaitForEnd(int agent, int channel) {
  int held = -1;
  pollfd waiting[] = {{agent, POLLIN, 0}, {channel, POLLIN, 0}};
  for (;;) {
    if (poll(waiting, std::size(waiting), -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (waiting[0].revents != 0) return;
    if (waiting[1].revents == 0) continue;
    const int received = ReceiveDescriptor(channel);
    if (received < 0) {
      waiting[1].fd = -1;
      continue;
    }
    if (held >= 0) close(held);
    held = received;
  }
}

[[noreturn]] void Guard(GuardianPage& page, pid_t agent, int channel) {
  // All signals but the alarm are blocked: the agent carries out an orderly stop of everything on
  // the node.
  struct sigaction by_default = {};
  by_default.sa_handler = SIG_DFL;
  sigaction(SIGALRM, &by_default, nullptr);
  sigset_t alarm_only;
  sigemptyset(&alarm_only);
  sigaddset(&alarm_only, SIGALRM);
  sigprocmask(SIG_UNBLOCK, &alarm_only, nullptr);
  setsid();
  (void)!chdir("/");
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, agent, 0));
  const bool agent_lives = pidfd >= 0 && getppid() == agent;
  // The only descriptors, so that no reader waits for us to close our end of its pipe.
  const int high_channel = fcntl(channel, F_DUPFD, 2);
  if (pidfd > 0) dup2(pidfd, 0);
  if (high_channel < 0 || dup2(high_channel, 1) < 0) close(1);
  if (close_range(2, ~0U, 0) != 0) {
    for (int fd = 2; fd < 65536; ++fd) close(fd);
  }
  prctl(PR_SET_NAME, kName);
  RenameCommandLine();
  if (agent_lives) WaitForEnd(0, 1);
  EndAll(page);
  _exit(0);
}

// ---- in the agent ----

GuardianPage* MakePage(absl::string_view token, absl::string_view cgroup_parent,
                       absl::string_view cgroup_prefix) {
  void* const memory = mmap(nullptr, sizeof(GuardianPage), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CONVENE_CHECK(memory != MAP_FAILED);
  auto* const page = new (memory) GuardianPage;
  CONVENE_CHECK(!token.empty() && token.size() < sizeof(page->token));
  CONVENE_CHECK(cgroup_prefix.size() < sizeof(page->cgroup_prefix));
  std::memcpy(page->token, token.data(), token.size());
  std::memcpy(page->cgroup_prefix, cgroup_prefix.data(), cgroup_prefix.size());
  if (cgroup_parent.size() < sizeof(page->cgroup_parent)) {
    std::memcpy(page->cgroup_parent, cgroup_parent.data(), cgroup_parent.size());
  }
  return page;
}

}  // namespace

bool GuardianPage::IsReleased(pid_t session) const { return Contains(released, session); }

void GuardianPage::Release(pid_t session) {
  if (IsReleased(session)) return;
  for (std::atomic<pid_t>& place : released) {
    if (place.load() != 0) continue;
    place.store(session);
    return;
  }
}

void GuardianPage::ForgetEnded(ProcessTable& table) {
  if (!table.is_complete()) return;  // A session that was not seen may still live.
  for (std::atomic<pid_t>& session : released) {
    const pid_t number = session.load();
    const auto is_in = [&](const ProcessEntry& entry) { return entry.session == number; };
    if (number != 0 && std::none_of(table.begin(), table.end(), is_in)) session.store(0);
  }
}

void GuardianPage::FollowReleased(ProcessTable& table) {
  for (ProcessEntry& entry : table) entry.chosen = IsReleased(entry.session);
  table.ChooseDescendants();
  for (const ProcessEntry& entry : table) {
    if (entry.chosen) Release(entry.session);
  }
}

Guardian::Guardian(EventLoop& loop, absl::string_view token, absl::string_view cgroup_parent,
                   absl::string_view cgroup_prefix)
    : loop_(loop), page_(MakePage(token, cgroup_parent, cgroup_prefix)) {
  Start();
}

void Guardian::Dismiss() {
  connection_.Reset();
  if (pid_ < 0) return;
  loop_.Forget(pidfd_.get());
  kill(pid_, SIGKILL);
}

Guardian::~Guardian() {
  Dismiss();
  // Not waited for: it dies a moment later, and init reaps it.
  if (pid_ > 0) waitpid(pid_, nullptr, __WALL | WNOHANG);
  munmap(page_, sizeof(GuardianPage));
}

void Guardian::Start() {
  const pid_t agent = getpid();
  int ends[2] = {-1, -1};
  // Without the channel no connection can be sent, and all else works.
  (void)socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends);
  channel_.Reset(ends[0]);
  const UniqueFd guardians_end(ends[1]);
  int pidfd = -1;
  long pid = -1;
  {
    const ScopedAllSignalsBlocked blocked;
    // fork(), but with no signal to the parent at the end, with a pidfd, and without what libraries
    // have registered to be done around a fork.
    pid = syscall(SYS_clone, CLONE_PIDFD, nullptr, &pidfd, nullptr, nullptr);
    if (pid == 0) Guard(*page_, agent, guardians_end.get());
  }
  if (pid < 0) {
    spdlog::warn(
        "this agent has no guardian ({}): should it be killed, processes of its workers may stay.",
        std::strerror(errno));
    return;
  }
  pid_ = static_cast<pid_t>(pid);
  pidfd_.Reset(pidfd);
  loop_.Watch(pidfd_.get(), [this] { OnEnded(); });
  SendConnection();
}

void Guardian::Hold(UniqueFd connection) {
  connection_ = std::move(connection);
  SendConnection();
}

void Guardian::SendConnection() {
  if (pid_ < 0 || !connection_.valid() || !channel_.valid()) return;
  Parcel parcel;
  cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = connection_.get();
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(descriptor));
  if (sendmsg(channel_.get(), &parcel.message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    spdlog::debug("the guardian does not take the connection: {}", std::strerror(errno));
  }
}

void Guardian::OnEnded() {
  loop_.Forget(pidfd_.get());
  waitpid(pid_, nullptr, __WALL);
  pid_ = -1;
  pidfd_.Reset();
  if (restarts_++ == kMostRestarts) {
    spdlog::warn("the guardian was killed {} times: this agent goes on without one", restarts_);
    return;
  }
  spdlog::warn("the guardian was killed; starting another");
  Start();
}

}  // namespace convene::agent
