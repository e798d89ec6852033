// PURE. Text as JSON has it.
#pragma once

#include <string>

namespace convene::launcher {

// `text` in quotation marks; a byte that is not UTF-8 becomes '?'.
std::string JsonText(const std::string& text);

}  // namespace convene::launcher
