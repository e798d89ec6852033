#include "launcher/launch/exported_variables.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/contract/names.h"

namespace convene::launcher {
namespace {

// DeepSpeed's, and ours.
constexpr absl::string_view kPrefixes[] = {"NCCL_", "CUDA_", "PYTHON", "CONVENE_",
                                           "MV2_",  "UCX_",  "MLFLOW_"};
constexpr absl::string_view kOfThisMachine[] = {contract::kCudaVisibleDevices,
                                                "CONVENE_TOPOLOGY",
                                                contract::kEpoch,
                                                contract::kAttempt,
                                                contract::kSession,
                                                contract::kProgress,
                                                contract::kMemory,
                                                contract::kMaxNodes,
                                                contract::kAgentToken,
                                                contract::kTerminal,
                                                contract::kNodeLocalRank};

bool IsName(absl::string_view name) {
  return !name.empty() && !absl::ascii_isdigit(name[0]) &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '_'; });
}

bool PassesByItself(const std::string& name) {
  const auto begins = [&](absl::string_view prefix) { return absl::StartsWith(name, prefix); };
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes), begins) &&
         std::find(std::begin(kOfThisMachine), std::end(kOfThisMachine), name) ==
             std::end(kOfThisMachine);
}

// The value may be a secret, so no text shows it.
absl::StatusOr<std::pair<std::string, std::string>> ParseAssignment(absl::string_view text) {
  const size_t equals = text.find('=');
  if (equals == absl::string_view::npos || !IsName(text.substr(0, equals))) {
    return absl::InvalidArgumentError(
        "not NAME=VALUE, where NAME has letters, digits and underscores");
  }
  return std::pair(std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)));
}

absl::Status TakeFile(const VariableFile& file, Variables* variables) {
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(file.text, '\n')) {
    ++number;
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || text[0] == '#') continue;
    const auto assignment = ParseAssignment(text);
    CONVENE_RETURN_IF_ERROR(
        Annotate(assignment.status(), absl::StrCat(file.path, ", line ", number)));
    (*variables)[assignment->first] = assignment->second;
  }
  return absl::OkStatus();
}

absl::Status TakeExport(const std::string& text, const Variables& own, Variables* variables) {
  if (absl::StrContains(text, '=')) {
    const auto assignment = ParseAssignment(text);
    CONVENE_RETURN_IF_ERROR(Annotate(assignment.status(), "--export"));
    (*variables)[assignment->first] = assignment->second;
    return absl::OkStatus();
  }
  const auto found = own.find(text);
  if (found == own.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--export ", text, ": no variable of that name is set here; write --export ",
                     text, "=VALUE, or leave it out"));
  }
  (*variables)[text] = found->second;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Variables> ExportedVariables(const Variables& own,
                                            const std::vector<VariableFile>& files,
                                            const std::vector<std::string>& exports) {
  Variables variables;
  for (const auto& [name, value] : own) {
    if (PassesByItself(name)) variables[name] = value;
  }
  for (const VariableFile& file : files) {
    CONVENE_RETURN_IF_ERROR(TakeFile(file, &variables));
  }
  for (const std::string& text : exports) {
    CONVENE_RETURN_IF_ERROR(TakeExport(text, own, &variables));
  }
  return variables;
}

}  // namespace convene::launcher
