// Compares with what SentencePiece itself gave (golden/make_golden.py).
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/tokenizer/sentencepiece/model.h"

namespace convene::worker {
namespace {

constexpr char kFolder[] = "worker_runtime/tokenizer/sentencepiece/golden";

std::vector<int32_t> ParseIds(absl::string_view text) {
  std::vector<int32_t> ids;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    int32_t id = 0;
    REQUIRE(absl::SimpleAtoi(word, &id));
    ids.push_back(id);
  }
  return ids;
}

// Checks all calls of one file; the first ten that differ are shown.
void CheckModel(const std::string& folder, const std::string& name) {
  CAPTURE(name);
  const auto proto = ReadFile(folder + "/" + name + ".model");
  REQUIRE_OK(proto);
  CHECK(LooksLikeSentencePiece(proto->substr(0, 16)));
  const auto tokenizer = ReadSentencePiece(*proto);
  REQUIRE_OK(tokenizer);
  const auto golden = ReadFile(folder + "/" + name + ".golden");
  REQUIRE_OK(golden);
  // One encoder for all texts: what it keeps of one must not show in the next.
  const std::unique_ptr<Encoder> encoder = (*tokenizer)->NewEncoder(SpecialText::kAsText);
  size_t calls = 0, wrong = 0;
  const std::vector<std::string> lines = absl::StrSplit(*golden, '\n', absl::SkipEmpty());
  for (const std::string& line : lines) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    REQUIRE(parts.size() == 3);
    const bool encodes = parts[0] == "E";
    const std::string text = absl::HexStringToBytes(parts[encodes ? 1 : 2]);
    const std::vector<int32_t> ids = ParseIds(parts[encodes ? 2 : 1]);
    ++calls;
    std::vector<int32_t> got_ids;
    if (encodes) encoder->Encode(text, &got_ids);
    const std::string got_text = encodes ? text : (*tokenizer)->Decode(ids, false);
    if ((!encodes || got_ids == ids) && got_text == text) continue;
    if (++wrong > 10) continue;
    CAPTURE(absl::CHexEscape(text));
    if (encodes) {
      CHECK(absl::StrJoin(got_ids, " ") == parts[2]);
    } else {
      CHECK(absl::CHexEscape(got_text) == absl::CHexEscape(text));
    }
  }
  CHECK(calls > 100);
  CHECK(wrong == 0);
}

TEST_CASE("Small models of all kinds give SentencePiece's ids and texts") {
  const auto files = ListDirectory(kFolder);
  REQUIRE_OK(files);
  size_t models = 0;
  for (const std::string& file : *files) {
    if (!absl::EndsWith(file, ".golden")) continue;
    ++models;
    CheckModel(kFolder, file.substr(0, file.size() - 7));
  }
  CHECK(models == 11);
}

TEST_CASE("Real models give SentencePiece's ids and texts") {
  const char* const folder = std::getenv("CONVENE_SENTENCEPIECE_GOLDEN");
  if (folder == nullptr) {
    WARN(
        "Skipped: no real models here. `golden/make_golden.py real FOLDER MODEL...` makes a folder"
        " of them; name it in CONVENE_SENTENCEPIECE_GOLDEN.");
    return;
  }
  const auto files = ListDirectory(folder);
  REQUIRE_OK(files);
  for (const std::string& file : *files) {
    if (absl::EndsWith(file, ".golden")) CheckModel(folder, file.substr(0, file.size() - 7));
  }
}

}  // namespace
}  // namespace convene::worker
