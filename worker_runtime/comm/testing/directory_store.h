// A store in a directory, for processes of one machine: benchmarks and tests of communication
// alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "tools/base/clock.h"
#include "tools/base/files.h"

namespace convene::worker {

class DirectoryStore final : public rendezvous::StoreClient {
 public:
  explicit DirectoryStore(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Set(const std::string& key, const std::string& value) override {
    return WriteFileAtomic(PathOf(key), value);
  }
  absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) override {
    const MonotonicTime deadline = Clock::Real().Now() + timeout;
    while (true) {
      absl::StatusOr<std::string> value = ReadFile(PathOf(key));
      if (value.ok()) return value;
      if (Clock::Real().Now() >= deadline) {
        return absl::DeadlineExceededError("key \"" + key + "\" did not appear");
      }
      Clock::Real().SleepFor(absl::Milliseconds(1));
    }
  }
  absl::StatusOr<int64_t> Add(const std::string&, int64_t) override {
    return absl::UnimplementedError("bootstrap does not count");
  }
  absl::Status Wait(const std::vector<std::string>&, absl::Duration) override {
    return absl::UnimplementedError("bootstrap does not wait without reading");
  }

 private:
  std::string PathOf(std::string key) const {
    std::replace(key.begin(), key.end(), '/', '_');
    return directory_ + "/" + key;
  }
  const std::string directory_;
};

}  // namespace convene::worker
