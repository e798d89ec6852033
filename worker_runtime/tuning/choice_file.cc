#include "worker_runtime/tuning/choice_file.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/store/file_lock.h"

namespace convene::worker {
namespace {

constexpr absl::Duration kLockPatience = absl::Seconds(10);

absl::StatusOr<FileLock> Lock(const std::string& path) {
  return FileLock::Take(absl::StrCat(path, ".lock"), {.silence_max = kLockPatience});
}

// Never waits, whatever lies at `path`: a pipe, a device, an endless file.
absl::StatusOr<std::string> ReadBounded(const std::string& path) {
  CONVENE_ASSIGN_OR_RETURN(const UniqueFd fd,
                           OpenFile(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("fstat ", path));
  if (!S_ISREG(info.st_mode)) return absl::DataLossError("it is no plain file");
  std::string text(ChoiceTable::kTextBytesMax + 1, '\0');
  size_t read_bytes = 0;
  while (read_bytes < text.size()) {
    const ssize_t n = read(fd.get(), text.data() + read_bytes, text.size() - read_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (n == 0) break;
    read_bytes += static_cast<size_t>(n);
  }
  text.resize(read_bytes);
  return text;
}

}  // namespace

ChoiceFile::ChoiceFile(const std::string& directory, std::string machine)
    : machine_(std::move(machine)),
      path_(absl::StrCat(
          directory, "/products-",
          absl::Hex(XXH3_64bits(machine_.data(), machine_.size()), absl::kZeroPad16))) {}

absl::StatusOr<ChoiceTable> ChoiceFile::Parse() const {
  const absl::StatusOr<std::string> text = ReadBounded(path_);
  if (absl::IsNotFound(text.status())) return ChoiceTable(machine_);
  CONVENE_RETURN_IF_ERROR(text.status());
  return ChoiceTable::Decode(*text, machine_);
}

ChoiceTable ChoiceFile::Read() const {
  if (absl::StatusOr<ChoiceTable> table = Parse(); table.ok()) return *std::move(table);
  // Another process may have put a good file in its place: under the lock none does.
  const absl::StatusOr<FileLock> lock = Lock(path_);
  absl::StatusOr<ChoiceTable> table = Parse();
  if (table.ok()) return *std::move(table);
  const std::string aside = absl::StrCat(path_, ".refused");
  const bool is_aside = lock.ok() && RenameFile(path_, aside).ok();
  spdlog::warn("{} is not used: {}; it {}, and the algorithms of products are timed anew", path_,
               std::string(table.status().message()),
               is_aside ? "is now " + aside : "stays where it is");
  return ChoiceTable(machine_);
}

absl::Status ChoiceFile::Keep(const ChoiceTable& table) const {
  if (const auto kept = Parse(); kept.ok() && kept->Contains(table)) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(MakeDirectories(ParentDirectory(path_)));
  CONVENE_ASSIGN_OR_RETURN(const FileLock lock, Lock(path_));
  absl::StatusOr<ChoiceTable> all = Parse();
  if (!all.ok()) all = ChoiceTable(machine_);
  all->PutAll(table);
  return WriteFileAtomic(path_, all->Encode());
}

}  // namespace convene::worker
