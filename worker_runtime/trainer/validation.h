// The losses of held-out samples: of the held-out part of the training data, and of each set of
// --validation-data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/trainer/batches.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/reporter.h"
#include "worker_runtime/trainer/run_data.h"

namespace convene::worker {

// How a rank loads its samples, those of a step and of a validation.
BatchLoader::Options LoaderOptionsOf(const TrainOptions& options, const Layout& layout, int rank);

// Not thread-safe.
class Validation {
 public:
  // `data` is borrowed.
  Validation(const TrainOptions& options, const Layout& layout, int rank, const RunData& data);

  // Whether no sample is held out: then there is nothing to run.
  bool is_empty() const { return sets_.empty(); }

  // Whether the reporter HasValidation of each set.
  bool IsTold(int64_t step, const Reporter& reporter) const;

  // BatchLoader's, of the held-out part of the training data.
  void SetReferences(absl::Span<const double> references);

  // All ranks call it. Tells `reporter`, which rank 0 alone has (else null), the loss of each set
  // after `step` steps. Returns whether a rank wants to stop; then sets may be left out. Errors:
  // the data's, the engine's, the reporter's.
  absl::StatusOr<bool> Run(int64_t step, Engine& engine, Reporter* reporter);

 private:
  struct Set {
    std::optional<std::string> name;  // ValidationMetrics::validation_set
    BatchLoader loader;
    int64_t samples = 0;           // of the held-out ones
    std::optional<int64_t> bytes;  // 0: the data does not say; nullopt: not asked yet
  };

  absl::StatusOr<bool> RunOn(Set& set, int64_t step, Engine& engine, Reporter* reporter);
  absl::Status Report(Set& set, int64_t step, const ForwardResult& sum, int64_t counted_targets,
                      Reporter& reporter);

  const int64_t global_batch_size_;
  const bool has_pairs_;
  std::vector<Set> sets_;
};

}  // namespace convene::worker
