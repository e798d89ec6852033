// The hashes of all documents so far, in memory and in a file from which a later process goes on.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {

// 16 bytes a document in the file; 20 to 40 in memory, 60 while the table grows. Errors: those of
// tools/base/files.h. Not thread-safe.
class SeenDocuments {
 public:
  // Replaces `path`.
  static absl::StatusOr<SeenDocuments> Create(const std::string& path);
  // Goes on with the first `count` hashes of the file. DataLoss: it has fewer.
  static absl::StatusOr<SeenDocuments> Resume(const std::string& path, int64_t count);

  // False: the hash was there already.
  bool Insert(absl::uint128 hash);

  int64_t count() const { return static_cast<int64_t>(hashes_.size()); }

  // All hashes are on the disk when it returns.
  absl::Status Sync();

 private:
  SeenDocuments() = default;

  std::string path_;
  UniqueFd fd_;
  absl::flat_hash_set<absl::uint128> hashes_;
  std::string unwritten_;
};

}  // namespace convene::worker
