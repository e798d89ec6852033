// Decodes ids one by one into text that can be shown at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

// For output while a model writes: never half a character, and no text twice. The parts together
// are what Tokenizer::Decode makes of all ids, but for broken UTF-8 that it judges together with
// whole characters before it (a run of byte tokens in tokenizer.json). The time of one token does
// not depend on how many came before it. Not thread-safe. Must not outlive its tokenizer.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer& tokenizer, bool show_specials);

  // The text that one more token adds: UTF-8, often empty.
  std::string Add(int32_t id);

  // The text that is still held back, once the last id is there: half a character becomes U+FFFD.
  std::string Finish();

 private:
  // The text of pending_, which becomes the context of what follows.
  std::string Show();

  const Tokenizer& tokenizer_;
  const bool show_specials_;
  // Ids whose text was shown, and how many bytes it has. Decoding goes through them again, because
  // what a token is at the beginning of a text may differ from what it is elsewhere: SentencePiece
  // drops the first space.
  std::vector<int32_t> context_;
  size_t context_bytes_ = 0;
  // Ids after them, not shown yet: their last character is not finished, but more bytes may do so.
  std::vector<int32_t> pending_;
  std::string pending_bytes_;
};

}  // namespace convene::worker
