// PURE. The changes from Unicode 14 to 16: PCRE2 of Debian 12 has version 14, the
// programs whose tokens ours must equal (tokenizers 0.23, tiktoken 0.14) have 16.
#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace convene::worker {

struct UnicodeChange {
  const char* property;  // as PCRE2 writes it: "Lo", "Alphabetic", "sc:Han"
  char32_t first, last;  // characters that came to it, or left it
  bool is_added;
};

// Of a general category of two letters, a script or a property of pattern/properties.h; in order.
absl::Span<const UnicodeChange> UnicodeChangesOf(absl::string_view property);
absl::Span<const UnicodeChange> AllUnicodeChanges();

}  // namespace convene::worker
