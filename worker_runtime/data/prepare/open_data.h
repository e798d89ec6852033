// From what `--data` names to open token files: those of any known format as they are, text and
// JSON lines prepared.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker_runtime/data/blend.h"
#include "worker_runtime/data/prepare/prepare.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker {

// Each text is a ParseBlend() text; one that is the name of a file is that file, whatever
// characters it has. InvalidArgument: no text, shares for some only, else as ParseBlend.
absl::StatusOr<std::vector<WeightedPath>> ParseDataPaths(const std::vector<std::string>& texts);

struct OpenedData {
  std::vector<std::string> patterns;  // as the user wrote them
  std::optional<double> weight;       // absent: by its tokens, so that all are read equally often
  std::shared_ptr<const TokenSource> tokens;
};

// Without weights all text and JSON lines together become one prepared file, in the given order, as
// one source; each token file is a source of its own, once, however many names of it are given.
// With weights each path is a source. `options.input.patterns` is not looked at, the rest says how
// to prepare; `options.tokenizer` may be null where nothing is to be prepared: FailedPrecondition
// otherwise.
//
// InvalidArgument: a glob for token files and others, a weight for several token files, or two
// weights for one. Else as OpenTokenSource, PrepareTokenFile and CheckSameVocabulary.
absl::StatusOr<std::vector<OpenedData>> OpenData(const std::vector<WeightedPath>& paths,
                                                 const PrepareOptions& options,
                                                 const TokenCache& cache,
                                                 const PrepareProgress& progress);

}  // namespace convene::worker
