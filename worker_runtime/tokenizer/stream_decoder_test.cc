#include "worker_runtime/tokenizer/stream_decoder.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/tokenizer/byte_tokenizer.h"
#include "worker_runtime/tokenizer/tokenizer.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

using Ids = std::vector<int32_t>;

// Tokens as SentencePiece has them: Decode drops the spaces at the beginning.
class SpaceTokenizer : public Tokenizer {
 public:
  std::string kind() const override { return "test"; }
  uint64_t fingerprint() const override { return 0; }
  int vocabulary_size() const override { return 5; }
  std::unique_ptr<Encoder> NewEncoder(SpecialText) const override { return nullptr; }
  std::optional<int32_t> SpecialId(absl::string_view) const override { return std::nullopt; }
  std::string SpecialTextOf(int32_t id) const override { return id == 4 ? "<s>" : ""; }
  absl::Span<const int32_t> prefix() const override { return {}; }
  absl::Span<const int32_t> suffix() const override { return {}; }
  std::optional<int32_t> end_of_document() const override { return std::nullopt; }
  void AppendTokenBytes(int32_t id, std::string* bytes) const override {
    const char* const texts[] = {" ", "a", " b", "   "};
    if (id >= 0 && id < 4) bytes->append(texts[id]);
  }
  std::string Decode(absl::Span<const int32_t> ids, bool show_specials) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (show_specials) text += SpecialTextOf(id);
      AppendTokenBytes(id, &text);
    }
    return text.substr(std::min(text.size(), text.find_first_not_of(' ')));
  }
};

struct Streamed {
  std::vector<std::string> parts;
  std::string text;
};

Streamed Stream(const Tokenizer& tokenizer, const Ids& ids, bool show_specials) {
  StreamDecoder decoder(tokenizer, show_specials);
  Streamed streamed;
  for (const int32_t id : ids) streamed.parts.push_back(decoder.Add(id));
  streamed.parts.push_back(decoder.Finish());
  for (const std::string& part : streamed.parts) {
    CHECK(IsUtf8(part));
    streamed.text += part;
  }
  return streamed;
}

TEST_CASE("a character is shown when its last byte is there") {
  const std::unique_ptr<Tokenizer> bytes = MakeByteTokenizer();
  CHECK(Stream(*bytes, {'a', 0xF0, 0x9F, 0xA6, 0x99, 'b'}, false).parts ==
        std::vector<std::string>{"a", "", "", "", "\U0001f999", "b", ""});
  CHECK(Stream(*bytes, {0xF0, 0x9F}, false).parts == std::vector<std::string>{"", "", "\uFFFD"});
  CHECK(Stream(*bytes, {0xE2, 'x'}, false).parts == std::vector<std::string>{"", "\uFFFDx", ""});
  // A lead byte with which nothing goes on is shown when that is sure, also in a run of them.
  CHECK(Stream(*bytes, {0xE2, 0xE2, 0x82, 0xF0, 0xF0}, false).parts ==
        std::vector<std::string>{"", "\uFFFD", "", "\uFFFD", "\uFFFD", "\uFFFD"});
  CHECK(Stream(*bytes, {0xE2, 1000, 0x82, -1, 0xAC}, false).text == "\u20ac");
}

TEST_CASE("the parts together are what Decode makes of all ids") {
  const std::unique_ptr<Tokenizer> bytes = MakeByteTokenizer();
  const SpaceTokenizer spaces;
  std::mt19937 random(2);
  const Ids alphabet = {'a', 0x80, 0xBF, 0xC2, 0xE2, 0x82, 0xAC, 0xED, 0xF0, 0x9F, 0xF4, 0x90, 300};
  for (int round = 0; round < 2'000; ++round) {
    Ids of_bytes, of_spaces;
    const size_t size = random() % 12;
    for (size_t i = 0; i < size; ++i) {
      of_bytes.push_back(alphabet[random() % alphabet.size()]);
      of_spaces.push_back(static_cast<int32_t>(random() % 5));
    }
    REQUIRE(Stream(*bytes, of_bytes, false).text == bytes->Decode(of_bytes, false));
    for (const bool show_specials : {false, true}) {
      REQUIRE(Stream(spaces, of_spaces, show_specials).text ==
              spaces.Decode(of_spaces, show_specials));
    }
  }
}

TEST_CASE("special tokens are hidden, or shown as they come") {
  const SpaceTokenizer spaces;
  CHECK(Stream(spaces, {0, 4, 2, 4, 1}, false).parts ==
        std::vector<std::string>{"", "", "b", "", "a", ""});
  CHECK(Stream(spaces, {1, 4, 2}, true).parts == std::vector<std::string>{"a", "<s>", " b", ""});
}

}  // namespace
}  // namespace convene::worker
