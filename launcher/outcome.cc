#include "launcher/outcome.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/json_text.h"
#include "rendezvous/quorum/messages.h"

namespace convene::launcher {
namespace {

std::string FailureJson(const rendezvous::WorkerFailure& failure) {
  return absl::StrCat(R"({"rank":)", failure.global_rank, R"(,"local_rank":)", failure.local_rank,
                      R"(,"host":)", JsonText(failure.host), R"(,"pid":)", failure.pid,
                      R"(,"exit_code":)", failure.exit_code, R"(,"signal":)", failure.signal,
                      R"(,"why":)", JsonText(failure.why), R"(,"error_file":)",
                      JsonText(failure.error_file), R"(,"error":)",
                      JsonText(absl::StrJoin(failure.error_lines, "\n")), "}");
}

}  // namespace

std::string OutcomeJson(const agent::Result& result) {
  return absl::StrCat(R"({"exit_code":)", result.exit_code, R"(,"explanation":)",
                      JsonText(result.explanation), R"(,"first_failure":)",
                      result.failure.has_value() ? FailureJson(*result.failure) : "null",
                      R"(,"lost_output":)", JsonText(result.lost_output), "}\n");
}

}  // namespace convene::launcher
