#include "worker_runtime/data/prepare/report_text.h"

#include <catch2/catch.hpp>

namespace convene::worker {
namespace {

TEST_CASE("the end tells what is there, and what is not") {
  CHECK(SummaryText("a.bin", 32000, absl::Seconds(42),
                    {.documents = 1, .tokens = 2000, .counted_tokens = 2000, .text_bytes = 9000}) ==
        "a.bin: 1 document, 2,000 tokens of a vocabulary of 32,000, 8.8 KiB of text (4.50 bytes a "
        "token), in 0:42\n");
  CHECK(SummaryText("a.bin", 256, absl::Seconds(1),
                    {.documents = 2,
                     .tokens = 10,
                     .counted_tokens = 4,
                     .text_bytes = 10,
                     .duplicates = 2,
                     .empty_documents = 1,
                     .bad_lines = 1,
                     .first_bad_line = "data: x, line 3: no field 'text'",
                     .resumed = true}) ==
        "a.bin: 2 documents, 10 tokens of a vocabulary of 256, 10 B of text (1.00 bytes a token), "
        "4 tokens count in the loss, in 0:01 (went on from an earlier part)\n"
        "left out: 2 duplicates, 1 empty document, 1 broken line (the first: data: x, line 3: no "
        "field 'text')\n");
}

}  // namespace
}  // namespace convene::worker
