// The "pre_tokenizer" of a tokenizer.json: cuts text into the pieces that the model sees.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/json/json_node.h"
#include "worker_runtime/tokenizer/split_pattern.h"

namespace convene::worker {

struct TextPiece {
  absl::string_view text;  // UTF-8, not empty
  size_t at_start = 0;     // so many bytes of it come from the document's first character
};

using TakePiece = absl::FunctionRef<void(const TextPiece&)>;

// Cuts or rewrites each piece alone: no step sees the neighbours of a piece. Read-only and
// thread-safe.
class PreTokenizerStep {
 public:
  // Buffers of one step, for one thread.
  struct Scratch {
    std::string text;
    std::vector<TextRange> matches;
  };

  virtual ~PreTokenizerStep() = default;

  // Gives `take` what becomes of the piece, in order. A piece holds until take returns.
  virtual void Apply(const TextPiece& piece, Scratch* scratch, TakePiece take) const = 0;
};

// Read-only and thread-safe.
class PreTokenizer {
 public:
  // One for each step: each piece runs through all steps before the next one is cut off, so that
  // the pieces of a long document never lie in memory together.
  using Scratch = std::vector<PreTokenizerStep::Scratch>;

  // `node`: the file's "pre_tokenizer", absent where that is null. InvalidArgument, Unimplemented.
  static absl::StatusOr<PreTokenizer> Read(const std::optional<JsonNode>& node);

  // Whether all pieces come out in GPT-2's spelling of bytes, and that is the last thing done.
  bool ends_in_spelling() const { return ends_in_spelling_; }
  // Pieces then come out as bytes; for a model that takes them so. REQUIRES: ends_in_spelling().
  void LeaveOutSpelling();

  // Gives `take` the pieces of `text`, which may be empty, in order.
  void Apply(const TextPiece& text, Scratch* scratch, TakePiece take) const {
    scratch->resize(steps_.size());
    if (!text.text.empty()) ApplyFrom(0, text, scratch, take);
  }

 private:
  void ApplyFrom(size_t step, const TextPiece& piece, Scratch* scratch, TakePiece take) const;

  std::vector<std::unique_ptr<PreTokenizerStep>> steps_;
  bool ends_in_spelling_ = false;
};

}  // namespace convene::worker
