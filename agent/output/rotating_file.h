// One log file on the disk: appended to, rotated at its size cap, its old parts compressed.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

//   x.log ──cap reached, at a line's end──► x.log.1 ──CompressSome──► x.log.1.gz
//   x.log.1 ─► x.log.2 ─► ... ─► x.log.<max_old_files> ─► removed     (with .gz or still without)
//
// Every call blocks as long as the disk does. Not thread-safe.
class RotatingFile {
 public:
  // A line longer than this may go on in the next file.
  static constexpr int64_t kLongestLine = 64 * 1024;

  struct Options {
    std::string path;
    int64_t max_bytes = 0;  // 0: no cap. A line that was begun below the cap may end beyond it.
    int max_old_files = 5;
  };

  explicit RotatingFile(Options options) : options_(std::move(options)) {}
  ~RotatingFile();
  RotatingFile(const RotatingFile&) = delete;
  RotatingFile& operator=(const RotatingFile&) = delete;

  const std::string& path() const { return options_.path; }

  // Creates the file and its directory when they are not there. `*done`: the number of bytes
  // written, also after an error. It may be called again then.
  absl::Status Append(absl::string_view bytes, size_t* done);
  // Whether the file ends with a whole line.
  bool at_line_start() const { return open_line_bytes_ == 0; }

  bool has_uncompressed() const { return !uncompressed_.empty(); }
  // The next Append opens the file again.
  void CloseFile() { file_.Reset(); }

  // Compresses for a few milliseconds. An old file that cannot be compressed stays uncompressed.
  void CompressSome();

 private:
  // The part of `bytes` that belongs into the present file; empty: rotate first.
  absl::string_view PartForThisFile(absl::string_view bytes) const;
  absl::Status OpenFile();
  absl::Status Rotate();
  void CountWritten(absl::string_view bytes);
  std::string OldPath(int number, bool compressed) const;
  bool StartCompression();
  void EndCompression(bool succeeded);

  const Options options_;
  UniqueFd file_;
  int64_t size_ = 0;
  int64_t open_line_bytes_ = 0;  // since the last end of line

  std::deque<int> uncompressed_;  // numbers of old files, oldest first
  UniqueFd compress_from_;        // of uncompressed_.front(); not valid: not begun
  gzFile compress_to_ = nullptr;
};

}  // namespace convene::agent
