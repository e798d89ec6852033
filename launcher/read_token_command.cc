#include "launcher/read_token_command.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "launcher/flags.h"
#include "launcher/print.h"
#include "rendezvous/lock/token.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

struct ReadTokenFlags {
  std::string endpoint;
  rendezvous::Credentials credentials;
  std::string job_id;
};

void AddFlags(FlagReader* reader, ReadTokenFlags* flags) {
  reader->Word("[RUN]", &flags->job_id);
  AddPlaceFlags(reader, &flags->endpoint, &flags->credentials, &flags->job_id);
  reader->Check([flags] {
    return flags->credentials.join_token.empty()
               ? absl::InvalidArgumentError(
                     "name the join token: --join-token-file FILE, or a run of convene launch that "
                     "has not ended: convene read-token RUN")
               : absl::OkStatus();
  });
}

absl::StatusOr<int> ReadTokenCommand(const ReadTokenFlags& flags) {
  CONVENE_RETURN_IF_ERROR(
      Print(absl::StrCat(rendezvous::ReadToken(flags.credentials.join_token), "\n")));
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace

Command ReadTokenRow() {
  return CommandRow(
      "read-token", "print the secret that opens a locked daemon for looking",
      "Print the secret by which people and programs look at a daemon with a join token and change "
      "nothing. It is the password of the pages: a form asks for it in a browser, "
      "Prometheus takes it as basic_auth. In a file for --join-token-file it opens `convene "
      "status`, `logs`, `events` and `incidents`. It follows from the join token, which does not "
      "follow from it.",
      ReadTokenCommand);
}

}  // namespace convene::launcher
