#include "agent/workers/kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"

namespace convene::agent {
namespace {

constexpr absl::Duration kPatience = absl::Milliseconds(20);
constexpr size_t kMostKept = 1024;
constexpr size_t kRecordBytes = 8192;  // the kernel's limit

}  // namespace

KernelLog::KernelLog() : file_(open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)) {
  if (file_.valid()) lseek(file_.get(), 0, SEEK_END);
}

std::vector<std::string> KernelLog::LinesAbout(int64_t pid) {
  if (!file_.valid()) return {};
  const MonotonicTime deadline = Clock::Real().Now() + kPatience;
  char record[kRecordBytes];
  while (Clock::Real().Now() < deadline) {
    const ssize_t size = read(file_.get(), record, sizeof(record));
    // EPIPE: records were overwritten before they were read; the next read goes on behind them.
    if (size < 0 && (errno == EPIPE || errno == EINTR)) continue;
    if (size <= 0) break;
    if (records_.size() == kMostKept) {
      records_.erase(records_.begin(), records_.begin() + kMostKept / 2);
    }
    records_.push_back(ReadKernelRecord({record, static_cast<size_t>(size)}));
  }
  return KernelLinesAbout(records_, pid, Clock::Real().Now());
}

}  // namespace convene::agent
