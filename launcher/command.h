// The command line that the agent executes.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/flags.h"
#include "tools/base/environment.h"

namespace convene::launcher {

// `flags.command` as it must be executed. python3 is the one in PATH; or that of the virtual
// environment whose bin is `called_directory`; PYTHON_EXEC names another.
//   x.py            python3 -u x.py, unless --no-python
//   any name        the same, when called as torchrun
//   --run-path x    python3 -u -c <runpy.run_path> x
//   -m module       python3 -u -m module
//   convene-train   from PATH, else beside this binary (`own_directory`), else at its place in
//                   Bazel's tree
//   anything else itself; the agent looks for it in PATH and reports when it is missing
// NotFound for a script that does not exist. REQUIRES: flags.command is not empty.
absl::StatusOr<std::vector<std::string>> ResolveCommand(const RunFlags& flags,
                                                        const EnvironmentLookup& environment,
                                                        const std::string& own_directory,
                                                        const std::string& called_directory);

// Whether a launcher has given this process a rank. RANK without LOCAL_RANK counts pods
// (PyTorchJob, Volcano).
bool HasRank(const EnvironmentLookup& environment);

// The directory of the running binary, symbolic links followed.
std::string OwnDirectory();

// The directory of the link, or the binary, by which this process was called.
std::string CalledDirectory();

}  // namespace convene::launcher
