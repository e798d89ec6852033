#include "agent/hang/stack_dump.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/custody/program.h"
#include "agent/workers/environment.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"

namespace convene::agent {
namespace {

constexpr size_t kTargetsMax = 16;
constexpr int kMostWrappers = 16;
constexpr size_t kThreadsMax = 1024;
constexpr size_t kGroupsMax = 36;
constexpr size_t kLinesMax = 500;
constexpr size_t kLineBytesMax = 500;
constexpr size_t kToolBytes = size_t{128} << 10;
// The time for a worker to write its own stacks.
constexpr absl::Duration kSignalPatience = absl::Milliseconds(500);

std::string ReadLine(const std::string& path) {
  const auto content = ReadFile(path);
  if (!content.ok()) return "";
  return content->substr(0, content->find('\n'));
}

// A field of /proc/PID/status; "" when there is none.
std::string StatusField(const std::string& directory, absl::string_view name) {
  const auto status = ReadFile(directory + "/status");
  if (!status.ok()) return "";
  for (absl::string_view line : absl::StrSplit(*status, '\n')) {
    if (absl::ConsumePrefix(&line, absl::StrCat(name, ":"))) {
      return std::string(absl::StripAsciiWhitespace(line));
    }
  }
  return "";
}

// "R (running) python3, system call 202, in futex_wait_queue".
std::string DescribeThread(const std::string& directory) {
  const std::string state = StatusField(directory, "State");
  if (state.empty()) return "";
  std::string text = absl::StrCat(ReadLine(directory + "/comm"), ": ", state);
  const std::vector<std::string> call = absl::StrSplit(ReadLine(directory + "/syscall"), ' ');
  if (!call.front().empty() && call.front() != "running") {
    absl::StrAppend(&text, ", system call ", call.front());
  }
  const std::string place = ReadLine(directory + "/wchan");
  if (!place.empty() && place != "0") absl::StrAppend(&text, ", in ", place);
  if (absl::StartsWith(state, "D")) {
    // The kernel's stack tells why a process cannot even be killed; only root may read it.
    const auto stack = ReadFile(directory + "/stack");
    std::vector<std::string> frames =
        absl::StrSplit(stack.ok() ? *stack : "", '\n', absl::SkipEmpty());
    for (std::string& frame : frames) frame.erase(0, frame.find(']') + 2);
    if (!frames.empty()) absl::StrAppend(&text, " (", absl::StrJoin(frames, " < "), ")");
  }
  return text;
}

bool CatchesSigusr2(pid_t pid) {
  uint64_t caught = 0;
  return absl::SimpleHexAtoi(StatusField(absl::StrCat("/proc/", pid), "SigCgt"), &caught) &&
         (caught >> (SIGUSR2 - 1) & 1) != 0;
}

bool IsPython(pid_t pid) {
  char path[PATH_MAX];
  const ssize_t length = readlink(absl::StrCat("/proc/", pid, "/exe").c_str(), path, sizeof(path));
  const absl::string_view program(path, length < 0 ? 0 : static_cast<size_t>(length));
  return absl::StartsWith(program.substr(program.rfind('/') + 1), "python");
}

std::vector<std::string> ToolEnvironment() {
  std::map<std::string, std::string> table = ParseEnvironment(environ);
  table.erase("DEBUGINFOD_URLS");  // gdb would fetch symbols from the network.
  return EnvironmentStrings(table);
}

// gdb prints many other lines.
bool IsStackLine(const std::string& line) {
  return absl::StartsWith(line, "#") || absl::StartsWith(line, "Thread ") ||
         absl::StartsWith(line, " ");
}

}  // namespace

std::vector<std::string> KernelView(int global_rank, pid_t pid) {
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  const auto threads = ListDirectory(tasks);
  std::vector<std::string> lines;
  if (!threads.ok()) return lines;
  std::map<std::string, int> groups;
  for (size_t i = 0; i < std::min(threads->size(), kThreadsMax); ++i) {
    const std::string text = DescribeThread(absl::StrCat(tasks, "/", (*threads)[i]));
    if (!text.empty()) ++groups[text];
  }
  if (groups.empty()) return lines;
  lines.push_back(absl::StrCat("rank ", global_rank, " (pid ", pid, "), ", threads->size(),
                               threads->size() == 1 ? " thread" : " threads",
                               ", as the kernel sees them:"));
  for (const auto& [text, count] : groups) {
    if (lines.size() > kGroupsMax) {
      lines.push_back("  ...");
      break;
    }
    lines.push_back(absl::StrCat("  ", count == 1 ? "" : absl::StrCat(count, " x "), text));
  }
  return lines;
}

bool IsTraced(pid_t pid) {
  const std::string tracer = StatusField(absl::StrCat("/proc/", pid), "TracerPid");
  return !tracer.empty() && tracer != "0";
}

bool IsStopped(pid_t pid) {
  return absl::StartsWith(StatusField(absl::StrCat("/proc/", pid), "State"), "T");
}

pid_t TellingProcess(pid_t worker, pid_t told) {
  int pid = told;
  for (int i = 0; i < kMostWrappers && pid > 1 && pid != worker; ++i) {
    if (!absl::SimpleAtoi(StatusField(absl::StrCat("/proc/", pid), "PPid"), &pid)) return worker;
  }
  return pid == worker ? told : worker;
}

StackDump::StackDump(EventLoop& loop, const std::vector<StackTarget>& targets,
                     const std::string& search_path, absl::Duration deadline,
                     std::function<void(Result)> on_done)
    : loop_(loop),
      first_target_(absl::StrCat("rank ", targets.front().global_rank)),
      on_done_(std::move(on_done)),
      end_(Clock::Real().Now() + deadline),
      timer_(loop, [this] { NextTool(); }) {
  // A debugger tells no more of a process that a signal has stopped, takes its state (T) away, and
  // needs time in which another node reports a rank that only waits.
  if (!IsStopped(targets.front().pid)) FindTools(targets.front().pid, search_path);
  bool has_signalled = false;
  for (size_t i = 0; i < std::min(targets.size(), kTargetsMax); ++i) {
    const StackTarget& target = targets[i];
    const std::vector<std::string> lines = KernelView(target.global_rank, target.pid);
    kernel_lines_.insert(kernel_lines_.end(), lines.begin(), lines.end());
    if (target.dumps_on_signal && CatchesSigusr2(target.pid)) {
      has_signalled |= kill(target.pid, SIGUSR2) == 0;
    }
  }
  timer_.Set(has_signalled ? std::min(kSignalPatience, deadline) : absl::ZeroDuration());
}

void StackDump::FindTools(pid_t pid, const std::string& search_path) {
  if (const auto gdb = FindProgram("gdb", search_path); gdb.ok()) {
    tools_.push_back(
        {"gdb",
         *gdb,
         {"gdb", "-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off",
          "-p", absl::StrCat(pid), "-ex", "thread apply all -ascending bt 40"}});
  }
  const auto py_spy = FindProgram("py-spy", search_path);
  if (py_spy.ok() && IsPython(pid)) {
    tools_.push_back({"py-spy", *py_spy, {"py-spy", "dump", "--pid", absl::StrCat(pid)}});
  }
}

void StackDump::NextTool() {
  const absl::Duration left = end_ - Clock::Real().Now();
  if (tools_.empty() || left <= absl::ZeroDuration()) return Finish();
  const Tool tool = std::move(tools_.back());
  tools_.pop_back();
  BoundedCommand::Request request;
  request.spawn.program = tool.program;
  request.spawn.arguments = tool.arguments;
  request.spawn.environment = ToolEnvironment();
  request.timeout = left;
  request.first_bytes = kToolBytes;
  auto command = BoundedCommand::Start(
      loop_, request,
      [this, tool](const BoundedCommand::Outcome& outcome) { OnTool(tool, outcome); });
  if (!command.ok()) {
    result_.lines.push_back(absl::StrCat(tool.name, ": ", command.status().message()));
    return NextTool();
  }
  command_ = *std::move(command);
}

void StackDump::OnTool(const Tool& tool, const BoundedCommand::Outcome& outcome) {
  const std::vector<std::string> all = absl::StrSplit(outcome.output, '\n', absl::SkipEmpty());
  std::vector<std::string> stack = all;
  if (tool.name == "gdb") {
    stack.erase(std::remove_if(stack.begin(), stack.end(),
                               [](const std::string& line) { return !IsStackLine(line); }),
                stack.end());
  }
  const bool has_failed = stack.empty() || (outcome.status.exit_code != 0 && tool.name != "gdb");
  const std::string title = absl::StrCat("stacks of ", first_target_, " by ", tool.name,
                                         outcome.timed_out ? " (cut off by the deadline):" : ":");
  if (has_failed) {
    result_.lines.push_back(absl::StrCat(title, " none"));
    const size_t shown = std::min<size_t>(all.size(), 3);
    result_.lines.insert(result_.lines.end(), all.end() - static_cast<std::ptrdiff_t>(shown),
                         all.end());
  } else {
    result_.stack.push_back(title);
    result_.stack.insert(result_.stack.end(), stack.begin(), stack.end());
  }
  command_.reset();
  NextTool();
}

void StackDump::Finish() {
  auto& lines = result_.lines;
  lines.insert(lines.begin(), result_.stack.begin(), result_.stack.end());
  // The kernel's view always gets its room.
  if (lines.size() + kernel_lines_.size() > kLinesMax) {
    lines.resize(kLinesMax - std::min(kLinesMax, kernel_lines_.size()));
  }
  lines.insert(lines.end(), kernel_lines_.begin(), kernel_lines_.end());
  if (lines.size() > kLinesMax) lines.resize(kLinesMax);
  for (auto* const list : {&result_.stack, &lines}) {
    for (std::string& line : *list) line = line.substr(0, kLineBytesMax);
  }
  const auto on_done = std::move(on_done_);
  on_done(std::move(result_));
}

}  // namespace convene::agent
