#include "worker_runtime/data/prepare/journal.h"

#include <xxhash.h>

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace convene::worker {
namespace {

constexpr char kTitle[] = "convene-prepare-journal 1\n";
constexpr char kChecksum[] = "checksum ";

// Calls `number(name, value)` and `text(name, value)` for each value of a journal, in the order of
// its lines.
template <typename Journal, typename Number, typename Text>
void ForEach(Journal* journal, const Number& number, const Text& text) {
  number("file", &journal->position.file);
  number("offset", &journal->position.offset);
  number("line", &journal->position.line);
  number("documents", &journal->summary.documents);
  number("tokens", &journal->summary.tokens);
  number("counted_tokens", &journal->summary.counted_tokens);
  number("text_bytes", &journal->summary.text_bytes);
  number("duplicates", &journal->summary.duplicates);
  number("empty_documents", &journal->summary.empty_documents);
  number("bad_lines", &journal->summary.bad_lines);
  number("seen_documents", &journal->seen_documents);
  text("first_bad_line", &journal->summary.first_bad_line);
  text("writer_state", &journal->writer_state);
}

std::string ChecksumOf(absl::string_view text) {
  return absl::StrCat(absl::Hex(XXH3_64bits(text.data(), text.size()), absl::kZeroPad16));
}

absl::Status NoJournal() { return absl::DataLossError("not a whole journal"); }

}  // namespace

std::string JournalText(const PrepareJournal& journal) {
  std::string text = absl::StrCat(kTitle, "key ", absl::Hex(journal.key, absl::kZeroPad16),
                                  "\nin_document ", journal.position.is_in_document ? 1 : 0, "\n");
  ForEach(
      &journal,
      [&](const char* name, const int64_t* value) {
        absl::StrAppend(&text, name, " ", *value, "\n");
      },
      [&](const char* name, const std::string* value) {
        absl::StrAppend(&text, name, " ", absl::CEscape(*value), "\n");
      });
  return absl::StrCat(text, kChecksum, ChecksumOf(text), "\n");
}

absl::StatusOr<PrepareJournal> ParseJournal(absl::string_view text) {
  const size_t checksum = text.rfind(kChecksum);
  if (checksum == absl::string_view::npos ||
      text.substr(checksum) !=
          absl::StrCat(kChecksum, ChecksumOf(text.substr(0, checksum)), "\n") ||
      !absl::ConsumePrefix(&text, kTitle)) {
    return NoJournal();
  }
  const std::vector<std::pair<absl::string_view, absl::string_view>> lines = [&] {
    std::vector<std::pair<absl::string_view, absl::string_view>> found;
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      found.push_back(absl::StrSplit(line, absl::MaxSplits(' ', 1)));
    }
    return found;
  }();
  PrepareJournal journal;
  bool is_whole = true;
  size_t next = 0;
  const auto value_of = [&](absl::string_view name) -> absl::string_view {
    if (next < lines.size() && lines[next].first == name) return lines[next++].second;
    is_whole = false;
    return "";
  };
  is_whole = absl::SimpleHexAtoi(value_of("key"), &journal.key) && is_whole;
  journal.position.is_in_document = value_of("in_document") == "1";
  ForEach(
      &journal,
      [&](const char* name, int64_t* value) {
        if (!absl::SimpleAtoi(value_of(name), value) || *value < 0) is_whole = false;
      },
      [&](const char* name, std::string* value) {
        if (!absl::CUnescape(value_of(name), value)) is_whole = false;
      });
  if (!is_whole) return NoJournal();
  return journal;
}

}  // namespace convene::worker
