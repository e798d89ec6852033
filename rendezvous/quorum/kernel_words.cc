#include "rendezvous/quorum/kernel_words.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace convene::rendezvous {

bool TellsBrokenHardware(absl::string_view kernel_line) {
  const std::string line = absl::AsciiStrToLower(kernel_line);
  if (!absl::StrContains(line, "hardware error") && !absl::StrContains(line, "machine check")) {
    return false;
  }
  // "{1}[Hardware Error]: event severity: recoverable", "Machine check: Processor context corrupt".
  for (const char* const word : {"uncorrected", "fatal", "recoverable", "machine check exception",
                                 "processor context corrupt"}) {
    if (absl::StrContains(line, word)) return true;
  }
  return false;
}

}  // namespace convene::rendezvous
