// convened: the rendezvous daemon as a program of its own.

#include <signal.h>

#include <cstdio>
#include <exception>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/server/server.h"
#include "spdlog/spdlog.h"
#include "tools/base/exit_code.h"
#include "tools/base/logging.h"

namespace convene::rendezvous {
namespace {

constexpr int kDefaultPort = 29400;
constexpr char kVersion[] = "convened 1.0";

int CodeOf(ExitCode code) { return static_cast<int>(code); }

void Complain(const std::string& text) { std::fprintf(stderr, "convened: %s\n", text.c_str()); }

void ExplainStart(const absl::Status& status, const Server::Options& options) {
  std::string text(status.message());
  if (status.code() == absl::StatusCode::kAlreadyExists) {
    absl::StrAppend(&text,
                    ".\nAnother program listens there, perhaps a convened of yours or of another "
                    "user on this machine. See who "
                    "it is with\n  ss -ltnp 'sport = :",
                    options.port,
                    "'\nand either let the jobs use that daemon (--rdzv-endpoint), "
                    "stop it, or start this one on another port (--port).");
  } else if (status.code() == absl::StatusCode::kPermissionDenied) {
    absl::StrAppend(&text, ".\nPorts below 1024 are the system's; take another one (--port).");
  } else if (status.code() == absl::StatusCode::kInvalidArgument) {
    absl::StrAppend(&text,
                    ".\nGive an address of this machine (`ip address` lists them), or 0.0.0.0 for "
                    "all of them (--host).");
  }
  Complain(text);
}

// SIGTERM and SIGINT, blocked in every thread and taken by this one.
int ServeUntilSignal(const Server::Options& options) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  auto server = Server::Start(options);
  if (!server.ok()) {
    ExplainStart(server.status(), options);
    return CodeOf(ExitCodeForStatus(server.status()));
  }
  spdlog::info("listening on {}:{}", options.host, (*server)->port());
  int signal_number = 0;
  while (sigwait(&signals, &signal_number) != 0) {
  }
  spdlog::info("stopping: {}", signal_number == SIGTERM ? "SIGTERM" : "SIGINT");
  server->reset();
  return ExitCodeForSignal(signal_number);
}

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
  InitLogging("convened");
  return ServeUntilSignal(options);
}

}  // namespace
}  // namespace convene::rendezvous

int main(int argc, char** argv) {
  try {
    return convene::rendezvous::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "convened: %s\n", error.what());
    return static_cast<int>(convene::ExitCode::kInternal);
  }
}
