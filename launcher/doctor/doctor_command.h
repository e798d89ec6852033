// `convene doctor`: looks at this machine, and says what stands in the way of training.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/command_table.h"
#include "tools/base/flag_reader.h"

namespace convene::launcher {

struct DoctorFlags {
  std::vector<std::string> folders;
  bool is_json = false;
};

void AddFlags(FlagReader* reader, DoctorFlags* flags);

// Exit code 71 (kUnfitNode) where a finding is an error, else 0.
absl::StatusOr<int> DoctorCommand(const DoctorFlags& flags);

Command DoctorRow();

}  // namespace convene::launcher
