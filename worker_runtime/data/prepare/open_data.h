// From what `--data` names to open token files: those of any known format as they are, text and
// JSON lines prepared.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/prepare/prepare.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker {

struct DataSpec {
  std::string pattern;           // a token file, a text or JSON lines file, or a glob of such
  std::optional<double> weight;  // above 0
  friend bool operator==(const DataSpec&, const DataSpec&) = default;
};

// Each text is one or more specs "path[:weight]" with commas between: {"a.bin:0.7,b.jsonl:0.3"}. A
// comma within braces belongs to a glob; a text that is the name of a file is that file, whatever
// characters it has. PURE but for that look. InvalidArgument: none at all, a weight that is no
// number above 0, weights for some only.
absl::StatusOr<std::vector<DataSpec>> ParseDataSpecs(const std::vector<std::string>& texts);

struct OpenedData {
  std::vector<std::string> patterns;  // as the user wrote them
  std::optional<double> weight;       // absent: by its tokens, so that all are read equally often
  std::shared_ptr<const TokenSource> tokens;
};

// Without weights all text and JSON lines together become one prepared file, in the given order, as
// one source; each token file is a source of its own. With weights each spec is a source.
// `options.input.patterns` is not looked at, the rest says how to prepare; `options.tokenizer` may
// be null where nothing is to be prepared: FailedPrecondition otherwise.
//
// InvalidArgument: a glob for token files and others, or a weight for several token files. Two
// sources whose known tokenizers differ (fingerprints): FailedPrecondition, with both. Else as
// OpenTokenSource and PrepareTokenFile.
absl::StatusOr<std::vector<OpenedData>> OpenData(const std::vector<DataSpec>& specs,
                                                 const PrepareOptions& options,
                                                 const TokenCache& cache,
                                                 const PrepareProgress& progress);

}  // namespace convene::worker
