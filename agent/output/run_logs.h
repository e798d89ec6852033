// One run's folder: the workers' log files and error files.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "agent/options.h"
#include "agent/output/console.h"
#include "agent/output/error_record.h"
#include "agent/output/line_prefix.h"
#include "agent/output/log_disk.h"
#include "agent/output/output_pump.h"
#include "tools/base/event_loop.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

//   <directory>/<run_id>_<rand>/attempt_<n>/<local_rank>/{stdout.log,stderr.log,error.json}
//                                          /filtered_{stdout,stderr}.log
//
// Without --log-dir, <directory> is a new one in $TMPDIR (or /tmp) that only this user can read;
// when no stream goes to a file it holds the error files only and is removed at the end, when these
// have been reported and handed on. Where the agent is killed before, the next one removes it.
//
// Lives on the thread of its loop. A log disk that hangs or is full costs log lines and at most
// kPatience of the caller's time, never a worker.
class RunLogs {
 public:
  static constexpr absl::Duration kPatience = absl::Milliseconds(300);

  struct Options {
    LogOptions log;
    std::string run_id;
    int local_world_size = 1;
    std::function<void()> on_relief;                     // as LogDisk's
    std::function<void(const std::string&)> on_say;      // a line for the person
    std::function<void(const std::string&)> on_trouble;  // likewise: lines are late, or lost
  };

  RunLogs(EventLoop& loop, Options options);
  ~RunLogs();

  // Makes the folders of an epoch, before its workers start. `attempt`: Assignment::attempt; the
  // folder's number is higher when an earlier epoch had that number. Errors, of the first epoch
  // only: InvalidArgument: --log-dir cannot be used; others: this machine has no thread to spare.
  absl::Status BeginEpoch(int attempt);
  // The folder of the log files; "" = no stream goes to a file.
  std::string directory() const { return writes_files_ ? run_directory_ : ""; }
  // Whether that folder is there, with those of the present epoch.
  bool has_folders() const { return writes_files_ && has_error_files_; }
  // The path in the present epoch; "" = none.
  std::string ErrorFile(int local_rank) const;
  StreamOutput OutputOf(OutputStream stream, const LineSource& source);

  // The errors that workers of the present epoch have recorded so far, by local rank.
  std::map<int, ErrorRecord> ReadErrors();
  // Copies a worker's record to `path`, the agent's own $TORCHELASTIC_ERROR_FILE, with its exit
  // code (minus the signal). Does nothing for a worker without a record.
  void HandOnError(int local_rank, int error_code, const std::string& path);

  // Writes all queued lines, as far as `patience` allows; false: not all were written. A run that
  // has error files and no other ones removes them, unless `keeps_errors`.
  bool Finish(absl::Duration patience, bool keeps_errors);
  // As LogDisk's.
  std::string Loss() const { return disk_ == nullptr ? "" : disk_->Loss(); }

 private:
  // Unavailable: the disk hangs.
  absl::Status MakeFolders(bool is_first);
  void CloseFiltered();
  std::string FolderOf(int local_rank) const;
  std::shared_ptr<LogDisk::File> OpenFile(const std::string& path) const;

  EventLoop& loop_;
  const Options options_;
  const bool writes_files_;
  const std::string own_directory_;  // made by us for this run, for want of --log-dir; "" = none
  const std::string run_directory_;
  UniqueFd claim_;  // of own_directory_, where that does not stay
  int attempt_ = -1;
  std::string attempt_directory_;
  bool has_error_files_ = false;  // their folders are there
  // Index: OutputStream. Of the present epoch; made with the first stream that is filtered.
  std::shared_ptr<LogDisk::File> filtered_[2];
  std::unique_ptr<LogDisk> disk_;
};

}  // namespace convene::agent
