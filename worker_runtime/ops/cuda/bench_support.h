// For the benchmarks of ops on a GPU: the time of one launch, figures, and the program's frame.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/event_chain.h"
#include "worker_runtime/device/cuda/queue.h"

namespace convene::worker::cuda {

// The time of one call of `run(i)` in the queue: the median of 25 samples, by CUDA events, after
// calls that are not counted. A sample is as many calls as fill 2 ms (at most 200), beside which an
// event costs nothing. i counts all calls: for buffers that take turns. Errors: the queue's,
// DeadlineExceeded.
inline absl::StatusOr<double> MedianMilliseconds(Queue& queue,
                                                 const std::function<void(int)>& run) {
  constexpr int kWarmUpCalls = 3;
  constexpr int kSamples = 25;
  constexpr float kSampleMilliseconds = 2;
  constexpr float kCallsMax = 200;
  int calls_done = 0;
  const auto time = [&](int samples, int calls) -> absl::StatusOr<std::vector<float>> {
    EventChain events(queue);
    CONVENE_RETURN_IF_ERROR(events.Record());
    for (int sample = 0; sample < samples; ++sample) {
      for (int call = 0; call < calls; ++call) run(calls_done++);
      CONVENE_RETURN_IF_ERROR(events.Record());
    }
    CONVENE_ASSIGN_OR_RETURN(std::vector<float> times, events.Milliseconds(absl::Minutes(2)));
    CONVENE_RETURN_IF_ERROR(queue.status());
    return times;
  };
  CONVENE_ASSIGN_OR_RETURN(const std::vector<float> first, time(kWarmUpCalls + 1, 1));
  const float wanted = kSampleMilliseconds / std::max(first.back(), 1e-6f);
  const int calls = static_cast<int>(std::clamp(wanted, 1.0f, kCallsMax));
  CONVENE_ASSIGN_OR_RETURN(std::vector<float> samples, time(kSamples, calls));
  std::nth_element(samples.begin(), samples.begin() + kSamples / 2, samples.end());
  return samples[kSamples / 2] / calls;
}

// Lines for people as they come; at the end one JSON object a figure.
class Figures {
 public:
  // `fields`: ", \"tflops\": 1.5" and so on.
  void Add(const std::string& name, const std::string& fields) {
    lines_.push_back(absl::StrCat("{\"name\": \"", name, "\"", fields, "}"));
  }
  // To `path`, or to stdout when it is null.
  absl::Status Write(const char* path) const {
    std::FILE* const file = path == nullptr ? stdout : std::fopen(path, "w");
    if (file == nullptr) return absl::UnknownError(absl::StrCat("cannot write ", path));
    for (const std::string& line : lines_) std::fprintf(file, "%s\n", line.c_str());
    const bool is_written = std::fflush(file) == 0;
    if (path != nullptr) std::fclose(file);
    return is_written ? absl::OkStatus() : absl::UnknownError("cannot write the figures");
  }

 private:
  std::vector<std::string> lines_;
};

// The main function of NAME [--json FILE], which `run` makes the figures of.
inline int BenchMain(int argc, char** argv, const char* name,
                     const std::function<absl::Status(Figures&)>& run) {
  const bool has_json = argc == 3 && std::strcmp(argv[1], "--json") == 0;
  if (argc != 1 && !has_json) {
    std::fprintf(stderr, "usage: %s [--json FILE]\n", name);
    return 64;
  }
  Figures figures;
  absl::Status status = run(figures);
  // Also after an error: the figures made before it count.
  status.Update(figures.Write(has_json ? argv[2] : nullptr));
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", name, status.ToString().c_str());
  return 1;
}

}  // namespace convene::worker::cuda
