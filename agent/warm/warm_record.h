// The record of a script's first imports, in a file for later runs of the same command.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/mutex.h"
#include "tools/base/thread.h"

namespace convene::agent {

// Variables by name, with a hash of the value: a file has no secrets.
using VariableMarks = std::map<std::string, std::string>;

struct WarmRecord {
  VariableMarks variables;
  std::set<std::string> left_out;  // modules that no parent can import
  // warm.py's own part; "": a first start cannot use it, and no run is to try again.
  std::string modules;
};

// ---- PURE ----

// The variables of `environment` ("NAME=value" strings) that may choose what a script imports: all
// but `places`, those of Convene and of schedulers, and those of a shell's session.
VariableMarks MarksOf(const std::vector<std::string>& environment,
                      const std::set<std::string>& places);

// The first variable that differs; "": none does.
std::string ChangedVariable(const VariableMarks& before, const VariableMarks& now);

std::string EncodeWarmRecord(const WarmRecord& record);

// DataLoss: torn, or of another version of Convene.
absl::StatusOr<WarmRecord> DecodeWarmRecord(absl::string_view text);

// ---- edges ----

// The file of one command. Later runs find it by program, arguments and current directory.
class WarmRecordFile {
 public:
  static constexpr size_t kMostBytes = 4 << 20;  // of a file
  static constexpr size_t kMostFiles = 32;       // in the folder

  // `cache`: the folder of all of Convene's caches.
  WarmRecordFile(const std::string& cache, const std::string& program,
                 const std::vector<std::string>& arguments, const std::string& directory);
  // Waits for the write that runs, however long it takes (IsWritten).
  ~WarmRecordFile();
  WarmRecordFile(const WarmRecordFile&) = delete;
  WarmRecordFile& operator=(const WarmRecordFile&) = delete;

  const std::string& path() const { return path_; }

  // Whether all is written, or becomes so within `limit`.
  bool IsWritten(absl::Duration limit) ABSL_LOCKS_EXCLUDED(mutex_);
  // Before Load. PermissionDenied: the folder is another user's, or others may write it. Other
  // errors are the system's.
  absl::Status MakeFolder() const;
  // NotFound: there is none. PermissionDenied: the file is another user's, or others may write it.
  // DataLoss: as DecodeWarmRecord. Other errors are the system's.
  absl::StatusOr<WarmRecord> Load() const;
  // Writes `record` in a thread of its own, because the file system may hang; the newest one counts
  // where several wait. A record that cannot be written is none.
  void Keep(const WarmRecord& record);
  // Removes the file, as Keep writes it.
  void Drop() { Take(""); }

 private:
  void Take(std::string text) ABSL_LOCKS_EXCLUDED(mutex_);  // "": no file
  void WriteThem() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Write(const std::string& text) const;

  const std::string folder_;
  const std::string path_;
  Thread writer_;
  Mutex mutex_;
  CondVar written_;
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<std::string> next_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::agent
