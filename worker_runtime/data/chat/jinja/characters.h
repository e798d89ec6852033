// PURE. Strings as Python sees them: by characters (code points), not by bytes. All texts here are
// UTF-8, whose characters tokenizer/unicode.h reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker::jinja {

// Where each character begins, and the text's end after them.
std::vector<size_t> CharacterBegins(absl::string_view text);

// Python's str.isspace() for one character.
bool IsSpace(char32_t character);
// Python's str.isprintable() for one character, as of Unicode 14; characters that Unicode had not
// assigned then count as printable.
bool IsPrintable(char32_t character);

// Python's lstrip and rstrip: of white space, or of the characters in `characters`.
absl::string_view StripLeft(absl::string_view text,
                            std::optional<absl::string_view> characters = std::nullopt);
absl::string_view StripRight(absl::string_view text,
                             std::optional<absl::string_view> characters = std::nullopt);
absl::string_view Strip(absl::string_view text,
                        std::optional<absl::string_view> characters = std::nullopt);

// Python's upper, lower, title and capitalize. Unimplemented: a character outside ASCII, whose
// cases are a table that we do not have.
absl::StatusOr<std::string> Upper(absl::string_view text);
absl::StatusOr<std::string> Lower(absl::string_view text);
absl::StatusOr<std::string> Title(absl::string_view text);
absl::StatusOr<std::string> Capitalize(absl::string_view text);

// Python's str.splitlines().
std::vector<absl::string_view> SplitLines(absl::string_view text, bool keep_ends);

// The indices that Python's [start:stop:step] takes of a sequence of `size`. REQUIRES: step != 0.
std::vector<int64_t> SliceIndices(int64_t size, std::optional<int64_t> start,
                                  std::optional<int64_t> stop, int64_t step);

}  // namespace convene::worker::jinja
