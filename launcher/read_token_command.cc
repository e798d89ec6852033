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
  std::string join_token;
};

void AddFlags(FlagReader* reader, ReadTokenFlags* flags) {
  AddJoinTokenFlag(reader, &flags->join_token);
  reader->Check([flags] {
    return flags->join_token.empty()
               ? absl::InvalidArgumentError("name the join token: --join-token-file FILE")
               : absl::OkStatus();
  });
}

absl::StatusOr<int> ReadTokenCommand(const ReadTokenFlags& flags) {
  CONVENE_RETURN_IF_ERROR(Print(absl::StrCat(rendezvous::ReadToken(flags.join_token), "\n")));
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace

Command ReadTokenRow() {
  return CommandRow(
      "read-token", "print the secret that opens a locked daemon for looking",
      "Print the secret by which people and programs look at a daemon with a join token and change "
      "nothing. It is the password of the pages: a browser asks for it (any user name will do), "
      "Prometheus takes it as basic_auth. In a file for --join-token-file it opens `convene "
      "status`, `logs`, `events` and `incidents`. It follows from the join token, which does not "
      "follow from it.",
      ReadTokenCommand);
}

}  // namespace convene::launcher
