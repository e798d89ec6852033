// Finds the program that workers run, before anything is started.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace convene::agent {

// The path that execve gets for `name`: itself when it has a '/', else the first executable file of
// that name in the directories of `search_path` (PATH; "" = /usr/bin:/bin). NotFound or
// PermissionDenied, the text says where it looked and what to do.
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& search_path);

}  // namespace convene::agent
