#include "worker_runtime/data/prepare/chunk_reader.h"

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/prepare/testing/packed_files.h"
#include "worker_runtime/tokenizer/scanners.h"
#include "worker_runtime/tokenizer/split_pattern.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

const RecordRules kLines = {.is_json_lines = true, .max_document_bytes = 1000};

RecordRules Separated(const std::string& separator) {
  return {.separator = separator, .max_document_bytes = 1000};
}

// "1:text" for each record; "(" and ")" where a part of a text has no beginning or end in it. Each
// chunk's end is put into `ends`.
absl::StatusOr<std::vector<std::string>> Records(const SourceFile& source, const RecordRules& rules,
                                                 const InputPosition& start = {},
                                                 std::vector<InputPosition>* ends = nullptr) {
  auto reader = ChunkReader::Open(source, start, rules);
  if (!reader.ok()) return reader.status();
  std::vector<std::string> records;
  Chunk chunk;
  while (!chunk.is_last_of_file) {
    if (absl::Status status = (*reader)->Next(&chunk); !status.ok()) return status;
    for (const Record& record : chunk.records) {
      records.push_back(absl::StrCat(
          record.is_first ? "" : "(", record.line, ":",
          record.is_too_long ? "TOO LONG" : chunk.text.substr(record.begin, record.size),
          record.is_last ? "" : ")"));
    }
    if (ends != nullptr) ends->push_back(chunk.end);
  }
  CHECK(chunk.file_offset == source.bytes);
  CHECK(chunk.end == InputPosition{.file = start.file + 1});
  return records;
}

using Texts = std::vector<std::string>;

TEST_CASE("lines are records, with their numbers; blank ones are none") {
  TempDir dir;
  const auto records = [&](const std::string& content) {
    return *Records(PutSource(dir.File("f"), content), kLines);
  };
  CHECK(records("one\ntwo\n") == Texts{"1:one", "2:two"});
  CHECK(records("one\r\n\n \t\r\ntwo") == Texts{"1:one", "4:two"});
  CHECK(records("\xEF\xBB\xBFone\n\xEF\xBB\xBFtwo") == Texts{"1:one", "2:\xEF\xBB\xBFtwo"});
  CHECK(records("\n").empty());
}

TEST_CASE("a chunk of short records ends by their number") {
  TempDir dir;
  std::string lines;
  for (int i = 0; i < 10; ++i) absl::StrAppend(&lines, i, "\n");
  for (const std::string& content : {lines, lines.substr(0, lines.size() - 1)}) {
    const SourceFile source = PutSource(dir.File("f"), content);
    for (const size_t most : {1, 3, 5, 10, 11}) {
      INFO(most);
      RecordRules rules = kLines;
      rules.chunk_records = most;
      std::vector<InputPosition> ends;
      const auto records = Records(source, rules, {}, &ends);
      REQUIRE_OK(records);
      CHECK(*records == *Records(source, kLines));
      CHECK(ends.size() >= (records->size() + most - 1) / most);
      for (const InputPosition& end : ends) {
        if (end.file == 1) continue;
        const auto rest = Records(source, kLines, end);
        CHECK(*rest == Texts(records->begin() + (end.line - 1), records->end()));
      }
    }
  }
}

TEST_CASE("a separator stands between documents, and belongs to none") {
  TempDir dir;
  const auto records = [&](const std::string& content, const std::string& separator) {
    return *Records(PutSource(dir.File("f"), content), Separated(separator));
  };
  CHECK(records("one<end>two\n<end>", "<end>") == Texts{"1:one", "2:two\n"});
  CHECK(records("one\n\n\n\ntwo\n", "\n\n") == Texts{"1:one", "2:", "3:two\n"});
  CHECK(records("aaaa", "aa") == Texts{"1:", "2:"});
}

TEST_CASE("without a separator a file is one document, in parts if it is long") {
  TempDir dir;
  RecordRules rules = {.max_document_bytes = 5, .part_bytes = 16};
  const auto records = [&](const std::string& content) {
    return *Records(PutSource(dir.File("f"), content), rules);
  };
  CHECK(records("0123456789abcdef") == Texts{"1:0123456789abcdef"});
  CHECK(records("0123456789ab.\nxyz") == Texts{"1:0123456789ab.\n)", "(1:xyz"});
  CHECK(records("0123456789abcdefg") == Texts{"1:0123456789abcdef)", "(1:g"});
  CHECK(records("0123456789abcde\xC3\xA9") == Texts{"1:0123456789abcde)", "(1:\xC3\xA9"});
}

