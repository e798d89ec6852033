// convene-train: the built-in trainer, one process per GPU or CPU slot.

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/cpu_count.h"
#include "tools/base/environment.h"
#include "tools/base/exit_code.h"
#include "tools/base/logging.h"
#include "worker_runtime/bench/bench_command.h"
#include "worker_runtime/comm/nccl/limits.h"
#include "worker_runtime/contract/contract.h"
#include "worker_runtime/contract/names.h"
#include "worker_runtime/inference/evaluate_command.h"
#include "worker_runtime/inference/generate_command.h"
#include "worker_runtime/ops/cpu/team_watch.h"
#include "worker_runtime/options/command_line.h"
#include "worker_runtime/options/load_options.h"
#include "worker_runtime/session/session.h"
#include "worker_runtime/session/stack_dump.h"
#include "worker_runtime/session/warm_spare.h"
#include "worker_runtime/trainer/openmp_settings.h"
#include "worker_runtime/trainer/setup.h"
#include "worker_runtime/trainer/training.h"

namespace convene::worker {
namespace {

// For a spare that becomes a worker to see whether its GPU still works.
constexpr absl::Duration kGpuCheckLimit = absl::Seconds(10);

int Code(ExitCode code) { return static_cast<int>(code); }

// kUsage says that nothing was started and that no restart would help. Once the job has begun, the
// same errors come from its disks and nodes.
ExitCode CodeOf(const absl::Status& status, bool job_has_begun) {
  const ExitCode code = ExitCodeForStatus(status);
  return job_has_begun && code == ExitCode::kUsage ? ExitCode::kTrainingFailed : code;
}

// Writes one paragraph. Every rank does so, even where all write the same: the agent shows the last
// lines of the first rank that ends.
int Fail(const absl::Status& status, const Contract* contract, bool job_has_begun = false) {
  const std::string who = contract == nullptr || contract->world_size == 1
                              ? ""
                              : absl::StrCat("rank ", contract->rank, " on ", HostName(), ": ");
  std::fprintf(stderr, "convene-train: %s%s\n", who.c_str(), std::string(status.message()).c_str());
  return Code(CodeOf(status, job_has_begun));
}

int ExitCodeOfStop(const StopToken& stop) {
  // Another rank's agent may have asked for the stop: then this rank's token is still empty, and
  // this rank has to start again with the others.
  return stop.reason() == StopReason::kTerminated ? ExitCodeForSignal(stop.signal_number())
                                                  : Code(ExitCode::kMembershipChanged);
}

// All kernels are loaded when the device is opened, unless the person has chosen. CUDA reads the
// variable at its first call, and a process with threads must not set one.
void LoadKernelsEarly() { setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0); }

// REQUIRES: the arguments ask for a text.
int AnswerQuery(const std::vector<std::string>& arguments) {
  const std::string text = ParseCommandLine(arguments)->query_text;
  if (std::fputs(text.c_str(), stdout) != EOF && std::fflush(stdout) == 0) {
    return Code(ExitCode::kOk);
  }
  if (errno == EPIPE) return Code(ExitCode::kOk);  // as `| head` ends
  return Fail(absl::DataLossError("write error: " + std::generic_category().message(errno)),
              nullptr);
}

int Main(const std::vector<std::string>& arguments, OpenedGpu opened) {
  const auto options = LoadOptions(arguments, ProcessEnvironment());
  if (options.ok() && !options->has_value()) return AnswerQuery(arguments);
  if (options.ok() && opened.device == nullptr && !MayLoadKernelsLate((*options)->pp_schedule)) {
    LoadKernelsEarly();
  }
  auto contract = ReadContract(ProcessEnvironment());
  if (!contract.ok()) return Fail(options.ok() ? contract.status() : options.status(), nullptr);
  const absl::Status is_one = CheckOneTask(ProcessEnvironment());
  if (!is_one.ok()) return Fail(is_one, nullptr);
  // Without an agent stdout is this process's own.
  if (contract->session_path.empty()) contract->terminal = isatty(STDOUT_FILENO) == 1;

  StopToken stop;
  const auto session = Session::Start(*contract, stop);
  if (!session.ok()) return Fail(session.status(), &*contract);
  // The session opens only now, because the agent believes the exit codes of a worker in session.
  if (!options.ok()) return Fail(options.status(), &*contract);
  const auto end = RunTraining(**options, *contract, stop, std::move(opened));
  if (!end.ok()) {
    return Fail(end.status(), &*contract, contract->is_restart() || stop.is_watched());
  }
  return *end == TrainingEnd::kFinished ? Code(ExitCode::kOk) : ExitCodeOfStop(stop);
}

using OtherCommand = absl::StatusOr<int> (*)(const std::vector<std::string>& arguments);

// The first word makes of the trainer another program; null: it does not.
OtherCommand OtherProgram(const std::string& word) {
  if (word == "generate") return GenerateCommand;
  if (word == "evaluate") return EvaluateCommand;
  return word == "bench" ? BenchCommand : nullptr;
}

int MainOf(OtherCommand command, const std::string& program,
           const std::vector<std::string>& arguments) {
  const auto code = command(arguments);
  if (code.ok()) return *code;
  std::fprintf(stderr, "convene %s: %s\n", program.c_str(),
               std::string(code.status().message()).c_str());
  return Code(ExitCodeForStatus(code.status()));
}

std::string OwnPath() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof(path));
  return std::string(path, std::max<ssize_t>(length, 0));
}

