// Byte pair encoding whose tokens are byte strings: tiktoken's, tekken's, and ByteLevel BPE of
// tokenizer.json.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/pair_merges.h"
#include "worker_runtime/tokenizer/word_ids.h"

namespace convene::worker {

// Read-only and thread-safe.
class ByteBpe {
 public:
  // When the token that is exactly the piece is taken without any merging: always (tiktoken, and
  // ignore_merges of tokenizer.json), or never.
  enum class WholePieces { kFirst, kNever };

  // `tokens`: the bytes of each id; empty where an id has none, as special tokens have not. Of two
  // ids with the same bytes the last counts. A byte that is no token vanishes, as an unknown
  // character without unk_token does.
  ByteBpe(std::vector<std::string> tokens, PairMerges merges, WholePieces whole_pieces);

  // tiktoken's rule: of all neighbours those merge whose concatenation is the token with the lowest
  // id. InvalidArgument: two ids with the same bytes; a byte that is no token.
  static absl::StatusOr<std::unique_ptr<ByteBpe>> FromRanks(std::vector<std::string> tokens);

  ByteBpe(const ByteBpe&) = delete;
  ByteBpe& operator=(const ByteBpe&) = delete;

  // One thread's buffers, and its cache of short words (2 MiB).
  struct Scratch {
    WordIds</*kWords=*/2, /*kIds=*/4, /*kBits=*/15> short_words;
    WordIds</*kWords=*/4, /*kIds=*/8, /*kBits=*/14> words;
    std::vector<int32_t> symbols;
    PairMerges::Scratch merges;
  };

  // Appends the ids of one piece of text, any bytes.
  void Encode(absl::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const;

  // The bytes of each id; empty where an id has none.
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  void EncodeUnknownWord(absl::string_view piece, Scratch* scratch,
                         std::vector<int32_t>* ids) const;

  std::vector<std::string> tokens_;
  PairMerges merges_;
  std::array<int32_t, 256> byte_ids_;  // -1: no token
  // Empty with WholePieces::kNever. Its keys lie in tokens_.
  absl::flat_hash_map<absl::string_view, int32_t> id_of_piece_;
  size_t longest_piece_ = 0;
};

}  // namespace convene::worker
