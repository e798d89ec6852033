// The file in which the processes of a node keep the choices of one kind of GPU.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker_runtime/tuning/choice_table.h"

namespace convene::worker {

// Processes and threads may use the same file at the same time; an object belongs to one thread.
class ChoiceFile {
 public:
  // `directory`/products-HASH, with the hash of `machine` (as ChoiceTable has it). Nothing is made
  // yet.
  ChoiceFile(const std::string& directory, std::string machine);

  const std::string& path() const { return path_; }

  // The choices in the file; none where there is no file, or none that can be read. A file that
  // ChoiceTable::Decode refuses is renamed to "PATH.refused", in the place of an earlier one, with
  // a line in the log.
  ChoiceTable Read() const;

  // Afterwards the file holds the choices of `table`, and its own of other products. It holds its
  // old content or the new one at any time. Nothing is written where it holds them already. Errors:
  // those of the files; DeadlineExceeded when another process has held the file's lock for 10 s.
  absl::Status Keep(const ChoiceTable& table) const;

 private:
  // As Decode; an empty table where there is no file.
  absl::StatusOr<ChoiceTable> Parse() const;

  std::string machine_;
  std::string path_;
};

}  // namespace convene::worker
