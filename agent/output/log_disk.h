// The one thread that touches the log disk, so that a disk that hangs, or is full, stops no worker.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agent/output/rotating_file.h"
#include "tools/base/event_loop.h"
#include "tools/base/loop_timer.h"
#include "tools/base/thread.h"

namespace convene::agent {

// Lives on the thread of its loop; no call waits for the disk longer than it is told to.
//
// A file's queue:
//
//   Append ──► up to kFull ──► MustWait: its writer is to pause; on_relief tells when to go on
//              up to kMost ──► (writers that cannot pause; or all, when the disk hangs)
//              beyond       ─► whole lines are dropped and counted
//
// The disk hangs when one call to it takes longer than `hangs_after`: then no writer waits any
// more. Where lines were dropped, or could not be written, a line in the file says how much is
// missing.
class LogDisk {
 public:
  static constexpr size_t kFull = 1 << 20;  // bytes
  static constexpr size_t kMost = 2 * kFull;
  static constexpr size_t kMostInAll = 64 * kFull;  // of all files together

  class File;

  struct Options {
    std::function<void()> on_relief;                     // MustWait may have turned false
    std::function<void(const std::string&)> on_trouble;  // for the person: an error, or its end
    absl::Duration hangs_after = absl::Seconds(1);
  };

  // Errors: no descriptors or threads are left.
  static absl::StatusOr<std::unique_ptr<LogDisk>> Start(EventLoop& loop, Options options);
  // Gives up lines that are not written yet; call Finish first.
  ~LogDisk();
  LogDisk(const LogDisk&) = delete;
  LogDisk& operator=(const LogDisk&) = delete;

  // Nothing is created before the first Append. Several writers of whole lines may share a file.
  std::shared_ptr<File> Open(RotatingFile::Options options);
  void Append(const std::shared_ptr<File>& file, absl::string_view bytes);
  bool MustWait(const File& file);
  // No Append follows.
  void Close(const std::shared_ptr<File>& file);

  // Runs `task` on the disk's thread, after its present work and before queued work. False: it has
  // not run within `patience`, or the disk hangs; it may run yet, so it owns what it uses.
  bool Do(std::function<void()> task, absl::Duration patience);

  // Writes queued lines and compresses old files, within `patience`. False: the disk hangs, some
  // lines are not in their files. No other function but Loss may be called afterwards.
  bool Finish(absl::Duration patience);
  // The lines that no file got, for the last words; "": all files got all.
  std::string Loss() const;

 private:
  struct Shared;  // what both threads use; lives as long as either

  explicit LogDisk(EventLoop& loop, Options options);

  void OnNews();
  void OnTimer();

  EventLoop& loop_;
  const Options options_;
  const std::shared_ptr<Shared> shared_;
  LoopTimer timer_;  // runs while a writer waits: the disk may hang
  bool timer_runs_ = false;
  bool told_of_hang_ = false;
  Thread thread_;
};

}  // namespace convene::agent
