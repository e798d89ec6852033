// `--config train.yaml`: YAML into the typed proto.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/train_config.pb.h"

namespace convene::worker {

// Keys are those of the proto; model_shape is a map; data is one text or a list. `path` is for
// error texts. InvalidArgument with "path:line: " for broken YAML, a key that is unknown (with the
// closest one), given twice, without a value or of the wrong type. An empty text is valid.
absl::StatusOr<TrainConfig> ParseConfig(const std::string& yaml, const std::string& path);

// The same from a file; an unreadable one gives ReadFile's code, one that is not regular (which is
// not even opened) or has more than 1 MiB InvalidArgument.
absl::StatusOr<TrainConfig> ReadConfigFile(const std::string& path);

}  // namespace convene::worker
