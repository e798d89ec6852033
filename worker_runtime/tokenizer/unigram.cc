#include "worker_runtime/tokenizer/unigram.h"

#include <algorithm>
#include <cfloat>
#include <limits>
#include <utility>

#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

constexpr double kUnknownPenalty = 10;

// Below this SentencePiece 0.2.3 begins to count at 0 again, since float has few digits.
constexpr float kLowestSum = -100000;

ByteTrie TrieOf(const std::vector<UnigramLattice::Piece>& pieces) {
  std::vector<ByteTrie::Entry> entries;
  entries.reserve(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].is_used) entries.push_back({pieces[i].text, static_cast<int32_t>(i)});
  }
  return ByteTrie(std::move(entries));
}

}  // namespace

UnigramLattice::UnigramLattice(const std::vector<Piece>& pieces, int32_t unknown_id, Rules rules)
    : trie_(TrieOf(pieces)), unknown_id_(unknown_id), rules_(rules) {
  double lowest =
      rules == Rules::kSentencePiece ? FLT_MAX : std::numeric_limits<double>::infinity();
  scores_.reserve(pieces.size());
  for (const Piece& piece : pieces) {
    const double by_length = 0.1 * (static_cast<double>(piece.text.size()) - 1);
    scores_.push_back(piece.is_user_defined ? by_length : piece.score);
    if (piece.is_used && !piece.is_user_defined) lowest = std::min(lowest, piece.score);
  }
  unknown_score_ = lowest - kUnknownPenalty;
}

void UnigramLattice::Best(absl::string_view text, std::vector<Segment>* segments,
                          Scratch* scratch) const {
  if (rules_ == Rules::kSentencePiece) {
    BestWith(text, segments, &scratch->floats);
  } else {
    BestWith(text, segments, &scratch->doubles);
  }
}

template <typename Sum>
void UnigramLattice::BestWith(absl::string_view text, std::vector<Segment>* segments,
                              std::vector<Scratch::Node<Sum>>* nodes) const {
  // (*nodes)[i] is the best way to byte base + i. Every way runs through `base`, so all before it
  // is decided. No way known so far ends behind `reach`.
  size_t base = 0, reach = 0;
  nodes->assign(1, {0, unknown_id_, 0});
  const auto offer = [&](size_t begin, size_t end, int32_t id, Sum score) {
    if (end > reach) {
      nodes->resize(end - base + 1, {0, unknown_id_, 0});
      reach = end;
    }
    auto& node = (*nodes)[end - base];
    if (node.length != 0 && !(score > node.score)) return;
    node = {score, id, static_cast<uint32_t>(end - begin)};
  };
  const auto append_decided = [&](size_t end) {
    const size_t first = segments->size();
    for (size_t at = end; at > base;) {
      const auto& node = (*nodes)[at - base];
      segments->push_back({at - node.length, at, node.id});
      at -= node.length;
    }
    std::reverse(segments->begin() + static_cast<ptrdiff_t>(first), segments->end());
    nodes->assign(1, {nodes->back().score, unknown_id_, 0});
    base = end;
  };
  const auto unknown_score = static_cast<Sum>(unknown_score_);
  for (size_t begin = 0; begin < text.size();) {
    if (begin == reach && begin > base) append_decided(begin);
    Sum so_far = (*nodes)[begin - base].score;
    if (rules_ == Rules::kSentencePiece && so_far < kLowestSum) {
      for (size_t i = begin - base; i < nodes->size(); ++i) (*nodes)[i].score -= so_far;
      so_far = 0;
    }
    const size_t next = std::min(text.size(), begin + CharacterLength(text[begin]));
    bool is_character_a_piece = false;
    uint32_t node = ByteTrie::kRoot;
    for (size_t i = begin; i < text.size(); ++i) {
      if (!trie_.Step(&node, static_cast<unsigned char>(text[i]))) break;
      const int32_t id = trie_.value(node);
      if (id == ByteTrie::kNoValue) continue;
      offer(begin, i + 1, id, static_cast<Sum>(scores_[id]) + so_far);
      is_character_a_piece |= i + 1 == next;
    }
    if (!is_character_a_piece) offer(begin, next, unknown_id_, unknown_score + so_far);
    begin = next;
  }
  append_decided(text.size());
}

}  // namespace convene::worker
