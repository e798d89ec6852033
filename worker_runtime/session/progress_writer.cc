#include "worker_runtime/session/progress_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {

using contract::ProgressPage;
namespace {

uint64_t Nanoseconds(absl::Duration duration) {
  return static_cast<uint64_t>(absl::ToInt64Nanoseconds(duration));
}

uint32_t FlagsOf(const ProgressFacts& facts) {
  return (facts.tells_times ? contract::kProgressTellsTimesFlag : 0) |
         (facts.tokens.has_value() ? contract::kProgressTellsTokensFlag : 0) |
         (facts.memory_bytes > 0 ? contract::kProgressTellsMemoryFlag : 0) |
         (facts.loss.has_value() ? contract::kProgressTellsLossFlag : 0);
}

void WriteFacts(const ProgressFacts& facts, ProgressPage& page) {
  page.compute_ns = Nanoseconds(facts.compute);
  page.wait_ns = Nanoseconds(facts.wait);
  page.data_ns = Nanoseconds(facts.data);
  page.checkpoint_ns = Nanoseconds(facts.checkpoint);
  page.tokens = static_cast<uint64_t>(facts.tokens.value_or(0));
  page.memory_bytes = static_cast<uint64_t>(facts.memory_bytes);
  page.memory_peak_bytes = static_cast<uint64_t>(facts.memory_peak_bytes);
  page.loss = facts.loss.value_or(0);
  page.place = facts.place;
  page.mfu_millionths =
      static_cast<uint32_t>(std::lround(1e6 * std::clamp(facts.mfu, 0.0, 1000.0)));
}

template <size_t kSize>
void WriteText(absl::string_view text, char (&field)[kSize]) {
  const size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(field, text.data(), length);
  std::memset(field + length, 0, kSize - length);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProgressWriter>> ProgressWriter::Open(const std::string& path,
                                                                     uint32_t flags, Clock& clock) {
  if (path.empty()) {
    return std::unique_ptr<ProgressWriter>(new ProgressWriter(nullptr, flags, clock));
  }
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("open the progress page ", path));
  struct stat info = {};
  if (fstat(file.get(), &info) != 0 ||
      info.st_size != static_cast<off_t>(contract::kProgressPageBytes)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is no progress page"));
  }
  void* const mapped = mmap(nullptr, contract::kProgressPageBytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", path));
  auto* const page = static_cast<ProgressPage*>(mapped);
  if (std::memcmp(page->magic, contract::kProgressMagic, sizeof(page->magic)) != 0) {
    munmap(mapped, contract::kProgressPageBytes);
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is a progress page of another version than this program's"));
  }
  return std::unique_ptr<ProgressWriter>(new ProgressWriter(page, flags, clock));
}

ProgressWriter::~ProgressWriter() {
  if (page_ != nullptr) munmap(page_, contract::kProgressPageBytes);
}

void ProgressWriter::Tell(int64_t step, absl::string_view phase) {
  if (page_ == nullptr) return;
  const std::atomic_ref<uint64_t> sequence(page_->sequence);
  const uint64_t before = sequence.load(std::memory_order_relaxed);
  sequence.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  page_->step = step;
  page_->changed_at_ns = Nanoseconds(clock_.Now().since_epoch());
  page_->flags = flags_ | FlagsOf(facts_);
  page_->pid = static_cast<uint32_t>(getpid());
  WriteFacts(facts_, *page_);
  WriteText(phase, page_->phase);
  sequence.store(before + 2, std::memory_order_release);
}

void ProgressWriter::TellAwaited(const AwaitedRank* awaited) {
  if (page_ == nullptr) return;
  const std::atomic_ref<uint64_t> sequence(page_->awaits_sequence);
  const uint64_t before = sequence.load(std::memory_order_relaxed);
  sequence.store(before + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  page_->awaits_rank = awaited == nullptr ? 0 : static_cast<uint32_t>(awaited->rank) + 1;
  if (awaited != nullptr) {
    page_->awaits_number = awaited->number;
    WriteText(awaited->operation, page_->awaits_operation);
    WriteText(awaited->group, page_->awaits_group);
  }
  sequence.store(before + 2, std::memory_order_release);
}

}  // namespace convene::worker
