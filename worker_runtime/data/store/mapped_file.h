// A whole file, mapped for reading.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

// Read-only and thread-safe; copies share the mapping.
class MappedFile {
 public:
  // Errors as tools/base/files.h; InvalidArgument: not a regular file.
  static absl::StatusOr<MappedFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  const char* data() const { return data_.get(); }
  absl::string_view bytes() const { return {data_.get(), static_cast<size_t>(size_)}; }

  // XXH3-64 of the size and of pieces spread over the file: a few hundred KiB at most, so that it
  // stays quick for a large file. Tells different files apart, not files with a few changed bytes.
  uint64_t QuickHash() const;

 private:
  MappedFile() = default;

  std::string path_;
  int64_t size_ = 0;
  std::shared_ptr<const char> data_;  // unmaps when the last copy goes
};

}  // namespace convene::worker
