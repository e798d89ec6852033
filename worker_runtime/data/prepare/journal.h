// PURE. How far the making of a token file has come, as a text that a later process goes on from.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/data/prepare/chunk_reader.h"
#include "worker_runtime/data/prepare/options.h"

namespace convene::worker {

struct PrepareJournal {
  uint64_t key = 0;            // of the input, the tokenizer and the options
  InputPosition position;      // all before it is in the part
  PrepareSummary summary;      // so far; `tokens` and `documents` are the writer's
  int64_t seen_documents = 0;  // hashes that stand in their file
  std::string writer_state;    // TokenFileWriter::Sync
  friend bool operator==(const PrepareJournal&, const PrepareJournal&) = default;
};

// Lines "name value", the last one a checksum of those before it.
std::string JournalText(const PrepareJournal& journal);

// DataLoss: not such a text, or not a whole one.
absl::StatusOr<PrepareJournal> ParseJournal(absl::string_view text);

}  // namespace convene::worker
