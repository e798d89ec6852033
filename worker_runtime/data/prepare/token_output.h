// Takes encoded chunks in order and makes a token file of them, with a journal from which a later
// process goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/base/clock.h"
#include "worker_runtime/data/prepare/chunk_reader.h"
#include "worker_runtime/data/prepare/journal.h"
#include "worker_runtime/data/prepare/options.h"
#include "worker_runtime/data/prepare/record_encoder.h"
#include "worker_runtime/data/prepare/seen_documents.h"
#include "worker_runtime/data/prepare/sources.h"
#include "worker_runtime/data/store/token_file.h"

namespace convene::worker {

// Until Finish the token file is "`path`.partial" (and what TokenFileWriter keeps beside it), with
// "`path`.journal" and, where documents are compared, "`path`.hashes". One process at a time may
// have a path. Not thread-safe.
class TokenOutput {
 public:
  // Writes the file that is to have the name, under another one, from the whole part.
  using Rewrite = std::function<absl::Status(const TokenSource& part, const std::string& path)>;
  struct Options {
    std::string path;
    TokenFileInfo info;
    Rewrite rewrite;           // null: the part itself gets the name
    uint64_t journal_key = 0;  // of all that decides about the file's bytes
    bool dedupe = false;
    int64_t max_bad_lines = 0;
    absl::Duration journal_interval = absl::Seconds(5);
    Clock* clock = &Clock::Real();
  };
  // Goes on from a journal with the same key, or begins anew; a warning says of which part that is
  // the end, and why. Errors: TokenFileWriter::Create's,
  // which leave no file; and those of a disk that keeps a part from being read, which leave the
  // part as it is.
  static absl::StatusOr<TokenOutput> Open(Options options);

  // Where reading begins.
  const InputPosition& position() const { return journal_.position; }
  const PrepareSummary& summary() const { return journal_.summary; }

  // `source`: the chunk's file, for the words. InvalidArgument: a broken line beyond max_bad_lines.
  // Else as TokenFileWriter.
  absl::Status Take(const SourceFile& source, const EncodedChunk& chunk);

  // Puts the file under its name. InvalidArgument: it has no document.
  absl::Status Finish();

  // Writes a journal for all that was taken. After an error of Take or of the disk, the last one
  // stays as it is.
  absl::Status Sync();

  // Whether a later call can go on from here.
  bool can_resume() const;

  // Removes all files but a finished one.
  static void Discard(const std::string& path);

 private:
  explicit TokenOutput(Options options) : options_(std::move(options)) {}
  absl::Status Resume();
  absl::Status BeginAnew();
  absl::Status CountBadLine(const SourceFile& source, const EncodedRecord& record);
  absl::Status Add(const EncodedChunk& chunk, size_t record_index, size_t ids_begin);

  Options options_;
  std::optional<TokenFileWriter> writer_;
  std::optional<SeenDocuments> seen_;
  PrepareJournal journal_;
  bool is_whole_ = false;  // the part: only its name is missing
  MonotonicTime last_sync_;
};

}  // namespace convene::worker
