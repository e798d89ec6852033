// Measures the speed of workers' output through the agent: bytes a second, and the cost of the
// loop's thread. Usage: bazel run //agent/output:output_pump_bench
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/output/console.h"
#include "agent/output/log_disk.h"
#include "agent/output/output_pump.h"
#include "tools/base/clock.h"
#include "tools/base/event_loop.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {
namespace {

constexpr int64_t kBytes = int64_t{1} << 30;
constexpr int64_t kLogFileBytes = 256 << 20;

// A process of its own that writes kBytes in lines of 100.
pid_t StartWriter(int fd) {
  const pid_t child = fork();
  if (child != 0) return child;
  std::string lines;
  while (lines.size() < 64000) absl::StrAppend(&lines, std::string(99, 'x'), "\n");
  for (int64_t done = 0; done < kBytes; done += static_cast<int64_t>(lines.size())) {
    if (write(fd, lines.data(), lines.size()) < 0) break;
  }
  _exit(0);
}

double OwnThreadCpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  return absl::ToDoubleSeconds(absl::DurationFromTimeval(usage.ru_utime) +
                               absl::DurationFromTimeval(usage.ru_stime));
}

absl::Status Bench(const std::string& directory, bool on_console, bool in_file) {
  EventLoop loop;
  const UniqueFd null(open("/dev/null", O_WRONLY | O_CLOEXEC));
  Console console(loop, null.get(), null.get(), {[] {}, [](auto, const auto&) {}});
  std::unique_ptr<OutputPump> pump;
  CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<LogDisk> disk,
                           LogDisk::Start(loop, {[&] { pump->Reconsider(); }, {}}));
  const auto pump_goes_first = absl::MakeCleanup([&] { pump.reset(); });
  StreamOutput output;
  output.prefix = LinePrefix("[0] ", {});
  output.on_console = on_console;
  output.disk = disk.get();
  if (in_file) output.file = disk->Open({absl::StrCat(directory, "/log"), kLogFileBytes, 1});
  CONVENE_ASSIGN_OR_RETURN(
      pump, OutputPump::Create(loop, console, {OutputStream::kStdout, output, [] {}}));
  const pid_t writer = StartWriter(pump->write_end());
  pump->CloseWriteEnd();
  const double cpu_before = OwnThreadCpuSeconds();
  const MonotonicTime begin = Clock::Real().Now();
  while (!pump->at_end()) loop.RunOnce(MonotonicTime::InfiniteFuture());
  if (!disk->Finish(absl::Seconds(60))) return absl::DeadlineExceededError("the disk is slow");
  const double seconds = absl::ToDoubleSeconds(Clock::Real().Now() - begin);
  const double cpu = OwnThreadCpuSeconds() - cpu_before;
  waitpid(writer, nullptr, 0);
  std::printf("| %s | %s | %.0f MB/s | %.2f s |\n", on_console ? "yes" : "no",
              in_file ? "yes" : "no", static_cast<double>(kBytes) / seconds / 1e6,
              cpu / (static_cast<double>(kBytes) / 1e9));
  std::fflush(stdout);
  return absl::OkStatus();
}

int Main() {
  std::string directory = std::filesystem::temp_directory_path() / "output_pump_bench.XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return 1;
  std::printf(
      "| console | file | one worker's output | the loop's thread, for 1 GB |\n"
      "|---|---|---|---|\n");
  std::fflush(stdout);
  absl::Status status;
  for (const bool on_console : {true, false}) {
    for (const bool in_file : {true, false}) {
      status.Update(Bench(directory, on_console, in_file));
    }
  }
  std::filesystem::remove_all(directory);
  if (status.ok()) return 0;
  std::fprintf(stderr, "output_pump_bench: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace convene::agent

int main() { return convene::agent::Main(); }
