// PURE. Tokens of any width as int32, and back.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace convene::worker {

// How the tokens of a file are written, little endian.
enum class TokenType { kU8, kI8, kU16, kI16, kU32, kI32, kI64 };

int TokenBytes(TokenType type);
absl::string_view NameOf(TokenType type);  // "uint16"

// tokens[i] is the value number i at `bytes`, which need not be aligned; -1 for one that is
// negative or above 2^31 - 1.
void ReadTokens(TokenType type, const char* bytes, int64_t count, int32_t* tokens);

// Appends `ids` as values of the type, which must hold them.
void AppendTokens(TokenType type, absl::Span<const int32_t> ids, std::string* bytes);

// counted[i] is bit number first + i; bit 0 is the lowest of byte 0.
void ReadBits(const char* bytes, int64_t first, int64_t count, uint8_t* counted);

}  // namespace convene::worker
