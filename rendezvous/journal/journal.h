// The daemon's memory: its entries are decisions, and outlive the daemon.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "rendezvous/journal/incident_shelf.h"
#include "rendezvous/journal/tenure.h"
#include "rendezvous/quorum/job_record.h"

namespace convene::rendezvous {

// Not thread-safe: one thread writes.
class Journal {
 public:
  struct Opened {
    std::unique_ptr<Journal> journal;
    std::vector<JobRecord> jobs;     // as last recorded, by id
    int64_t cut_bytes = 0;           // of a file's last frame that was not whole
    std::shared_ptr<Tenure> tenure;  // none: no other daemon can use this memory meanwhile
  };

  virtual ~Journal() = default;

  // OK: the changes, and all earlier ones, are stored. Otherwise the journal keeps them in memory,
  // and each later Append tries to store them too.
  virtual absl::Status Append(const RecordChanges& changes) = 0;

  // False: a daemon that is started now would remember nothing, or an old state. True again after
  // the next Append that succeeds.
  virtual bool is_current() const = 0;

  // Whether another daemon has taken over, which ends the tenure. Call it every few seconds where a
  // tenure does not end by itself: a daemon that decides nothing does not write either. Errors: it
  // does, or this cannot be told now; the text says which.
  virtual absl::Status Look() { return absl::OkStatus(); }

  // The reports of the jobs' incidents, for the same thread.
  virtual IncidentShelf* incidents() = 0;
};

}  // namespace convene::rendezvous
