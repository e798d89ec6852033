// The agent's end of a worker's progress page (worker_runtime/contract/progress_page.h).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "agent/core/hang_detector.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// A file that only this user can open. It is locked (flock) as long as the page lives: a file whose
// lock is free was left by an agent that was killed.
class ProgressPage {
 public:
  // A folder in memory (/dev/shm) where there is one, so that no disk can make a worker wait; else
  // /tmp.
  static std::string Directory();
  // Removes the files of this user's killed agents in `directory`; looks at a bounded number of
  // files.
  static void SweepDead(const std::string& directory);
  // Errors of mkostemp and write: ResourceExhausted when the directory is full.
  static absl::StatusOr<std::unique_ptr<ProgressPage>> Create(const std::string& directory);
  ~ProgressPage();
  ProgressPage(const ProgressPage&) = delete;
  ProgressPage& operator=(const ProgressPage&) = delete;

  const std::string& path() const { return path_; }  // CONVENE_PROGRESS

  // The worker's reading; none when it has told nothing yet, is writing just now, or the bytes make
  // no sense. The worker may have done anything to its file, so a valid step is between 0 and 2^53
  // as every other count is, and a valid phase is 1 to 23 printable characters.
  std::optional<WorkerReading> Read() const;

 private:
  ProgressPage(std::string path, UniqueFd file) : path_(std::move(path)), file_(std::move(file)) {}

  const std::string path_;
  const UniqueFd file_;
};

}  // namespace convene::agent
