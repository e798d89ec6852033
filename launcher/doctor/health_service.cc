#include "launcher/doctor/health_service.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

using agent::Finding;
using agent::Severity;

constexpr size_t kOutputMax = 1000;
constexpr absl::Duration kServiceTimeout = absl::Seconds(30);  // a script may look at disks
constexpr char kSubject[] = "service";

Finding Failed(const std::string& what) {
  return {Severity::kError, kSubject, what, "the node's operator has found it unfit",
          "leave the node out, and tell its operator"};
}

}  // namespace

int64_t FailCountOf(const std::string& output) {
  constexpr char kMember[] = "\"fail_count\"";
  const size_t at = output.find(kMember);
  if (at == output.npos) return 0;
  absl::string_view rest = absl::string_view(output).substr(at);
  absl::ConsumePrefix(&rest, kMember);
  rest = absl::StripLeadingAsciiWhitespace(rest);
  if (!absl::ConsumePrefix(&rest, ":")) return 0;
  rest = absl::StripLeadingAsciiWhitespace(rest);
  int64_t count = 0;
  for (size_t i = 0; i < rest.size() && absl::ascii_isdigit(rest[i]) && i < 9; ++i) {
    count = count * 10 + (rest[i] - '0');
  }
  return count;
}

Finding AskHealthService(const std::string& socket) {
  return FindingOf(socket, rendezvous::AskNodeHealth(socket, kServiceTimeout));
}

Finding FindingOf(const std::string& socket, const absl::StatusOr<rendezvous::NodeHealth>& health) {
  if (absl::IsUnavailable(health.status())) {
    return {Severity::kNote, kSubject, absl::StrCat("no health service answers at ", socket),
            "its findings are not in this report", "start it, or leave --service out"};
  }
  if (!health.ok()) {
    return Failed(absl::StrCat("the health service at ", socket, ": ",
                               std::string(health.status().message())));
  }
  const int64_t fails = FailCountOf(health->output);
  if (health->success && fails == 0) {
    return {Severity::kGood, kSubject, absl::StrCat(socket, " finds this node healthy")};
  }
  const std::string words = health->error.empty() ? health->output : health->error;
  return Failed(absl::StrCat(fails, fails == 1 ? " failure" : " failures", ", exit code ",
                             health->exit_code, ": ", Utf8(words, kOutputMax)));
}

}  // namespace convene::launcher
