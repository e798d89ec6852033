// The matches of tokenizers (Oniguruma) and tiktoken (Rust), as tests/tokenizers/pattern_sets.py
// wrote them.
#include <zlib.h>
#include <catch2/catch.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/pcre_pattern.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// In which one character is as the next, so that each 64th will do here; the script's other runs
// have all of them.
constexpr std::pair<char32_t, char32_t> kBulk[] = {
    {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xAC00, 0xD7A3},   {0xE000, 0xF8FF},
    {0x12550, 0x12F8F}, {0x14647, 0x160FF}, {0x17000, 0x1AFEF}, {0x20000, 0x323AF}};

bool IsLeftOut(char32_t character) {
  for (const auto& [first, last] : kBulk) {
    if (character > first && character < last && (character - first) % 64 != 0) return true;
  }
  return false;
}

// The script's texts of characters: each alone, and each behind an 'a'.
std::map<std::string, std::string> Texts() {
  std::map<std::string, std::string> texts;
  for (const auto& [first, last] : {std::pair<char32_t, char32_t>(0, 0xD7FF),
                                    {0xE000, 0x323FF},
                                    {0xE0000, 0xE01FF},
                                    {0x10FFF0, 0x10FFFF}}) {
    for (char32_t character = first; character <= last; ++character) {
      if (IsLeftOut(character)) continue;
      AppendCharacter(character, &texts["each"]);
      if (character == 'a' || character == ' ') continue;
      texts["behind"] += "a";
      AppendCharacter(character, &texts["behind"]);
      texts["behind"] += " ";
    }
  }
  return texts;
}

// The same without what unicode_changes.h has: another pattern matches there.
std::string WithoutChanged(const std::string& text, size_t characters_of_part) {
  std::string kept;
  const char* place = text.data();
  const char* const end = place + text.size();
  while (place < end) {
    const char* const begin = place;
    for (size_t i = 0; i < characters_of_part; ++i) NextOfValid(&place, end);
    const absl::string_view part(begin, static_cast<size_t>(place - begin));
    if (!HasChangedCharacter(part)) kept.append(part.data(), part.size());
  }
  return kept;
}

absl::StatusOr<std::vector<std::string>> Matches(const std::string& regex, PatternDialect dialect,
                                                 const std::string& text) {
  const auto pattern = MakePcrePattern(regex, dialect);
  if (!pattern.ok()) return pattern.status();
  std::vector<TextRange> ranges, buffer, faster;
  (*pattern)->FindSome(text, 0, text.size() + 1, &ranges);
  (*pattern)->ForEach(text, &buffer, [&](const TextRange& range) { faster.push_back(range); });
  CHECK((ranges == faster));
  std::vector<std::string> matches;
  for (const TextRange& range : ranges) {
    matches.push_back(text.substr(range.begin, range.end - range.begin));
  }
  return matches;
}

void CheckCase(const std::vector<JsonNode>& row, PatternDialect dialect) {
  const auto found = Matches(*row[2].String(), dialect, *row[3].String());
  const bool is_refused = row[4].value().IsNull();
  CHECK(found.ok() == !is_refused);
  if (!found.ok() || is_refused) return;
  std::vector<std::string> expected;
  const std::vector<JsonNode> matches = *row[4].Elements();
  for (const JsonNode& match : matches) expected.push_back(*match.String());
  CHECK(*found == expected);
}

TEST_CASE("all that a pattern may have matches what the originals match, over all characters") {
  const auto golden = ReadFile("worker_runtime/tokenizer/pattern/golden/matches.jsonl");
  REQUIRE_OK(golden);
  const std::map<std::string, std::string> texts = Texts();
  const std::map<std::string, std::string> fast_texts = {
      {"each", WithoutChanged(texts.at("each"), 1)},
      {"behind", WithoutChanged(texts.at("behind"), 3)}};
  int rows = 0;
  for (const absl::string_view line : absl::StrSplit(*golden, '\n', absl::SkipEmpty())) {
    INFO(std::string(line));
    const auto json = JsonDocument::Parse(line);
    REQUIRE_OK(json);
    const std::vector<JsonNode> row = *json->root().Elements();
    const PatternDialect dialect =
        *row[0].String() == "rust" ? PatternDialect::kRust : PatternDialect::kOniguruma;
    ++rows;
    if (*row[1].String() == "case") {
      CheckCase(row, dialect);
      continue;
    }
    const auto found = Matches(*row[2].String(), dialect, texts.at(*row[1].String()));
    REQUIRE_OK(found);
    CHECK_OK(Matches(*row[2].String(), dialect, fast_texts.at(*row[1].String())));
    std::string all;
    for (const std::string& match : *found) all += match;
    CHECK(static_cast<int64_t>(all.size()) == *row[3].Number(INT64_C(1) << 40));
    CHECK(static_cast<int64_t>(crc32(0, reinterpret_cast<const Bytef*>(all.data()),
                                     static_cast<uInt>(all.size()))) ==
          *row[4].Number(INT64_C(1) << 40));
  }
  CHECK(rows > 800);
}

}  // namespace
}  // namespace convene::worker
