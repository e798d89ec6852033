// Workers' lines for the page, which asks again and again for the lines after a mark.
//
//   agents ══ LogHub ─► LogFeed: the newest lines ─► /api/logs, any number of pages
//                       of one run or rank
//
// All pages that look at the same run and rank share one viewer of the hub. A feed that no page has
// read for 30 s ends at the next CloseUnread, and with it the agents' publishing. The daemon calls
// CloseUnread after each look of History: every 2 s, every 60 s at most on a large daemon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/logs/log_hub.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

struct FeedLine {
  int64_t number = 0;
  int64_t time_us = 0;  // since 1970, by the node's clock
  int rank = 0;
  bool is_stderr = false;
  std::string host;
  std::string text;  // UTF-8, at most 1,000 bytes
};

struct FeedAnswer {
  int64_t feed = 0;  // another number than before: the marks of before mean nothing
  std::vector<FeedLine> lines;
  int64_t next = 0;       // the mark for the next question
  int64_t skipped = 0;    // lines after the mark that are not kept any more
  int64_t lost = 0;       // lines that the agents lost, in all
  bool has_more = false;  // more lines are there: ask again at once
  std::string over;       // why no line follows; "" when lines may follow
};

// One viewer of the hub. Thread-safe.
class LogFeed final : public LogHub::Viewer {
 public:
  static constexpr size_t kMostLines = 5000;
  static constexpr size_t kMostBytes = 2 << 20;
  static constexpr size_t kMostAnswerLines = 1000;
  // While no page reads, the feed takes no more than this; the agents lose lines then.
  static constexpr size_t kMostUnreadBytes = 1 << 20;

  LogFeed(LogHub* hub, int64_t id) : hub_(hub), id_(id) {}

  // LogHub::Open's errors. Called once, before all else.
  absl::Status Open(const std::shared_ptr<LogFeed>& self, const std::string& run, int rank);
  // Ends the watch. The hub may still wake the feed afterwards, to no effect.
  void Close();
  // The lines after the mark `after`; 0: the newest.
  FeedAnswer Read(int64_t after);
  void Wake() override { Drain(); }
  // No line follows.
  bool is_over();

 private:
  void Drain();
  void Keep(const pb::LogBatch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  LogHub* const hub_;
  const int64_t id_;
  WatchId watch_;  // constant after Open

  Mutex mutex_;
  // The feed stopped taking: no Wake comes, and the next Read takes on.
  bool is_paused_ ABSL_GUARDED_BY(mutex_) = false;
  size_t unread_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<FeedLine> lines_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string over_ ABSL_GUARDED_BY(mutex_);
};

// The feeds that pages read. Thread-safe.
class LogFeeds {
 public:
  static constexpr size_t kMostFeeds = 16;
  static constexpr absl::Duration kUnread = absl::Seconds(30);

  // Both outlive it.
  LogFeeds(LogHub* hub, Clock* clock) : hub_(hub), clock_(clock) {}
  ~LogFeeds();
  LogFeeds(const LogFeeds&) = delete;
  LogFeeds& operator=(const LogFeeds&) = delete;

  struct Question {
    std::string run;
    int rank = -1;      // -1: all ranks
    int64_t feed = 0;   // FeedAnswer's; 0 at first
    int64_t after = 0;  // FeedAnswer's `next`; 0 at first
  };
  // A page that does not read the feed of a run that is over begins with that of the next run of
  // the name, where there is one. NotFound and FailedPrecondition as LogAgents::WatchLogs;
  // ResourceExhausted when too many people
  // look at logs already; Unavailable when the daemon stops.
  absl::StatusOr<FeedAnswer> Read(const Question& question);
  // Ends the feeds that nobody reads any more. Call it again and again: no timer of its own runs.
  void CloseUnread();

 private:
  struct Entry {
    std::shared_ptr<LogFeed> feed;
    int64_t id = 0;
    MonotonicTime read_at;
  };
  absl::StatusOr<Entry*> FindOrOpen(const Question& question) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Entry> Open(const Question& question) const;

  LogHub* const hub_;
  Clock* const clock_;
  Mutex mutex_;
  std::map<std::pair<std::string, int>, Entry> feeds_ ABSL_GUARDED_BY(mutex_);  // by run and rank
};

}  // namespace convene::rendezvous
