// PURE. The end of a run as --outcome-file has it, for the program that called this one.
#pragma once

#include <string>

#include "agent/agent.h"

namespace convene::launcher {

// One JSON object and a newline; launcher/README.md names its keys.
std::string OutcomeJson(const agent::Result& result);

}  // namespace convene::launcher
