// The unigram language model's best segmentation (Kudo 2018, section 3.2), for SentencePiece models
// and tokenizer.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker_runtime/tokenizer/byte_trie.h"

namespace convene::worker {

// PURE, read-only once built, thread-safe.
class UnigramLattice {
 public:
  struct Piece {
    std::string text;  // UTF-8
    double score = 0;
    bool is_user_defined = false;  // its score follows from its length
    bool is_used = true;           // SentencePiece: not CONTROL, UNKNOWN, UNUSED or BYTE
  };

  // Whose arithmetic: sums are kept in another width, so near ties fall otherwise.
  enum class Rules {
    // unigram_model.cc, EncodeOptimized, as of 0.2.3: scores and sums are float, summed over the
    // whole text; where the sum falls below -100,000, it is taken off all sums from there on. An
    // unknown character scores the lowest score of an ordinary piece - 10, a user
    // defined piece 0.1 for each byte after its first.
    kSentencePiece,
    // tokenizers, models/unigram: sums in double; unknown = the lowest score of all pieces - 10.
    kHuggingFace,
  };

  // Piece i has id i; of equal texts the last counts. `unknown_id` < 0: there is none.
  UnigramLattice(const std::vector<Piece>& pieces, int32_t unknown_id, Rules rules);

  struct Segment {
    size_t begin = 0, end = 0;  // bytes of the text
    int32_t id = 0;             // unknown_id for a character that is no piece
    friend bool operator==(const Segment&, const Segment&) = default;
  };

  // Buffers of Best, for one thread.
  struct Scratch {
    template <typename Sum>
    struct Node {  // the best way to one end
      Sum score;
      int32_t id;
      uint32_t length;  // bytes of its last segment; 0: no way known
    };
    std::vector<Node<float>> floats;
    std::vector<Node<double>> doubles;
  };

  // Appends the segmentation of `text`, valid UTF-8, with the highest sum of scores; of equal ones
  // the one whose last segment begins first. Unknown characters next to each other stay apart. Time
  // is linear in the text's length times the longest piece's; the buffers grow with the longest
  // stretch that pieces can overlap on, not with the text.
  void Best(absl::string_view text, std::vector<Segment>* segments, Scratch* scratch) const;

 private:
  template <typename Sum>
  void BestWith(absl::string_view text, std::vector<Segment>* segments,
                std::vector<Scratch::Node<Sum>>* nodes) const;

  ByteTrie trie_;
  std::vector<double> scores_;  // by id
  int32_t unknown_id_;
  double unknown_score_ = 0;
  Rules rules_;
};

}  // namespace convene::worker
