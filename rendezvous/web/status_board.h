// Texts that clients ask for again and again, made once and kept for a moment.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/quorum/job_view.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"

namespace convene::rendezvous {

// One way of writing down the state of jobs. A text is given again for 20 times as long as it took
// to make, at most 5 s, and for `least_reuse`: so making texts takes at most a twentieth of a core,
// however many clients ask. For a job of a few nodes that is a fraction of a millisecond.
// Thread-safe; a caller that asks for a text that is being made waits for it.
class StatusBoard {
 public:
  using Text = std::shared_ptr<const std::string>;
  using Source = std::function<absl::StatusOr<std::vector<JobView>>(const std::string& job_id)>;
  using Writer = std::function<std::string(const std::vector<JobView>& views)>;

  // `clock` measures the time that making a text takes.
  StatusBoard(Source source, Writer writer, Clock* clock,
              absl::Duration least_reuse = absl::ZeroDuration())
      : source_(std::move(source)),
        writer_(std::move(writer)),
        clock_(clock),
        least_reuse_(least_reuse) {}

  // The text of one job, or of all for `job_id` "". Errors: the source's.
  absl::StatusOr<Text> Get(const std::string& job_id);

 private:
  struct Entry {
    Text text;
    MonotonicTime good_until;
  };

  const Source source_;
  const Writer writer_;
  Clock* const clock_;
  const absl::Duration least_reuse_;

  Mutex mutex_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by job id
};

}  // namespace convene::rendezvous
