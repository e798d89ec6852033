#include "worker_runtime/data/store/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {
namespace {

constexpr int64_t kPieceBytes = 4096;
constexpr int64_t kPieces = 64;

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(path + " is not a file");
  MappedFile file;
  file.path_ = path;
  file.size_ = info.st_size;
  if (file.size_ == 0) return file;
  const size_t bytes = info.st_size;
  void* mapping = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (mapping == MAP_FAILED) return ErrnoStatus(errno, absl::StrCat("map ", path));
  file.data_ = std::shared_ptr<const char>(
      static_cast<const char*>(mapping),
      [bytes](const char* address) { munmap(const_cast<char*>(address), bytes); });
  return file;
}

uint64_t MappedFile::QuickHash() const {
  uint64_t hash = XXH3_64bits(&size_, sizeof(size_));
  const int64_t last = std::max<int64_t>(0, size_ - kPieceBytes);
  for (int64_t piece = 0; piece < kPieces; ++piece) {
    const int64_t begin =
        last / (kPieces - 1) * piece + last % (kPieces - 1) * piece / (kPieces - 1);
    hash = XXH3_64bits_withSeed(data() + begin, std::min(kPieceBytes, size_ - begin), hash);
    if (last == 0) break;
  }
  return hash;
}

}  // namespace convene::worker