std::vector<std::pair<std::string, std::string>> OwnSettings(const EnvironmentLookup& environment) {
  return OpenMpSettings(environment, CountBoundCpus(), CountUsableCpus());
}

// Before CUDA's first call, which reads it: the default of 8 is less than the streams that must not
// wait for each other (comm/nccl/session.h), and scripts for other trainers set 1.
constexpr std::pair<const char*, const char*> kConnections = {"CUDA_DEVICE_MAX_CONNECTIONS", "32"};

// The OpenMP library read its environment when this program was loaded. Where that has to be
// another one (OpenMpSettings), this program is loaded once more. Where that fails it goes on as it
// is.
void StartAgainWithOpenMpSettings(char** argv) {
  const auto settings = OwnSettings(ProcessEnvironment());
  if (settings.empty()) return;
  for (const auto& [name, value] : settings) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  const std::string path = OwnPath();
  if (!path.empty()) execv(path.c_str(), argv);
}

// With --warm-workers: a spare returns from here as the worker that it has become, with the GPU
// that it has opened.
OpenedGpu BeWarm(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  OpenedGpu opened;
  bool has_failed = false;
  const auto settings = [](const EnvironmentLookup& environment) {
    auto own = OwnSettings(environment);
    own.emplace_back(kConnections);
    return own;
  };
  const auto open = [&](int local_rank) {
    const auto options = LoadOptions(arguments, ProcessEnvironment());
    if (!options.ok() || !options->has_value()) return;
    BlockStopSignals();
    LoadKernelsEarly();
    absl::StatusOr<OpenedGpu> early = OpenGpuEarly(**options, local_rank);
    has_failed = !early.ok();
    if (early.ok()) opened = *std::move(early);
  };
  const auto still_works = [&] {
    return !has_failed &&
           (opened.device == nullptr || opened.device->Synchronize(kGpuCheckLimit).ok());
  };
  ServeAsWarm({.path = OwnPath(),
               .argv = argv,
               .settings = settings,
               .open = open,
               .still_works = still_works});
  return opened;
}

}  // namespace
}  // namespace convene::worker

int main(int argc, char** argv) {
  convene::worker::StartAgainWithOpenMpSettings(argv);
  // The program may share its CPUs with other processes.
  convene::worker::cpu::watches_teams = true;
  const std::string word = argc > 1 ? argv[1] : "";
  if (const auto command = convene::worker::OtherProgram(word)) {
    // Answers go to stdout, which programs read: no log line may come between.
    convene::InitLogging("convene " + word, convene::LogReader::kIsAwaited);
    return convene::ExitCodeOfMain(("convene " + word).c_str(), [&] {
      return convene::worker::MainOf(command, word,
                                     std::vector<std::string>(argv + 2, argv + argc));
    });
  }
  const auto& [name, connections] = convene::worker::kConnections;
  setenv(name, connections, /*overwrite=*/1);
  convene::worker::OpenedGpu opened = convene::worker::BeWarm(argc, argv);
  // Gloo writes to a peer that has just died by writev: that is an error of the collective, which
  // the launcher mends without a charge, and not the end of this process.
  std::signal(SIGPIPE, SIG_IGN);
  convene::worker::BlockStopSignals();
  convene::worker::InstallStackDump(argv[0]);
  convene::InitLogging("convene-train", convene::LogReader::kIsAwaited);
  // A model that is too large for its node says nothing about the node: kTrainingFailed.
  // Destructors would free memory that peers' messages and the GPU still write to.
  convene::EndAtExceptions("convene-train", convene::ExitCode::kTrainingFailed);
  return convene::worker::Main(std::vector<std::string>(argv + 1, argv + argc), std::move(opened));
}
