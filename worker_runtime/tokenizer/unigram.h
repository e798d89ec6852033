// The unigram language model's best segmentation (Kudo 2018, section 3.2), for SentencePiece models
// and tokenizer.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace convene::worker {

// Read-only and thread-safe.
class UnigramLattice {
 public:
  struct Piece {
    std::string text;
    double score = 0;
    bool is_user_defined = false;  // SentencePiece's rule for its score
    bool is_used = true;  // may be part of a segmentation (not CONTROL, UNKNOWN, UNUSED, BYTE)
  };
  // Piece i has id i. `unknown_id` < 0: there is none.
  UnigramLattice(std::vector<Piece> pieces, int32_t unknown_id);

  // Buffers of Segment, for one thread.
  struct Scratch;

  struct Segment {
    size_t begin = 0, end = 0;  // bytes of the text
    int32_t id = 0;             // unknown_id for a character that no piece begins with
  };
  // The segmentation with the highest sum of scores; of equal ones the first found, as
  // SentencePiece does. Linear in the text's length times the longest piece's. `text` must be
  // UTF-8.
  void Best(absl::string_view text, std::vector<Segment>* segments, Scratch* scratch) const;
};

}  // namespace convene::worker
