// For the benchmarks of ops on a GPU: the time of one launch, and the program's frame.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/device/cuda/event_chain.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/ops/cuda/testing/figures.h"

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

// The main function of NAME [--json FILE] [--only BEGINNING], which `run` makes the figures of.
inline int BenchMain(int argc, char** argv, const char* name,
                     const std::function<absl::Status(Figures&)>& run) {
  const char* json = nullptr;
  const char* only = "";
  for (int i = 1; i < argc; i += 2) {
    const bool has_value = i + 1 < argc;
    if (has_value && std::strcmp(argv[i], "--json") == 0) {
      json = argv[i + 1];
    } else if (has_value && std::strcmp(argv[i], "--only") == 0) {
      only = argv[i + 1];
    } else {
      std::fprintf(stderr, "usage: %s [--json FILE] [--only BEGINNING]\n", name);
      return 64;
    }
  }
  Figures figures(json, only);
  absl::Status status = figures.status();
  if (status.ok()) status = run(figures);
  status.Update(figures.status());
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", name, status.ToString().c_str());
  return 1;
}

}  // namespace convene::worker::cuda
