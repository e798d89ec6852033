#include "worker_runtime/tokenizer/byte_bpe.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace convene::worker {
namespace {

using IdOfPiece = absl::flat_hash_map<absl::string_view, int32_t>;

// A token of n bytes has n - 1 cuts, each of which is hashed: squared time, hence a bound. The
// longest tokens in real files are runs of some hundred equal characters.
constexpr size_t kLongestToken = 1024;

// Each cut of each token into two tokens.
std::vector<PairMerges::Merge> AllSplits(const std::vector<std::string>& tokens,
                                         const IdOfPiece& id_of_piece) {
  std::vector<PairMerges::Merge> merges;
  for (size_t id = 0; id < tokens.size(); ++id) {
    const absl::string_view token = tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = id_of_piece.find(token.substr(0, cut));
      if (left == id_of_piece.end()) continue;
      const auto right = id_of_piece.find(token.substr(cut));
      if (right == id_of_piece.end()) continue;
      const auto merged = static_cast<int32_t>(id);
      merges.push_back({left->second, right->second, merged, merged});
    }
  }
  return merges;
}

}  // namespace

ByteBpe::ByteBpe(std::vector<std::string> tokens, PairMerges merges, WholePieces whole_pieces)
    : tokens_(std::move(tokens)), merges_(std::move(merges)) {
  byte_ids_.fill(-1);
  if (whole_pieces == WholePieces::kFirst) id_of_piece_.reserve(tokens_.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    const std::string& token = tokens_[id];
    if (token.empty()) continue;
    if (token.size() == 1)
      byte_ids_[static_cast<unsigned char>(token[0])] = static_cast<int32_t>(id);
    if (whole_pieces == WholePieces::kNever) continue;
    id_of_piece_[token] = static_cast<int32_t>(id);
    longest_piece_ = std::max(longest_piece_, token.size());
  }
}

absl::StatusOr<std::unique_ptr<ByteBpe>> ByteBpe::FromRanks(std::vector<std::string> tokens) {
  IdOfPiece id_of_piece;
  id_of_piece.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (tokens[id].empty()) continue;
    if (tokens[id].size() > kLongestToken) {
      return absl::InvalidArgumentError(absl::StrCat("token ", id, " has ", tokens[id].size(),
                                                     " bytes; ", kLongestToken, " is the most"));
    }
    const auto [first, is_new] = id_of_piece.emplace(tokens[id], static_cast<int32_t>(id));
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat("tokens ", first->second, " and ", id,
                                                     " have the same bytes, \"",
                                                     absl::CHexEscape(tokens[id]), "\""));
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto as_char = static_cast<char>(byte);
    if (!id_of_piece.contains(absl::string_view(&as_char, 1))) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "no token is the byte 0x%02X; byte level BPE needs all 256 as tokens", byte));
    }
  }
  PairMerges merges(AllSplits(tokens, id_of_piece));
  return std::make_unique<ByteBpe>(std::move(tokens), std::move(merges), WholePieces::kFirst);
}

void ByteBpe::Encode(absl::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const {
  if (piece.empty()) return;
  const auto encode = [&] { EncodeUnknownWord(piece, scratch, ids); };
  if (piece.size() <= decltype(scratch->short_words)::kLongest) {
    scratch->short_words.Append(piece, ids, encode);
  } else {
    scratch->words.Append(piece, ids, encode);
  }
}

void ByteBpe::EncodeUnknownWord(absl::string_view piece, Scratch* scratch,
                                std::vector<int32_t>* ids) const {
  if (piece.size() <= longest_piece_) {
    const auto found = id_of_piece_.find(piece);
    if (found != id_of_piece_.end()) return ids->push_back(found->second);
  }
  std::vector<int32_t>& symbols = scratch->symbols;
  symbols.clear();
  for (const char byte : piece) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id >= 0) symbols.push_back(id);
  }
  merges_.Apply(&symbols, &scratch->merges);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
}

}  // namespace convene::worker
