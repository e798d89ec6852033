// The last lines of all workers of this node, for viewers (`convene logs`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/log_lines.h"
#include "tools/base/mutex.h"

namespace convene::agent {

// The last lines, and readers that follow them. The writer never waits for them: a reader that is
// too slow loses the oldest lines and is told how many. Thread-safe.
class RecentLines {
 public:
  // The text of all lines, with rendezvous::kLineOverhead for each line.
  static constexpr size_t kBytes = 1 << 20;

  // The place of one reader; its fields belong to RecentLines.
  class Reader {
   private:
    friend class RecentLines;
    rendezvous::LogFilter filter;
    bool follow = false;
    uint64_t history_end = 0;  // number of the first line that came after it was opened
    uint64_t line = 0;         // number of the next line
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
  void Add(absl::Time time, int rank, int local_rank, bool is_stderr, absl::string_view text);
  // No line will follow: readers end when they have the rest.
  void Close();

  // A reader of lines that the filter lets pass. With `next_line` > 0 it begins at the line of that
  // number, and lines from there on that are no longer kept count as lost. Else it begins with the
  // last `tail` lines (-1: with all lines that are kept). With `follow` it also gets later lines.
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
  static size_t CostOf(const rendezvous::LogLine& line) {
    return rendezvous::kLineOverhead + line.text.size();
  }
  static bool LetsPass(const rendezvous::LogFilter& filter, const rendezvous::LogLine& line) {
    return filter.LetsPass(line.rank, line.local_rank, line.is_stderr);
  }
  uint64_t end_line() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return first_line_ + lines_.size();
  }
  void DropFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves the reader to its first line.
  void Place(Reader& reader, int tail, uint64_t next_line) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fill(Reader& reader, rendezvous::LogBatch* batch) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t most_bytes_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<rendezvous::LogLine> lines_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;         // their costs
  uint64_t first_line_ ABSL_GUARDED_BY(mutex_) = 1;  // number of lines_.front()
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<Reader>> readers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::agent
