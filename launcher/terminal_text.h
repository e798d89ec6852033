// PURE. Lines of programs, as a person's terminal may have them.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace convene::launcher {

// A line of a program on another machine: tabs, carriage returns and colors stay, other control
// sequences go, and each other control character becomes '?'. So no such program moves the cursor
// of this terminal to another line, names its window, or makes it type. A carriage return begins
// the line anew, as progress bars want it.
std::string ForTerminal(absl::string_view line);

}  // namespace convene::launcher
