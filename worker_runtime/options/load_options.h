// The only way from flags, YAML and environment to TrainOptions: no other code sees the proto.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/base/environment.h"
#include "worker_runtime/options/options.h"

namespace convene::worker {

// `arguments` without the program's name. Reads the file that --config names; a `resume` that is a
// path must be a directory (NotFound). nullopt where the arguments ask for a
// text: print CommandLine::query_text. Errors: those of ParseCommandLine, ReadConfigFile and
// NamedModel; InvalidArgument for sizes beyond int, and for keys without an effect:
// checkpoint_every or checkpoint_keep without checkpoint_dir, eod_token without packed_documents.
// Ranges and relations are ValidateOptions' business: it needs the layout.
absl::StatusOr<std::optional<TrainOptions>> LoadOptions(const std::vector<std::string>& arguments,
                                                        const EnvironmentLookup& environment);

}  // namespace convene::worker
