// Part of BpeModel: its tables, made from a model file.
#include <algorithm>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/sentencepiece/bpe.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// To find a piece's halves takes bytes * characters steps. Real vocabularies take 10^8 at most.
constexpr uint64_t kMostSteps = 2'000'000'000;

bool IsMergeable(const ModelPiece& piece) {
  return piece.type == PieceType::kNormal || piece.type == PieceType::kUnused;
}

// Highest scores first; equal scores have one rank.
std::vector<int32_t> RanksOf(const std::vector<ModelPiece>& pieces) {
  std::vector<float> scores;
  for (const ModelPiece& piece : pieces) {
    if (IsMergeable(piece)) scores.push_back(piece.score);
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  std::vector<int32_t> ranks(pieces.size(), 0);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!IsMergeable(pieces[i])) continue;
    ranks[i] = static_cast<int32_t>(
        std::lower_bound(scores.begin(), scores.end(), pieces[i].score, std::greater<>()) -
        scores.begin());
  }
  return ranks;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::Make(const ModelFile& model,
                                                         const ByteTrie* user_symbols) {
  std::unique_ptr<BpeModel> bpe(new BpeModel(model, user_symbols));
  CONVENE_RETURN_IF_ERROR(bpe->Build(model));
  return bpe;
}

absl::Status BpeModel::Build(const ModelFile& model) {
  uint64_t steps = 0;
  for (const ModelPiece& piece : model.pieces) {
    if (!IsMergeable(piece)) continue;
    const uint64_t characters = CountCharacters(piece.text);
    steps += characters * piece.text.size();
    // An UNUSED piece is merged once more, by looking at all its pairs for each merge.
    if (piece.type == PieceType::kUnused) steps += 8 * characters * characters;
  }
  if (steps > kMostSteps) {
    return absl::InvalidArgumentError(
        "has more and longer pieces than any vocabulary that we know: the file is damaged, or made "
        "to keep this program busy");
  }
  symbols_.resize(model.pieces.size());
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const ModelPiece& piece = model.pieces[i];
    symbols_[i].bytes = static_cast<uint32_t>(piece.text.size());
    // An UNUSED character is unknown, as of SentencePiece 0.2.3.
    symbols_[i].is_known =
        piece.type == PieceType::kNormal || piece.type == PieceType::kUserDefined;
    if (piece.type == PieceType::kUserDefined) {
      begins_user_symbol_[static_cast<unsigned char>(piece.text[0])] = true;
    }
    if (IsMergeable(piece)) SetJoins(piece.text);
  }
  const std::vector<PairMerges::Merge> merges = FindMerges(model);
  merges_ = std::make_unique<PairMerges>(merges);
  ExpandUnused(model, merges);
  return absl::OkStatus();
}

void BpeModel::SetJoins(absl::string_view piece) {
  const char* const end = piece.data() + piece.size();
  const char* at = piece.data();
  char32_t left = NextOfValid(&at, end);
  while (at < end) {
    const char32_t right = NextOfValid(&at, end);
    joins_.Add(HashOfPair(left, right));
    left = right;
  }
}

// USER_DEFINED pieces take part in no merge: wherever the text has one, it is found whole before
// the merges, and the whole is frozen.
std::vector<PairMerges::Merge> BpeModel::FindMerges(const ModelFile& model) {
  absl::flat_hash_map<absl::string_view, int32_t> symbol_of;
  symbol_of.reserve(model.pieces.size());
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (IsMergeable(model.pieces[i])) symbol_of[model.pieces[i].text] = static_cast<int32_t>(i);
  }
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (!IsMergeable(model.pieces[i])) continue;
    const absl::string_view text = model.pieces[i].text;
    for (const char* at = text.data(); at < text.data() + text.size();) {
      const char* const begin = at;
      const char32_t character = NextOfValid(&at, text.data() + text.size());
      const absl::string_view own_text(begin, static_cast<size_t>(at - begin));
      const auto extra = static_cast<int32_t>(symbols_.size());
      const auto [found, is_new] = symbol_of.try_emplace(own_text, extra);
      if (is_new) symbols_.push_back({.bytes = static_cast<uint32_t>(own_text.size())});
      characters_.Set(character, found->second);
    }
  }
  const std::vector<int32_t> ranks = RanksOf(model.pieces);
  std::vector<PairMerges::Merge> merges;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (!IsMergeable(model.pieces[i])) continue;
    const absl::string_view text = model.pieces[i].text;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((text[cut] & 0xC0) == 0x80) continue;  // within a character
      const auto left = symbol_of.find(text.substr(0, cut));
      if (left == symbol_of.end()) continue;
      const auto right = symbol_of.find(text.substr(cut));
      if (right == symbol_of.end()) continue;
      merges.push_back({left->second, right->second, static_cast<int32_t>(i), ranks[i]});
    }
  }
  return merges;
}

// SentencePiece lets UNUSED pieces be merged, and takes the result apart again into the pair that
// it was last made of (`rev_merge` in bpe_model.cc). The merges within a piece do not depend on the
// text around it, so that pair is always the same one, found here.
void BpeModel::ExpandUnused(const ModelFile& model, const std::vector<PairMerges::Merge>& merges) {
  std::vector<std::pair<int32_t, int32_t>> halves(symbols_.size(), {kOther, kOther});
  std::vector<bool> is_done(model.pieces.size());
  for (const PairMerges::Merge& merge : merges) {
    if (model.pieces[merge.merged].type != PieceType::kUnused) continue;
    if (is_done[merge.merged]) continue;
    is_done[merge.merged] = true;
    std::vector<int32_t> parts;
    const absl::string_view text = model.pieces[merge.merged].text;
    for (const char* at = text.data(); at < text.data() + text.size();) {
      parts.push_back(characters_.Find(NextOfValid(&at, text.data() + text.size())));
    }
    while (parts.size() > 2) {
      size_t best_place = 0;
      const PairMerges::Merge* best = nullptr;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const PairMerges::Merge* found = merges_->Find(parts[i], parts[i + 1]);
        if (found == nullptr || (best != nullptr && found->rank >= best->rank)) continue;
        best = found;
        best_place = i;
      }
      if (best == nullptr) break;
      parts[best_place] = best->merged;
      parts.erase(parts.begin() + static_cast<ptrdiff_t>(best_place) + 1);
    }
    // Otherwise no text ever merges into this piece.
    if (parts.size() == 2) halves[merge.merged] = {parts[0], parts[1]};
  }
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (halves[i].first == kOther) continue;
    Symbol& symbol = symbols_[i];
    symbol.expansion_begin = static_cast<uint32_t>(expansions_.size());
    std::vector<int32_t> open = {static_cast<int32_t>(i)};
    while (!open.empty()) {
      const int32_t part = open.back();
      open.pop_back();
      if (halves[part].first == kOther) {
        expansions_.push_back(part);
      } else {
        open.push_back(halves[part].second);
        open.push_back(halves[part].first);
      }
    }
    symbol.expansion_end = static_cast<uint32_t>(expansions_.size());
  }
}

}  // namespace convene::worker
