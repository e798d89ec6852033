// Input files of `convene data prepare`: packed or not, cut into records, and one text of each JSON
// line. The first byte of an input chooses what the rest is.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/check.h"
#include "tools/base/files.h"
#include "tools/base/unique_fd.h"
#include "worker_runtime/data/prepare/chunk_reader.h"
#include "worker_runtime/data/prepare/journal.h"
#include "worker_runtime/data/prepare/json_field.h"
#include "worker_runtime/data/prepare/sources.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// A text that is found is UTF-8, and shorter than its line.
void ReadLine(absl::string_view line) {
  for (const std::string path : {"text", "a.text"}) {
    JsonField field(path);
    const absl::StatusOr<absl::string_view> text = field.Find(line);
    if (text.ok()) CONVENE_CHECK(text->size() < line.size() && IsUtf8(*text));
  }
}

// A journal that is read is written as it was.
void ReadJournal(absl::string_view text) {
  const absl::StatusOr<PrepareJournal> journal = ParseJournal(text);
  if (journal.ok()) CONVENE_CHECK(*ParseJournal(JournalText(*journal)) == *journal);
}

// The records, each behind its line; empty where the file cannot be read to its end.
std::string RecordsOf(const SourceFile& source, const RecordRules& rules) {
  const auto reader = ChunkReader::Open(source, {}, rules);
  if (!reader.ok()) return "";
  std::string records;
  Chunk chunk;
  while (!chunk.is_last_of_file) {
    if (!(*reader)->Next(&chunk).ok()) return "";
    for (const Record& record : chunk.records) {
      CONVENE_CHECK(record.begin + record.size <= chunk.text.size());
      absl::StrAppend(&records, record.line, record.is_too_long ? "!" : ":",
                      absl::string_view(chunk.text).substr(record.begin, record.size), "\n");
    }
  }
  return records;
}

// Where chunks end does not change the records.
void ReadFile(absl::string_view content, const std::string& separator) {
  const UniqueFd fd(memfd_create("input", MFD_CLOEXEC));
  const std::string path = absl::StrCat("/proc/self/fd/", fd.get());
  if (!WriteAll(fd.get(), content, path).ok()) return;
  const auto sources = ListSources({path});
  if (!sources.ok()) return;
  RecordRules rules = {.is_json_lines = separator == "\n",
                       .separator = separator,
                       .max_document_bytes = 64,
                       .chunk_bytes = 1,
                       .part_bytes = 16};
  const std::string records = RecordsOf((*sources)[0], rules);
  if (separator.empty()) return;
  rules.chunk_bytes = 1 << 20;
  CONVENE_CHECK(RecordsOf((*sources)[0], rules) == records);
}

}  // namespace
}  // namespace convene::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      convene::worker::ReadLine(rest);
      break;
    case 1:
      convene::worker::ReadJournal(rest);
      break;
    case 2:
      convene::worker::ReadFile(rest, "\n");
      break;
    case 3:
      convene::worker::ReadFile(rest, "--");
      break;
    default:
      convene::worker::ReadFile(rest, "");
  }
  return 0;
}
