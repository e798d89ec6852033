// Answers that the daemon is asked for again and again, made once and kept for a moment.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "rendezvous/quorum/job_view.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

// One way of writing down the state of jobs. A text is given again for 20 times as long as it took
// to make, at most 5 s: however many ask however often, at most a twentieth of a core makes texts.
// For a job of a few nodes that is a fraction of a millisecond. Thread-safe; a caller that
// asks for a text that is being made waits for it.
class StatusBoard {
 public:
  using Text = std::shared_ptr<const std::string>;
  using Source = std::function<absl::StatusOr<std::vector<JobView>>(const std::string& job_id)>;
  using Writer = std::function<std::string(const std::vector<JobView>& views)>;

  // `clock` is the one by which making a text takes time.
  StatusBoard(Source source, Writer writer, Clock* clock)
      : source_(std::move(source)), writer_(std::move(writer)), clock_(clock) {}

  // Of one job, or of all for `job_id` "". A bad status is the source's.
  absl::StatusOr<Text> Get(const std::string& job_id);

 private:
  struct Entry {
    Text text;
    MonotonicTime good_until;
  };

  const Source source_;
  const Writer writer_;
  Clock* const clock_;

  Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by job id
};

}  // namespace convene::rendezvous
