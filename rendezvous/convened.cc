// convened: the rendezvous daemon as a program of its own.

#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/server/serve.h"
#include "rendezvous/server/server.h"
#include "tools/base/exit_code.h"
#include "tools/base/logging.h"

namespace convene::rendezvous {
namespace {

constexpr int kDefaultPort = 29400;
constexpr char kVersion[] = "convened 1.0";

int CodeOf(ExitCode code) { return static_cast<int>(code); }

void Complain(const std::string& text) { std::fprintf(stderr, "convened: %s\n", text.c_str()); }

int Main(int argc, char** argv) {
  Server::Options options;
  options.port = kDefaultPort;
  bool wants_exit_codes = false;
  CLI::App app(
      "The rendezvous daemon of Convene: the agents of a job meet here, and learn who takes part "
      "in which epoch with which rank.",
      "convened");
  app.set_version_flag("--version", kVersion);
  app.add_option("--host", options.host, "address to listen on; 0.0.0.0 is all of them")
      ->capture_default_str();
  app.add_option("--port", options.port, "TCP port; 0 is any free one, see the log")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535));
  app.add_option("--state-dir,--state_dir", options.state_dir,
                 "directory of the journal, on a local disk: a daemon that ends, in whatever way, "
                 "and is started again with it goes on with its jobs, and no worker notices");
  app.add_flag("--help-exit-codes,--help_exit_codes", wants_exit_codes,
               "print what each exit code means");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    Complain(absl::StrCat(error.what(), "\nSee convened --help."));
    return CodeOf(ExitCode::kUsage);
  }
  if (wants_exit_codes) {
    std::fputs(ExitCodeTable().c_str(), stdout);
    return CodeOf(ExitCode::kOk);
  }
  InitLogging("convened", LogReader::kIsNotAwaited);
  const absl::StatusOr<int> exit_code = ServeUntilSignal(options);
  if (exit_code.ok()) return *exit_code;
  Complain(std::string(exit_code.status().message()));
  return CodeOf(ExitCodeForStatus(exit_code.status()));
}

}  // namespace
}  // namespace convene::rendezvous

int main(int argc, char** argv) {
  return convene::ExitCodeOfMain("convened", [&] { return convene::rendezvous::Main(argc, argv); });
}
