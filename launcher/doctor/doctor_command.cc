#include "launcher/doctor/doctor_command.h"

#include <unistd.h>

#include "absl/strings/str_split.h"
#include "agent/machine/read_facts.h"
#include "launcher/doctor/report.h"
#include "launcher/print.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> variables;
  for (char** each = environ; *each != nullptr; ++each) {
    variables.insert(std::pair<std::string, std::string>(
        absl::StrSplit(absl::string_view(*each), absl::MaxSplits('=', 1))));
  }
  return variables;
}

}  // namespace

void AddFlags(FlagReader* reader, DoctorFlags* flags) {
  reader->Words("FOLDER ...", &flags->folders);
  reader->Switch("json", &flags->is_json, "print JSON, for programs");
}

absl::StatusOr<int> DoctorCommand(const DoctorFlags& flags) {
  const agent::MachineFacts facts =
      agent::ReadFacts({.folders = flags.folders, .environment = Environment()});
  const std::vector<agent::Finding> findings = agent::Diagnose(facts);
  CONVENE_RETURN_IF_ERROR(
      Print(flags.is_json ? ReportJson(facts.host, findings) : ReportText(facts.host, findings)));
  const bool is_unfit = agent::WorstOf(findings) == agent::Severity::kError;
  return static_cast<int>(is_unfit ? ExitCode::kUnfitNode : ExitCode::kOk);
}

Command DoctorRow() {
  return CommandRow(
      "doctor", "look at this machine: what stands in the way of training?",
      "Look at this machine before training: GPUs, driver, network, RDMA, names, memory, disk, "
      "limits, clock, and the variables of NCCL, Gloo and PyTorch. Each finding says why it "
      "matters and what to do. FOLDERs (of data or checkpoints) are tried as well. Exit code 71 "
      "where training cannot run here, so that it can be a --health-check.",
      DoctorCommand);
}

}  // namespace convene::launcher
