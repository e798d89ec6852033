// The "decoder" of a tokenizer.json: makes text of the tokens' texts (tokenizers/src/decoders).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/json/json_node.h"

namespace convene::worker {

// One kind of rewriting. Read-only and thread-safe.
class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  // Rewrites the texts of tokens that stand one behind the other; each by itself, unless a step
  // does otherwise.
  virtual void Apply(std::vector<std::string>* tokens) const {
    for (std::string& token : *tokens) ApplyToOne(&token);
  }
  // Rewrites one token to the bytes that it stands for, whatever its neighbours.
  virtual void ApplyToOne(std::string* token) const = 0;
  // One byte becomes at most so many.
  virtual size_t growth() const { return 1; }
};

// Read-only and thread-safe.
class TokenDecoder {
 public:
  // `node`: the file's "decoder", absent where that is null. InvalidArgument, Unimplemented.
  static absl::StatusOr<TokenDecoder> Read(const std::optional<JsonNode>& node);

  std::string Decode(std::vector<std::string> tokens) const;
  // Without a decoder, that is, with spaces between tokens, the token itself.
  std::string Bytes(absl::string_view token) const;

 private:
  bool has_steps_ = false;  // an empty Sequence is a decoder, too
  std::vector<std::unique_ptr<DecoderStep>> steps_;
};

}  // namespace convene::worker
