#include "launcher/terminal_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tools/base/control_sequences.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

// Whether a control sequence sets colors and the like, and nothing else.
bool IsColor(absl::string_view sequence) {
  return sequence.back() == 'm' &&
         sequence.find_first_not_of("0123456789;:", 2) == sequence.size() - 1;
}

}  // namespace

std::string ForTerminal(absl::string_view line) {
  std::string shown;
  while (!line.empty()) {
    const size_t plain = std::min(line.find_first_of("\t\r\x1B"), line.size());
    shown += Printable(line.substr(0, plain));
    line.remove_prefix(plain);
    if (line.empty()) break;
    const size_t sequence = SequenceLength(line);
    if (sequence == 0) {
      shown += line[0] == '\x1B' ? '?' : line[0];
    } else if (IsColor(line.substr(0, sequence))) {
      absl::StrAppend(&shown, line.substr(0, sequence));
    }
    line.remove_prefix(std::max<size_t>(sequence, 1));
  }
  return shown;
}

}  // namespace convene::launcher
