// The facts on a rank's progress page beside step and phase: how long the steps computed, waited
// and loaded, tokens and loss.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "worker_runtime/device/waited.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/session/progress_writer.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker {

// The writer of the page at `path`. A run goes on without its page, but then the agent cannot see
// that it hangs: a warning says so.
std::unique_ptr<ProgressWriter> OpenProgress(const std::string& path);

// Used by the thread that makes the steps. The host does not know whether a GPU computes or waits:
// there both times stay 0.
class StepFacts {
 public:
  StepFacts(const Layout& layout, int rank, bool host_computes, ProgressWriter& progress);

  // A step begins.
  void Begin();
  // Loads samples for a step. Returns load()'s result.
  template <typename Load>
  auto Data(const Load& load) {
    const OwnTime own;
    auto loaded = load();
    progress_.facts().data += own.Get();
    return loaded;
  }
  // So long this rank has waited for samples since the last call.
  absl::Duration TakeDataTime() {
    return progress_.facts().data - std::exchange(taken_, progress_.facts().data);
  }
  // The step is done. `tokens`: of the job, from its first step on.
  void Done(const StepResult& result, int64_t tokens);

 private:
  const int ranks_;
  const bool host_computes_;
  ProgressWriter& progress_;
  OwnTime own_;            // since Begin
  absl::Duration waited_;  // by Begin
  absl::Duration data_;    // the same
  absl::Duration taken_;   // by the last TakeDataTime
};

}  // namespace convene::worker
