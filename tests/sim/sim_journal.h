// The daemon's real journal on a disk that is slow, full at times, and loses what was not synced.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "rendezvous/journal/file_journal.h"
#include "rendezvous/quorum/job_record.h"
#include "tests/sim/simulation.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::sim {

// At most one at a time in a process: its wall clock is the simulation's. Not thread-safe.
class SimJournal {
 public:
  explicit SimJournal(Simulation* simulation) : simulation_(*simulation) {}

  // The records that a daemon that starts now finds.
  std::vector<rendezvous::JobRecord> Open();
  // The write is on the disk, or refused, when it ends; a crash before leaves any part of it.
  void BeginWrite(const rendezvous::RecordChanges& changes);
  void EndWrite();
  // The process, or its machine, is gone.
  void Crash();

  // From now on writes fail at some point, or no longer.
  void set_is_full(bool is_full) { is_full_ = is_full; }
  // Whether everything that had to be written is on the disk, as of the last EndWrite().
  bool is_current() const { return is_current_; }
  bool is_writing() const { return is_writing_; }

 private:
  std::string path() const { return directory_.File("journal"); }
  void LeaveTorn();

  Simulation& simulation_;
  const testing::TempDir directory_;
  std::unique_ptr<rendezvous::Journal> journal_;
  bool is_full_ = false;
  bool is_current_ = true;
  bool is_writing_ = false;
  std::string before_;  // the write that is under way: the file
};

}  // namespace convene::sim
