#include "launcher/command.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <climits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agent/custody/program.h"
#include "tools/base/files.h"
#include "worker_runtime/contract/names.h"

namespace convene::launcher {
namespace {

constexpr char kTrainer[] = "convene-train";
// torchrun's --run-path: in one interpreter, without the script's directory in sys.path.
constexpr char kRunPath[] =
    "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')";

bool IsInPath(const std::string& name, const EnvironmentLookup& environment) {
  return agent::FindProgram(name, environment("PATH").value_or("")).ok();
}

std::string FindTrainer(const EnvironmentLookup& environment, const std::string& own_directory) {
  if (IsInPath(kTrainer, environment)) return kTrainer;
  for (const char* place : {"/", "/../worker_runtime/trainer/"}) {
    const std::string path = absl::StrCat(own_directory, place, kTrainer);
    if (agent::FindProgram(path, "").ok()) return path;
  }
  return kTrainer;  // the agent says where it has looked
}

// Like pip's scripts, a program in a virtual environment belongs to its interpreter, activated or
// not.
std::string FindPython(const std::string& called_directory) {
  const std::string beside = called_directory + "/python3";
  for (const char* mark : {"/../pyvenv.cfg", "/../conda-meta"}) {
    const bool is_environment = access((called_directory + mark).c_str(), F_OK) == 0;
    if (is_environment && agent::FindProgram(beside, "").ok()) return beside;
  }
  return "python3";
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ResolveCommand(const RunFlags& flags,
                                                        const EnvironmentLookup& environment,
                                                        const std::string& own_directory,
                                                        const std::string& called_directory) {
  std::vector<std::string> command = flags.command;
  const std::string python = environment("PYTHON_EXEC").value_or(FindPython(called_directory));
  const bool is_script =
      flags.run_path || (!flags.no_python && !flags.module &&
                         (flags.as_torchrun || absl::EndsWith(command[0], ".py")));
  if (is_script && access(command[0].c_str(), R_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(
        "there is no readable script ", command[0],
        "; its path counts from the current directory, which must be the same on every node",
        IsInPath(command[0], environment) ? " (for a program write --no-python before it)" : ""));
  }
  if (flags.run_path) {
    command.insert(command.begin(), {python, "-u", "-c", kRunPath});
  } else if (flags.module) {
    command.insert(command.begin(), {python, "-u", "-m"});
  } else if (is_script) {
    command.insert(command.begin(), {python, "-u"});
  } else if (command[0] == kTrainer) {
    command[0] = FindTrainer(environment, own_directory);
  }
  return command;
}

bool HasRank(const EnvironmentLookup& environment) {
  return environment(contract::kRank).has_value() && environment(contract::kLocalRank).has_value();
}

std::string OwnDirectory() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  if (length <= 0 || length == static_cast<ssize_t>(sizeof(path))) return ".";
  return ParentDirectory(std::string(path, static_cast<size_t>(length)));
}

std::string CalledDirectory() {
  // The kernel gives the address as a number.
  const auto* const called =
      reinterpret_cast<const char*>(getauxval(AT_EXECFN));  // NOLINT(performance-no-int-to-ptr)
  return called == nullptr ? "." : ParentDirectory(called);
}

}  // namespace convene::launcher
