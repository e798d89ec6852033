// PURE. Control sequences of terminals (ISO 6429, "ESC [ ... letter"): colors, moves of the cursor.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace convene {

// The length of the control sequence that `text` begins with; 0: it begins with none.
size_t SequenceLength(absl::string_view text);

std::string WithoutSequences(absl::string_view text);

}  // namespace convene
