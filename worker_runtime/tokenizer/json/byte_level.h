// GPT-2's spelling of bytes: each byte is one printable character, so that a vocabulary of bytes
// can stand in JSON. '!' to '~', U+00A1 to U+00AC and U+00AE to U+00FF stand for themselves, the
// other 68 bytes are U+0100 and onwards (tokenizers/src/pre_tokenizers/byte_level.rs).
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace convene::worker {

// Appends the spelling of each byte.
void AppendSpelled(absl::string_view bytes, std::string* result);

// The bytes that `spelled` stands for, if all its characters stand for bytes.
std::optional<std::string> Unspelled(absl::string_view spelled);

}  // namespace convene::worker
