#include "worker_runtime/data/prepare/journal.h"

#include <set>

#include "absl/numeric/int128.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/prepare/seen_documents.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

PrepareJournal Journal() {
  return {.key = 0xFEDCBA9876543210,
          .position = {.file = 3, .offset = 1 << 20, .line = 77, .is_in_document = true},
          .summary = {.documents = 10,
                      .tokens = 20,
                      .counted_tokens = 15,
                      .text_bytes = 30,
                      .duplicates = 4,
                      .empty_documents = 5,
                      .bad_lines = 1,
                      .first_bad_line = "a b.jsonl, line 7: \"x\"\nchecksum 00"},
          .seen_documents = 6,
          .writer_state = "state with spaces"};
}

TEST_CASE("a journal is read as it was written") {
  const PrepareJournal journal = Journal();
  const auto read = ParseJournal(JournalText(journal));
  REQUIRE_OK(read);
  CHECK(*read == journal);
}

TEST_CASE("a journal that was cut or changed anywhere is none") {
  const std::string text = JournalText(Journal());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] ^= 1;
    CHECK_STATUS(ParseJournal(changed), absl::StatusCode::kDataLoss, "journal");
    CHECK_STATUS(ParseJournal(text.substr(0, i)), absl::StatusCode::kDataLoss, "journal");
  }
}

TEST_CASE("hashes that were on the disk are known again, later ones are not") {
  TempDir dir;
  const std::string path = dir.File("hashes");
  auto seen = SeenDocuments::Create(path);
  REQUIRE_OK(seen);
  const auto hash = [](int i) { return absl::MakeUint128(i, i * 31); };
  for (int i = 0; i < 70'000; ++i) CHECK(seen->Insert(hash(i)));
  CHECK_FALSE(seen->Insert(hash(7)));
  REQUIRE_OK(seen->Sync());
  for (int i = 70'000; i < 70'010; ++i) CHECK(seen->Insert(hash(i)));
  REQUIRE_OK(seen->Sync());

  auto resumed = SeenDocuments::Resume(path, 70'000);
  REQUIRE_OK(resumed);
  CHECK(resumed->count() == 70'000);
  CHECK_FALSE(resumed->Insert(hash(69'999)));
  CHECK(resumed->Insert(hash(70'000)));
  REQUIRE_OK(resumed->Sync());
  CHECK(ReadFile(path)->size() == 70'001 * 16);
  CHECK_STATUS(SeenDocuments::Resume(path, 70'002), absl::StatusCode::kDataLoss,
               "does not hold 70002 hashes");
}

}  // namespace
}  // namespace convene::worker
