// The "pre_tokenizer" of a tokenizer.json: cuts text into the pieces that the model sees.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/split_pattern.h"

namespace convene::worker {

// A text cut into pieces, none of them empty, in order and without overlap. Bytes between pieces
// are dropped.
struct Pieces {
  absl::string_view text;
  std::vector<TextRange> ranges;
  // Pieces that begin before this byte come from the document's first character.
  size_t at_start = 0;

  absl::string_view Text(const TextRange& range) const {
    return text.substr(range.begin, range.end - range.begin);
  }
};

// Buffers of pre-tokenizing, for one thread. A step that rewrites the text writes into the one of
// `texts` that the pieces are no view of.
struct PieceScratch {
  std::string texts[2];
  int free_text = 0;
  std::vector<TextRange> ranges, matches;
};

// Cuts each piece alone: no step sees the neighbours of a piece. Read-only and thread-safe.
class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  virtual void Apply(Pieces* pieces, PieceScratch* scratch) const = 0;
};

// Read-only and thread-safe.
class PreTokenizer {
 public:
  // `node`: the file's "pre_tokenizer", absent where that is null. InvalidArgument, Unimplemented.
  static absl::StatusOr<PreTokenizer> Read(const std::optional<JsonNode>& node);

  // Whether all pieces come out in GPT-2's spelling of bytes, and that is the last thing done.
  bool ends_in_spelling() const { return ends_in_spelling_; }
  // Pieces then come out as bytes; for a model that takes them so. REQUIRES: ends_in_spelling().
  void LeaveOutSpelling();

  // Replaces `pieces` by those of `text`, of which the first `at_start` bytes come from the
  // document's first character. They hold until the scratch is used again.
  void Apply(absl::string_view text, size_t at_start, Pieces* pieces, PieceScratch* scratch) const;

 private:
  absl::Status AddSteps(const JsonNode& node, int depth);

  std::vector<std::unique_ptr<PreTokenizerStep>> steps_;
  bool ends_in_spelling_ = false;
};

}  // namespace convene::worker
