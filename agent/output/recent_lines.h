// The last lines of all workers of this node, for viewers (`convene logs`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/log_lines.h"
#include "tools/base/mutex.h"

namespace convene::agent {

// A ring of bytes, and readers that follow it. The writer never waits for them: a reader that is
// too slow loses the oldest lines and is told how many. Thread-safe.
class RecentLines {
 public:
  static constexpr size_t kBytes = 1 << 20;

  // The place of one reader; its fields belong to the ring.
  class Reader {
   private:
    friend class RecentLines;
    rendezvous::LogFilter filter;
    bool follow = false;
    uint64_t history_end = 0;  // number of the first line that came after it was opened
    uint64_t position = 0;     // of the next line, in bytes since the ring began
    uint64_t line = 0;         // its number
    uint64_t lost = 0;         // lines not told yet
    bool may_have_more = true;
    bool has_caught_up = false;  // and said so
    bool is_stopped = false;
  };

  // `bytes`: at least kLeastBytes.
  explicit RecentLines(size_t bytes = kBytes);
  RecentLines(const RecentLines&) = delete;
  RecentLines& operator=(const RecentLines&) = delete;

  static constexpr size_t kLeastBytes = 2 * rendezvous::kLongestPublishedLine;

  // A line longer than rendezvous::kLongestPublishedLine is cut. After Close this does nothing.
  void Add(absl::Time time, int rank, int local_rank, bool is_stderr, absl::string_view line);
  // No line will follow: readers end when they have the rest.
  void Close();

  // A reader of the last `tail` lines that the filter lets pass (-1: all lines of the ring; with
  // `next_line` > 0: from that line on instead), and with `follow` of later lines. Lines that were
  // asked for by number and are older than the ring's first count as lost.
  std::shared_ptr<Reader> Open(const rendezvous::LogFilter& filter, int tail, bool follow,
                               uint64_t next_line);
  // Waits for news; then `lines`, `lost_lines`, `next_line` and `caught_up` of `batch` are set. The
  // first call does not wait. False: nothing follows. One call at a time for a reader.
  bool Next(Reader& reader, rendezvous::LogBatch* batch);
  // Makes Next return false, also a Next that is waiting.
  void Stop(Reader& reader);
  // REQUIRES: no Next runs.
  void Forget(const std::shared_ptr<Reader>& reader);

 private:
  // Stands before each line's text in the ring.
  struct Header {
    int64_t time_us;
    int32_t rank;
    int32_t local_rank;
    uint32_t length;
    bool is_stderr;
    bool is_cut;
  };

  void Write(uint64_t position, const void* from, size_t size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Read(uint64_t position, void* to, size_t size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Header HeaderAt(uint64_t position) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool LetsPass(const rendezvous::LogFilter& filter, const Header& header) {
    return filter.LetsPass(header.rank, header.local_rank, header.is_stderr);
  }
  void DropFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves the reader to its first line.
  void Place(Reader& reader, int tail, uint64_t next_line) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fill(Reader& reader, rendezvous::LogBatch* batch) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t size_;
  Mutex mutex_;
  CondVar changed_;
  const std::unique_ptr<char[]> bytes_;         // pages that no line came to are not there
  uint64_t begin_ ABSL_GUARDED_BY(mutex_) = 0;  // of the first line, in bytes since the beginning
  uint64_t end_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t first_line_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_line_ ABSL_GUARDED_BY(mutex_) = 1;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Reader>> readers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::agent
