// PURE. Text to tokens, byte by byte: token = byte. No vocabulary file, nothing is unknown, and any
// language works.
#pragma once

#include <cstdint>

namespace convene::worker {

// Enters the token file's key: files made by another tokenizer, or another version of it, are never
// taken for this one's.
constexpr char kByteTokenizerName[] = "byte/1";
constexpr int kByteVocabularySize = 256;
// Stands between two documents: ends the one before it. Text has no byte 0 of its own.
constexpr uint8_t kDocumentSeparator = 0;

}  // namespace convene::worker
