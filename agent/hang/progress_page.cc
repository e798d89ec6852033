#include "agent/hang/progress_page.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/contract/progress_page.h"

namespace convene::agent {
namespace {

constexpr char kPrefix[] = "convene-progress.";
constexpr int kMostLookedAt = 10'000;
// Between creating a file and locking it, another agent's sweep may take it away.
constexpr int kTries = 3;
constexpr int64_t kMostCounted = int64_t{1} << 53;

template <size_t kSize>
std::string CleanText(const char (&bytes)[kSize]) {
  std::string text(bytes, strnlen(bytes, kSize - 1));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

std::string CleanPhase(const char (&bytes)[24]) {
  const std::string phase = CleanText(bytes);
  return phase.empty() ? contract::kStepPhase : phase;
}

absl::Duration Nanoseconds(uint64_t count) {
  return absl::Nanoseconds(static_cast<int64_t>(std::min<uint64_t>(count, INT64_MAX)));
}

int64_t Count(uint64_t count) {
  return static_cast<int64_t>(std::min<uint64_t>(count, kMostCounted));
}

// The page's second part.
void ReadFacts(const contract::ProgressPage& page, WorkerReading& reading) {
  if ((page.flags & contract::kProgressTellsTimesFlag) != 0) {
    reading.times = {.compute = Nanoseconds(page.compute_ns),
                     .wait = Nanoseconds(page.wait_ns),
                     .data = Nanoseconds(page.data_ns),
                     .checkpoint = Nanoseconds(page.checkpoint_ns)};
  }
  if ((page.flags & contract::kProgressTellsTokensFlag) != 0) reading.tokens = Count(page.tokens);
  if ((page.flags & contract::kProgressTellsMemoryFlag) != 0) {
    reading.memory_bytes = Count(page.memory_bytes);
    reading.memory_peak_bytes = Count(page.memory_peak_bytes);
  }
  if ((page.flags & contract::kProgressTellsLossFlag) != 0) reading.loss = page.loss;
  reading.mfu = 1e-6 * page.mfu_millionths;
  reading.place = static_cast<int>(std::min<uint32_t>(page.place, INT32_MAX));
}

// The page's third part, as two reads found it.
void ReadAwaited(const contract::ProgressPage& page, const contract::ProgressPage& again,
                 WorkerReading& reading) {
  const uint64_t sequence = page.awaits_sequence;
  reading.tells_awaited = sequence != 0;
  const bool is_whole = sequence % 2 == 0 && sequence == again.awaits_sequence;
  if (!is_whole || page.awaits_rank == 0 || page.awaits_rank > INT32_MAX) return;
  reading.awaited_rank = static_cast<int>(page.awaits_rank - 1);
  reading.awaits =
      absl::StrCat(CleanText(page.awaits_operation), " #", page.awaits_number, " of ",
                   CleanText(page.awaits_group), " waits for rank ", reading.awaited_rank);
}

}  // namespace

std::string ProgressPage::Directory() {
  return access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
}

void ProgressPage::SweepDead(const std::string& directory) {
  DIR* const entries = opendir(directory.c_str());
  if (entries == nullptr) return;
  for (int looked_at = 0; looked_at < kMostLookedAt; ++looked_at) {
    const dirent* const entry = readdir(entries);
    if (entry == nullptr) break;
    if (!absl::StartsWith(entry->d_name, kPrefix)) continue;
    const std::string path = absl::StrCat(directory, "/", entry->d_name);
    struct stat info = {};
    if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) {
      continue;
    }
    const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file.valid() && flock(file.get(), LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
  }
  closedir(entries);
}

absl::StatusOr<std::unique_ptr<ProgressPage>> ProgressPage::Create(const std::string& directory) {
  for (int i = 0; i < kTries; ++i) {
    std::string path = absl::StrCat(directory, "/", kPrefix, "XXXXXX");
    UniqueFd file(mkostemp(path.data(), O_CLOEXEC));
    if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("create a file in ", directory));
    struct stat info = {};
    if (flock(file.get(), LOCK_EX | LOCK_NB) != 0 || fstat(file.get(), &info) != 0 ||
        info.st_nlink == 0) {
      unlink(path.c_str());
      continue;
    }
    // The page is made first, so that it removes the file when the write fails.
    std::unique_ptr<ProgressPage> page(new ProgressPage(path, std::move(file)));
    // The file is written in full, so that a worker never touches memory that is missing.
    std::string bytes(contract::kProgressPageBytes, '\0');
    bytes.replace(0, sizeof(contract::ProgressPage::magic), contract::kProgressMagic);
    CONVENE_RETURN_IF_ERROR(WriteAll(page->file_.get(), bytes, path));
    return page;
  }
  return absl::UnavailableError(absl::StrCat("files in ", directory, " vanish"));
}

ProgressPage::~ProgressPage() { unlink(path_.c_str()); }

std::optional<WorkerReading> ProgressPage::Read() const {
  // It is read by pread, because a mapping of a file that its worker has truncated would kill the
  // agent.
  std::array<char, sizeof(contract::ProgressPage)> bytes;
  std::array<char, sizeof(contract::ProgressPage)> again;
  for (auto* read : {&bytes, &again}) {
    const ssize_t size = pread(file_.get(), read->data(), read->size(), 0);
    if (size != static_cast<ssize_t>(read->size())) return std::nullopt;
  }
  const auto page = std::bit_cast<contract::ProgressPage>(bytes);
  // The third part changes oftener than the first two, which are looked at as one.
  constexpr size_t kFirstParts = offsetof(contract::ProgressPage, awaits_sequence);
  if (std::memcmp(bytes.data(), again.data(), kFirstParts) != 0 || page.sequence == 0 ||
      page.sequence % 2 != 0 ||
      std::memcmp(page.magic, contract::kProgressMagic, sizeof(page.magic)) != 0) {
    return std::nullopt;
  }
  WorkerReading reading;
  reading.step = std::clamp<int64_t>(page.step, 0, kMostCounted);
  reading.phase = CleanPhase(page.phase);
  reading.changed_at = MonotonicTime::FromEpoch(Nanoseconds(page.changed_at_ns));
  reading.tells_every_phase = (page.flags & contract::kProgressTellsEveryPhaseFlag) != 0;
  reading.dumps_on_signal = (page.flags & contract::kProgressDumpsOnSignalFlag) != 0;
  reading.pid = static_cast<int>(std::min<uint32_t>(page.pid, INT32_MAX));
  ReadFacts(page, reading);
  ReadAwaited(page, std::bit_cast<contract::ProgressPage>(again), reading);
  return reading;
}

}  // namespace convene::agent
