// PreferenceLoss's references: the first weights of a training of pairs of answers give each pair a
// number, which is computed once and kept beside the checkpoints, because a training that goes on
// has other weights.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/data/dataset.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/trainer/batches.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/first_weights.h"

namespace convene::worker {

// PURE. `key`: whose references these are, and `mark`: of which files; both without a line's end.
std::string ReferencesText(absl::string_view key, absl::string_view mark,
                           absl::Span<const double> references);
// PURE. NotFound: of another key or mark, or damaged; says which. `mark` "": any will do.
absl::StatusOr<std::vector<double>> ParseReferences(absl::string_view bytes, absl::string_view key,
                                                    absl::string_view mark);

struct KeptReferences {
  std::string path;  // of the file, which rank 0 alone reads and writes; "": nothing is kept
  std::string key;
  std::string mark;
};
// Beside the checkpoints, by the data and the first weights: the key has the paths of these, the
// mark the names, sizes and times of their files. "" where the files are gone: the references that
// were made of them are then all that is left.
KeptReferences KeptReferencesOf(const TrainOptions& options, const FirstWeights& first,
                                const Dataset& training);

// Of each row of the loader's data, by its number (Dataset::RowNumber); on all ranks the same. From
// the file, or where that is none with this key, by the weights that `make_weights` fills in; then
// they are kept. All ranks call it. `tell` hears how far it is: of 1. Errors: those of
// `make_weights`, of the data, the engine and the collective; the file system's, where they cannot
// be kept.
absl::StatusOr<std::vector<double>> FindReferences(const KeptReferences& kept, BatchLoader& loader,
                                                   Engine& engine,
                                                   absl::FunctionRef<absl::Status()> make_weights,
                                                   absl::FunctionRef<void(double done)> tell,
                                                   Collective& world, Stream& stream);

}  // namespace convene::worker
