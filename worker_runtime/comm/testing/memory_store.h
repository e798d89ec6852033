// A store that threads of one process share, in place of a server.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"

namespace convene::worker::testing {

// Thread-safe, unlike the interface it implements: one object serves all threads.
class MemoryStore final : public rendezvous::StoreClient {
 public:
  absl::Status Set(const std::string& key, const std::string& value) override {
    MutexLock lock(&mutex_);
    values_[key] = value;
    changed_.SignalAll();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    const MonotonicTime deadline = Clock::Real().Now() + timeout;
    MutexLock lock(&mutex_);
    while (values_.count(key) == 0) {
      const absl::Duration left = deadline - Clock::Real().Now();
      if (left <= absl::ZeroDuration()) {
        return absl::DeadlineExceededError(absl::StrCat("key \"", key, "\" did not appear"));
      }
      changed_.WaitFor(&mutex_, left);
    }
    return values_[key];
  }

  absl::StatusOr<int64_t> Add(const std::string& key, int64_t delta) override {
    MutexLock lock(&mutex_);
    int64_t value = 0;
    if (values_.count(key) != 0 && !absl::SimpleAtoi(values_[key], &value)) {
      return absl::InvalidArgumentError(absl::StrCat("key \"", key, "\" is not a number"));
    }
    values_[key] = absl::StrCat(value + delta);
    changed_.SignalAll();
    return value + delta;
  }

  absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    const MonotonicTime deadline = Clock::Real().Now() + timeout;
    for (const std::string& key : keys) {
      const absl::Status found = Get(key, deadline - Clock::Real().Now()).status();
      if (!found.ok()) return found;
    }
    return absl::OkStatus();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace convene::worker::testing
