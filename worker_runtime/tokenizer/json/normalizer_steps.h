// The rewritings that go character by character or by a pattern. Each is what the part of the same
// name in Hugging Face's tokenizers does (tokenizers/src/normalizers).
#pragma once

#include <memory>
#include <string>

#include "worker_runtime/tokenizer/json/text_normalizer.h"
#include "worker_runtime/tokenizer/split_pattern.h"

namespace convene::worker {

std::unique_ptr<NormalizerStep> MakeLowercase();
// Drops marks (M*), but decomposes nothing.
std::unique_ptr<NormalizerStep> MakeStripAccents();
// Drops control characters, makes other white space and U+2581 a space.
std::unique_ptr<NormalizerStep> MakeNmt();
// Drops white space at the ends.
std::unique_ptr<NormalizerStep> MakeStrip(bool left, bool right);
// Puts `text` before every text that is not empty.
std::unique_ptr<NormalizerStep> MakePrepend(std::string text);
// Puts `content` in place of every match.
std::unique_ptr<NormalizerStep> MakeReplace(std::unique_ptr<SplitPattern> pattern,
                                            std::string content);

struct BertOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};
std::unique_ptr<NormalizerStep> MakeBert(const BertOptions& options);

}  // namespace convene::worker
