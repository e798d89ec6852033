// convene: the launcher's binary. It is convene, torchrun or convened, by the name under which it
// is called.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cluster/kubernetes.h"
#include "launcher/commands.h"
#include "launcher/print.h"
#include "tools/base/environment.h"
#include "tools/base/exit_code.h"
#include "tools/base/logging.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

absl::StatusOr<int> Perform(const Program& program, const std::vector<std::string>& arguments) {
  CONVENE_ASSIGN_OR_RETURN(const Call call,
                           ReadCall(program, arguments, MeantEnvironment(ProcessEnvironment())));
  int exit_code = static_cast<int>(ExitCode::kOk);
  if (call.action == nullptr) {
    CONVENE_RETURN_IF_ERROR(Print(call.text));
  } else {
    InitLogging(program.name.c_str(), LogReader::kIsNotAwaited);
    CONVENE_ASSIGN_OR_RETURN(exit_code, call.action());
  }
  if (exit_code == 0) CONVENE_RETURN_IF_ERROR(Print(""));
  return exit_code;
}

int Main(const Program& program, const std::vector<std::string>& arguments) {
  const absl::StatusOr<int> exit_code = Perform(program, arguments);
  if (exit_code.ok()) return *exit_code;
  if (absl::IsCancelled(exit_code.status())) return static_cast<int>(ExitCode::kOk);  // Print's.
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(),
               std::string(exit_code.status().message()).c_str());
  // torchrun's: 2 for a command line that cannot be read, 1 for every other failure.
  if (program.name == kTorchrun) return absl::IsInvalidArgument(exit_code.status()) ? 2 : 1;
  return static_cast<int>(ExitCodeForStatus(exit_code.status()));
}

}  // namespace
}  // namespace convene::launcher

int main(int argc, char** argv) {
  const std::string called = argc > 0 ? argv[0] : "";
  const std::vector<std::string> arguments(argv + std::min(argc, 1), argv + argc);
  const auto program = convene::launcher::ProgramCalled(called.substr(called.rfind('/') + 1));
  return convene::ExitCodeOfMain(program.name.c_str(),
                                 [&] { return convene::launcher::Main(program, arguments); });
}
