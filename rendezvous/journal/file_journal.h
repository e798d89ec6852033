// The journal in a file, for a daemon that is the only one, or the one that has the lock.
//
// Under the state directory:
//   lock          held by the one daemon that may use the directory; names its process
//   journal       "convene-journal 1\n", then frames; each is on the disk before the next is begun
//   journal.new   a rewritten journal that is not yet in its place; removed when found
// Where daemons take turns (Options::is_shared), these in place of `journal`:
//   term          the number of the daemon that had the lock last
//   journal.TERM  the journal of that daemon. The next one claims a higher term before it reads
//                 this file, and writes one of its own. A daemon whose lock was lost (an NFS server
//                 gives it to another machine) finds the higher term at its next look or write:
//                 what it decided then leaves for nobody, whether the next daemon has read it or
//                 not. The same holds for a daemon in whose directory's place another one stands.
//
//   frame = length of the entry (4 bytes, little endian)
//         | XXH3-64 of the entry, seeded with its length + 1 (8 bytes, little endian)
//         | entry (a JournalEntry of proto/journal.proto)
//
// After a crash at most the last frame is not whole, because each frame is synced before the next
// is begun. This last frame is cut off: no agent has acted on it. A broken frame before a whole one
// was whole once: the file is damaged, and is refused.
//
// A disk that has no room for a rewritten journal leaves the journal long: it is extended on.
//
// When the disk takes no more (full, broken), Append fails: the journal keeps its content in
// memory, and each later Append first tries to write all of it anew. The file on the disk is old
// from then on. A daemon must not believe it (it would give an agent its old place, in an epoch
// that is over), so the file is emptied, which a full disk allows. A disk may refuse even that;
// then the file stays, and an agent that knows a higher epoch is not resumed (quorum/job.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/journal.pb.h"
#include "rendezvous/journal/incident_files.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/tenure.h"
#include "tools/base/clock.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {

class FileJournal final : public Journal {
 public:
  struct Options {
    std::string directory;  // created when it is not there, unless directory_number is given
    // The file is written anew when it is longer than this and than 4 times its content.
    int64_t rewrite_bytes = int64_t{8} << 20;
    absl::Time (*wall_now)() = &WallNow;  // how old a record is; tests have their own
    Clock* clock = &Clock::Real();
    // Other daemons take turns with this one: Opened has a tenure, which ends when a write or a
    // look finds that another daemon has taken over, or when all of them have had errors for
    // kMostBlind; then `on_lost` is called, on the thread that writes.
    bool is_shared = false;
    std::function<void()> on_lost = [] {};
    uint64_t directory_number = 0;  // MakeDirectory's: no other directory will do; 0: any
  };
  // A daemon whose file system has answered with errors for so long may have lost its lock to a
  // daemon that it cannot see. A file system that does not answer at all (a server that is being
  // started again) ends no tenure: it does that to the other daemons, too.
  static constexpr absl::Duration kMostBlind = absl::Seconds(10);

  // AlreadyExists when another daemon uses the directory (the text names its process); Unavailable
  // when another directory stands in its place; FailedPrecondition when a newer one has written it,
  // or daemons that take turns have and this one does not; DataLoss when the file is damaged (the
  // text names the offset); else the system's error. Each text says what to do.
  static absl::StatusOr<Opened> Open(const Options& options);
  // Creates the directory when it is not there, and returns its number in its file system (inode),
  // which stays when that is mounted again. The system's errors.
  static absl::StatusOr<uint64_t> MakeDirectory(const std::string& directory);

  // OK: the changes are on the disk. Aborted: another daemon has taken over, or another directory
  // stands in the place of this one. Otherwise the system's error; the journal's state is as
  // described above.
  absl::Status Append(const RecordChanges& changes) override;

  // Aborted as Append's; the system's errors. OK where no daemon takes turns with this one.
  absl::Status Look() override { return CheckTerm(); }

  bool is_current() const override { return is_current_; }
  IncidentShelf* incidents() override { return &incidents_; }

 private:
  explicit FileJournal(const Options& options)
      : options_(options), incidents_(options.directory + "/incidents") {}

  absl::Status CheckDirectory() const;
  std::string path() const;
  absl::Status Lock();
  // The term of the daemon that had the lock last; 0: no daemon takes turns here.
  absl::StatusOr<int64_t> LastTerm() const;
  // Makes this daemon the one that writes, and returns the file to begin with; "": there is none.
  absl::StatusOr<std::string> ClaimTerm();
  absl::Status RemoveEarlierTerms() const;
  // Aborted, or that it cannot be told.
  absl::Status ReadTerm() const;
  // Ends the tenure where it has to end.
  absl::Status CheckTerm();
  absl::StatusOr<int64_t> Load(const std::string& from);
  void Apply(v1::JournalEntry entry);
  absl::Status Extend(const std::string& entry);
  absl::Status Rewrite();
  // A whole file with what the journal has to hold, at FreshPath(); after an error nothing is
  // there.
  struct Fresh {
    UniqueFd file;  // at its end
    int64_t size_bytes = 0;
  };
  std::string FreshPath() const { return path() + ".new"; }
  absl::StatusOr<Fresh> WriteFresh() const;
  absl::StatusOr<Fresh> WriteTo(const std::string& fresh_path) const;
  absl::Status Install(Fresh fresh);
  void Empty();

  const Options options_;
  IncidentFiles incidents_;
  int64_t term_ = 0;                          // 0: not shared
  std::shared_ptr<Tenure> tenure_;            // null: not shared
  std::optional<MonotonicTime> blind_since_;  // the term could not be read since then
  UniqueFd lock_;
  UniqueFd file_;           // at its end
  int64_t size_bytes_ = 0;  // of the file
  bool is_current_ = true;
  std::map<std::string, v1::JobRecord> jobs_;  // what the file has to hold
  size_t live_bytes_ = 0;                      // of all of them, encoded
};

}  // namespace convene::rendezvous
