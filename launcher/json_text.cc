#include "launcher/json_text.h"

#include "absl/strings/str_format.h"
#include "tools/base/text.h"

namespace convene::launcher {

std::string JsonText(const std::string& text) {
  std::string json = "\"";
  for (const char c : Utf8(text)) {
    if (c == '"' || c == '\\') {
      json += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&json, "\\u%04x", static_cast<int>(c));
    } else {
      json += c;
    }
  }
  return json + "\"";
}

}  // namespace convene::launcher