TEST_CASE("a text is cut where no token reaches over the cut") {
  const auto cut = [](const std::string& text) { return text.substr(0, CutOfText(text)); };
  CHECK(cut("one\ntwo\nthree\nfo") == "one\ntwo\nthree\n");
  CHECK(cut("word word word.\nn") == "word word word.\n");
  CHECK(cut("раз два,\nтри че") == "раз два,\n");
  CHECK(cut("一二三四。\n五六") == "一二三四。\n");
  // An empty line, a space, or a mark may belong to a token with what stands beside it.
  CHECK(cut("one two three\n\nfour") == "one two three");
  CHECK(cut("one two three\n four") == "one two three");
  CHECK(cut("one two three \nfour") == "one two three");
  CHECK(cut("one two three\n/four") == "one two three");
  CHECK(cut("one two three\r\nfour") == "one two three");
  CHECK(cut("раз два три\r\nчет") == "раз два три");
  CHECK(cut("-- -- -- --.\r\n--") == "-- -- -- --.\r\n-");
  // A character that is cut off is none, nor is a letter that stands for it.
  CHECK(cut("a-------\n\xD0") == "a-------\n");
  CHECK(cut("a-------\xD0\n--") == "a-------\xD0\n-");
  // Cuts too near the beginning would make many parts.
  CHECK(cut("a\nb                ") == "a\nb               ");
  CHECK(cut("\x80\x80\x80\x80\x80\x80") == "\x80\x80\x80\x80\x80\x80");
}

// The pieces into which the pattern cuts the text. The text between two matches is a piece too, but
// where the pattern is one of several steps: the next one cuts it.
Texts PiecesOf(const SplitPattern& pattern, bool is_step, absl::string_view text) {
  Texts pieces;
  std::vector<TextRange> matches;
  size_t at = 0;
  pattern.ForEach(text, &matches, [&](const TextRange& match) {
    if (!is_step && at < match.begin) pieces.emplace_back(text.substr(at, match.begin - at));
    pieces.emplace_back(text.substr(match.begin, match.end - match.begin));
    at = match.end;
  });
  if (!is_step && at < text.size()) pieces.emplace_back(text.substr(at));
  return pieces;
}

// By every pattern that has a scanner, the parts have the pieces of the whole.
void CheckCut(const std::string& text, size_t cut) {
  for (const absl::string_view regex : KnownPatterns()) {
    std::unique_ptr<SplitPattern> pattern = MakeScanner(regex, PatternDialect::kRust);
    if (pattern == nullptr) pattern = MakeScanner(regex, PatternDialect::kOniguruma);
    const bool is_step = !absl::StrContains(regex, "\\s");
    INFO(regex << " at " << cut << " of " << text);
    Texts pieces = PiecesOf(*pattern, is_step, text.substr(0, cut));
    for (std::string& piece : PiecesOf(*pattern, is_step, text.substr(cut))) {
      pieces.push_back(std::move(piece));
    }
    REQUIRE(pieces == PiecesOf(*pattern, is_step, text));
  }
}

