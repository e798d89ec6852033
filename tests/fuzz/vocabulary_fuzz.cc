// libFuzzer on the files of tokenizers: the input's first byte chooses the reader of the rest. A
// file is refused with a text, or its tokenizer encodes and decodes whatever comes behind it.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "tools/base/check.h"
#include "worker_runtime/tokenizer/json/tokenizer_json.h"
#include "worker_runtime/tokenizer/sentencepiece/model.h"
#include "worker_runtime/tokenizer/split_pattern.h"
#include "worker_runtime/tokenizer/tekken.h"
#include "worker_runtime/tokenizer/tiktoken.h"
#include "worker_runtime/tokenizer/tokenizer.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// The part before the first byte 0xFF, which leaves `input` with it. No file of text has it.
absl::string_view TakePart(absl::string_view* input) {
  const size_t end = input->find('\xFF');
  const absl::string_view part = input->substr(0, end);
  input->remove_prefix(end == absl::string_view::npos ? input->size() : end + 1);
  return part;
}

// Ids are within the vocabulary; texts that come out are UTF-8.
void Use(const absl::StatusOr<std::unique_ptr<Tokenizer>>& tokenizer, absl::string_view text) {
  if (!tokenizer.ok()) {
    CONVENE_CHECK(!tokenizer.status().message().empty());
    return;
  }
  for (const SpecialText special_text : {SpecialText::kAsText, SpecialText::kAsTokens}) {
    const std::unique_ptr<Encoder> encoder = (*tokenizer)->NewEncoder(special_text);
    std::vector<int32_t> ids, again;
    encoder->Encode(text, &ids);
    encoder->Encode(text, &again);
    CONVENE_CHECK(ids == again);
    for (const int32_t id : ids) {
      CONVENE_CHECK(id >= 0 && id < (*tokenizer)->vocabulary_size());
    }
    CONVENE_CHECK(IsUtf8((*tokenizer)->Decode(ids, special_text == SpecialText::kAsText)));
  }
}

// A tokenizer_config.json, 0xFF, the ranks above the 256 bytes, 0xFF, a text.
void UseTiktoken(absl::string_view input) {
  const std::string config(TakePart(&input));
  const absl::string_view more = TakePart(&input);
  static const auto* const bytes = [] {
    auto* const lines = new std::string();
    for (int byte = 0; byte < 256; ++byte) {
      const std::string base64 = absl::Base64Escape(std::string(1, static_cast<char>(byte)));
      absl::StrAppend(lines, base64, " ", byte, "\n");
    }
    return lines;
  }();
  LooksLikeTiktoken(more);
  Use(ReadTiktoken(*bytes + std::string(more), config), input);
  Use(ReadTiktoken(more, config), input);
}

// A tekken.json, in which "@" stands for the entries of the 256 bytes; 0xFF; a text.
void UseTekken(absl::string_view input) {
  static const auto* const bytes = [] {
    auto* const entries = new std::string();
    for (int byte = 0; byte < 256; ++byte) {
      const std::string base64 = absl::Base64Escape(std::string(1, static_cast<char>(byte)));
      absl::StrAppend(entries, byte == 0 ? "" : ",", R"({"rank":)", byte, R"(,"token_bytes":")",
                      base64, R"(","token_str":null})");
    }
    return entries;
  }();
  const std::string file = absl::StrReplaceAll(TakePart(&input), {{"\"@\"", *bytes}});
  LooksLikeTekken(file);
  Use(ReadTekken(file), input);
}

void UseTokenizerJson(absl::string_view input) {
  const std::string config(TakePart(&input));
  const absl::string_view file = TakePart(&input);
  Use(ReadTokenizerJson(file, config), input);
}

// The text's length, the text, the model.
void UseSentencePiece(absl::string_view input) {
  if (input.empty()) return;
  const size_t size = static_cast<unsigned char>(input[0]);
  const absl::string_view text = input.substr(1, size);
  const absl::string_view file = input.substr(1 + text.size());
  LooksLikeSentencePiece(file);
  Use(ReadSentencePiece(file), text);
}

// A pattern, 0xFF, a text: the matches are in order, within the text, and none is empty.
void UsePattern(absl::string_view input) {
  const std::string regex(TakePart(&input));
  std::string text;
  AppendAsUtf8(input, Replacement::kMaximalSubpart, &text);
  const auto dialect = regex.size() % 2 == 0 ? PatternDialect::kOniguruma : PatternDialect::kRust;
  const auto pattern = MakeSplitPattern(regex, dialect);
  if (!pattern.ok()) return;
  std::vector<TextRange> buffer;
  size_t at = 0;
  (*pattern)->ForEach(text, &buffer, [&](const TextRange& match) {
    CONVENE_CHECK(match.begin >= at && match.end > match.begin && match.end <= text.size());
    at = match.end;
  });
}

using Reader = void (*)(absl::string_view);
constexpr Reader kReaders[] = {UseTiktoken, UseTekken, UseTokenizerJson, UseSentencePiece,
                               UsePattern};

}  // namespace
}  // namespace convene::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace worker = convene::worker;
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  if (input.empty()) return 0;
  const auto reader = static_cast<unsigned char>(input[0]);
  worker::kReaders[reader % std::size(worker::kReaders)](input.substr(1));
  return 0;
}
