// convene-train's arguments, by the proto's descriptor: every key is a flag. No FlagReader
// (tools/base/flag_reader.h) reads them: the flags are the fields of a proto, which the YAML file
// names too, and one flag may take several values (--data a.txt b.txt) or an optional true or
// false.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/train_config.pb.h"

namespace convene::worker {

struct CommandLine {
  // The answer to --help, -h, --help-exit-codes or --version, after which the rest of the line is
  // not read; "" without such a flag.
  std::string query_text;
  std::string config_path;  // --config, "" without
  TrainConfig flags;        // only what was said
};

// `arguments` without the program's name. Forms: --learning-rate 1e-3, --learning_rate=1e-3;
// --tied-embeddings alone is true; --data takes one or many values, up to the next flag, and may be
// repeated. The last of several values wins. A value that begins with "--" needs the form with "=".
// InvalidArgument for an unknown flag (with the closest one), a value that is missing, superfluous
// or of the wrong type.
absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments);

// The text of --help, at most 120 columns wide, with a newline at its end.
std::string HelpText();

}  // namespace convene::worker