TEST_CASE("a long text of any script is cut between lines or words, into the same tokens") {
  for (const std::string end : {"\n", "\r\n", " "}) {
    std::string text;
    while (text.size() < 20'000) text += "Москва, столица России: 1147 год" + end;
    const size_t cut = CutOfText(text.substr(0, 15'001));
    INFO("the cut is at " << cut);
    CHECK(cut > 15'000 - 100);
    const bool is_behind = absl::EndsWith(text.substr(0, cut), "\n");
    CHECK(is_behind == (end == "\n"));
    CHECK((is_behind || absl::ascii_isspace(text[cut])));
    CheckCut(text, cut);
  }
}

TEST_CASE("wherever a text is cut between lines or words, it has the same tokens") {
  const Texts parts = {
      "a",  "Б",  "ж",        "中",           "1",        "٣", ".", ",",    "'s",          "’",
      "/",  "-",  "é",        "e\xCC\x81",    "\xCC\x81", " ", " ", "\n",   "\n",          "\r\n",
      "\r", "\t", "\xC2\xA0", "\xE2\x80\xA8", "🙂",     "ǅ", "ʰ", "\x01", "\xEF\xBF\xBD"};
  std::mt19937 random(7);
  int cuts = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (int j = 0; j < 12; ++j) text += parts[random() % parts.size()];
    const size_t cut = CutOfText(text);
    // Elsewhere the cut is between any two characters.
    const auto is_space = [](char c) { return absl::ascii_isspace(c); };
    if (!is_space(text[cut]) && text[cut - 1] != '\n') continue;
    if (cut + 4 > text.size()) continue;
    ++cuts;
    CheckCut(text, cut);
  }
  CHECK(cuts > 5000);
}

TEST_CASE("a line that is too long is a record without text; a document between separators fails") {
  TempDir dir;
  const std::string content =
      "a\n" + std::string(1001, 'x') + "\nb\n" + std::string(2'000'000, 'y') + "\nc";
  const SourceFile source = PutSource(dir.File("f"), content);
  CHECK(*Records(source, kLines) == Texts{"1:a", "2:TOO LONG", "3:b", "4:TOO LONG", "5:c"});
  CHECK(*Records(PutSource(dir.File("e"), "a\n" + std::string(2'000'000, 'y')), kLines) ==
        Texts{"1:a", "2:TOO LONG"});
  CHECK(*Records(PutSource(dir.File("w"), "a\n" + std::string(1000, 'y')), kLines) ==
        Texts{"1:a", "2:" + std::string(1000, 'y')});
  CHECK_STATUS(Records(source, Separated("\n")), absl::StatusCode::kInvalidArgument,
               "document 2 of the file is longer than 1000 bytes");
}

TEST_CASE("from each chunk's end reading goes on with the same records") {
  TempDir dir;
  std::string lines, text;
  for (int i = 0; i < 3000; ++i) {
    absl::StrAppend(&lines, std::string(i * 37 % 301, 'a' + i % 26), i, "\n");
    absl::StrAppend(&text, "word", i, i % 3 == 0 ? ".\n" : " ");
  }
  lines += std::string(1'000'000, 'z');
  RecordRules small_lines = kLines;
  small_lines.chunk_bytes = 30'000;
  RecordRules separated = Separated("9\n");
  separated.max_document_bytes = 1'000'000'000;
  separated.chunk_bytes = 20'000;
  const RecordRules parts = {.max_document_bytes = 5, .part_bytes = 2000};
  const std::vector<std::pair<std::string, RecordRules>> cases = {
      {lines, small_lines}, {lines, separated}, {text, parts}};
  for (const auto& [content, rules] : cases) {
    for (const std::string& packed : {content, Gzip(content), Zstd(content)}) {
      const SourceFile source = PutSource(dir.File("f"), packed);
      std::vector<InputPosition> ends;
      const auto whole = Records(source, rules, {.file = 4}, &ends);
      REQUIRE_OK(whole);
      REQUIRE(ends.size() > 5);
      ends.pop_back();  // the file's end
      for (const InputPosition& end : ends) {
        const auto rest = Records(source, rules, end);
        REQUIRE_OK(rest);
        REQUIRE(rest->size() <= whole->size());
        CHECK(std::equal(rest->rbegin(), rest->rend(), whole->rbegin()));
      }
    }
  }
}

TEST_CASE("JSON lines are known by the name or by the first line") {
  TempDir dir;
  const auto look = [&](const std::string& name, const std::string& content) {
    return HoldsJsonLines(PutSource(dir.File(name), content), "text", 1'000'000);
  };
  const auto holds = [&](const std::string& name, const std::string& content) {
    const auto holds = look(name, content);
    REQUIRE_OK(holds);
    return *holds;
  };
  CHECK(holds("a.jsonl", "x"));
  CHECK(holds("a.JSON.gz", "x"));
  CHECK(holds("a.ndjson.zst", "x"));
  CHECK(holds("part-0", "{\"text\": \"x\"}"));
  CHECK(holds("part-1", "{\"text\": \"x\"}\nanything"));
  CHECK(holds("part-2", Gzip("{\"text\": \"x\"}\n{")));
  CHECK(holds("part-3", "\xEF\xBB\xBF{\"text\": \"x\"}\n{"));
  CHECK_FALSE(holds("a.txt", "{\"other\": \"x\"}\n"));
  CHECK_FALSE(holds("b.txt", "{\n\"text\": \"x\"}\n"));
  CHECK_FALSE(holds("c.txt", "text"));
  const auto of_length = [](size_t size) {
    return "{\"text\": \"" + std::string(size, 'x') + "\"}";
  };
  CHECK(holds("d.txt", of_length(900'000)));
  CHECK(holds("e.jsonlines.zstd", "x"));
  CHECK(holds("part-4", of_length(900'000) + "\n" + of_length(2'000'000)));
  CHECK_FALSE(holds("part-5", of_length(2'000'000)));
  // Julia.
  CHECK_FALSE(holds("f.jl", "function f(x)\n"));
  // Two objects are not by chance what a text begins with.
  const std::string other = "{\"id\": 1, \"content\": {\"a\": \"x\"}}\n{\"id\": 2}\n{";
  const auto refused = look("part-6", other);
  CHECK_STATUS(
      refused, absl::StatusCode::kInvalidArgument,
      dir.File("part-6") + " has JSON objects as lines, but the first has no field 'text'");
  CHECK_STATUS(refused, absl::StatusCode::kInvalidArgument, "(its keys: id, content)");
  CHECK_STATUS(refused, absl::StatusCode::kInvalidArgument, "--format text");
  CHECK_STATUS(look("part-7", "{\"messages\": []}\n{\"messages\": []}"),
               absl::StatusCode::kInvalidArgument, "--chat-template");
  CHECK_FALSE(holds("part-8", "{\"other\": 1}\nanything"));
  CHECK_FALSE(holds("part-9", "{\"other\": 1}\n\n{\"other\": 1}"));
}

}  // namespace
}  // namespace convene::worker
