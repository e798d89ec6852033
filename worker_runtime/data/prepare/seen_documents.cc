#include "worker_runtime/data/prepare/seen_documents.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

constexpr int64_t kHashBytes = sizeof(absl::uint128);
constexpr size_t kBlockHashes = 1 << 16;

}  // namespace

absl::StatusOr<SeenDocuments> SeenDocuments::Create(const std::string& path) {
  SeenDocuments seen;
  seen.path_ = path;
  CONVENE_ASSIGN_OR_RETURN(seen.fd_, OpenFile(path, O_RDWR | O_CREAT | O_TRUNC));
  return seen;
}

absl::StatusOr<SeenDocuments> SeenDocuments::Resume(const std::string& path, int64_t count) {
  SeenDocuments seen;
  seen.path_ = path;
  CONVENE_ASSIGN_OR_RETURN(seen.fd_, OpenFile(path, O_RDWR));
  std::vector<absl::uint128> block(kBlockHashes);
  while (seen.count() < count) {
    const size_t bytes =
        std::min<int64_t>(kBlockHashes, count - seen.count()) * static_cast<size_t>(kHashBytes);
    const ssize_t n = pread(seen.fd_.get(), block.data(), bytes, seen.count() * kHashBytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    const int64_t before = seen.count();
    seen.hashes_.insert(block.begin(), block.begin() + n / kHashBytes);
    // A hash that stands there twice is none of ours.
    if (n < kHashBytes || seen.count() != before + n / kHashBytes) {
      return absl::DataLossError(absl::StrCat(path, " does not hold ", count, " hashes"));
    }
  }
  if (ftruncate(seen.fd_.get(), count * kHashBytes) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cut ", path));
  }
  if (lseek(seen.fd_.get(), 0, SEEK_END) < 0) {
    return ErrnoStatus(errno, absl::StrCat("seek ", path));
  }
  return seen;
}

bool SeenDocuments::Insert(absl::uint128 hash) {
  if (!hashes_.insert(hash).second) return false;
  const size_t size = unwritten_.size();
  unwritten_.resize(size + kHashBytes);
  std::memcpy(unwritten_.data() + size, &hash, kHashBytes);
  return true;
}

absl::Status SeenDocuments::Sync() {
  CONVENE_RETURN_IF_ERROR(WriteAll(fd_.get(), unwritten_, path_));
  unwritten_.clear();
  return SyncFile(fd_.get(), path_);
}

}  // namespace convene::worker
