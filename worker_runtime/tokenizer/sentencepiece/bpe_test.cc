#include "worker_runtime/tokenizer/sentencepiece/bpe.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

ByteTrie UserSymbols(const ModelFile& model) {
  std::vector<ByteTrie::Entry> entries;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].type != PieceType::kUserDefined) continue;
    entries.push_back({model.pieces[i].text, static_cast<int32_t>(i)});
  }
  return ByteTrie(entries);
}

// The plain way: merges on texts over the whole text, without cuts, tables or memory. Each time the
// pair with the highest score, and of those the leftmost (bpe_model.cc). Quadratic. For models
// without UNUSED pieces.
class PlainBpe {
 public:
  PlainBpe(const ModelFile& model, const ByteTrie& user_symbols)
      : model_(model), user_symbols_(user_symbols), unknown_(model) {
    for (size_t i = 0; i < model.pieces.size(); ++i) {
      if (model.pieces[i].type != PieceType::kNormal) continue;
      ids_[model.pieces[i].text] = static_cast<int32_t>(i);
    }
  }

  std::vector<int32_t> Encode(absl::string_view text) const {
    struct Symbol {
      std::string text;
      int32_t frozen_id;
    };
    std::vector<Symbol> symbols;
    while (!text.empty()) {
      const ByteTrie::Match match = user_symbols_.Longest(text);
      const size_t length = match.length > 0 ? match.length : FirstCharacter(text).length;
      symbols.push_back({std::string(text.substr(0, length)), match.value});
      text.remove_prefix(length);
    }
    while (true) {
      size_t best = symbols.size();
      float best_score = 0;
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        if (symbols[i].frozen_id >= 0 || symbols[i + 1].frozen_id >= 0) continue;
        const auto found = ids_.find(symbols[i].text + symbols[i + 1].text);
        if (found == ids_.end()) continue;
        const float score = model_.pieces[found->second].score;
        if (best == symbols.size() || score > best_score) {
          best = i;
          best_score = score;
        }
      }
      if (best == symbols.size()) break;
      symbols[best].text += symbols[best + 1].text;
      symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    }
    std::vector<int32_t> ids;
    for (const Symbol& symbol : symbols) {
      const auto found = ids_.find(symbol.text);
      if (symbol.frozen_id >= 0) {
        ids.push_back(symbol.frozen_id);
      } else if (found != ids_.end()) {
        ids.push_back(found->second);
      } else {
        unknown_.Append(symbol.text, 0, &ids);
      }
    }
    return ids;
  }

 private:
  const ModelFile& model_;
  const ByteTrie& user_symbols_;
  UnknownText unknown_;
  std::map<std::string, int32_t> ids_;
};

// A text of pieces, parts of pieces and characters that the model does not have.
std::string RandomText(const ModelFile& model, std::mt19937* random) {
  std::string text;
  const size_t parts = (*random)() % 40;
  for (size_t i = 0; i < parts; ++i) {
    const std::string& piece = model.pieces[(*random)() % model.pieces.size()].text;
    const uint32_t kind = (*random)() % 8;
    if (kind == 0) {
      AppendCharacter(0x100 + (*random)() % 0x1000, &text);
    } else if (kind == 1) {
      text += kSpaceSymbol;
    } else if (kind == 2) {
      text += piece.substr(0, FirstCharacter(piece).length);
    } else {
      text += piece;
    }
  }
  return text;
}

void CompareWithPlain(const ModelFile& model, uint32_t seed, int texts) {
  const ByteTrie user_symbols = UserSymbols(model);
  const auto bpe = BpeModel::Make(model, &user_symbols);
  REQUIRE_OK(bpe);
  const PlainBpe plain(model, user_symbols);
  std::mt19937 random(seed);
  BpeModel::Scratch scratch;
  for (int i = 0; i < texts; ++i) {
    const std::string text = RandomText(model, &random);
    CAPTURE(seed, text);
    std::vector<int32_t> ids;
    (*bpe)->Append(text, &ids, &scratch);
    REQUIRE(ids == plain.Encode(text));
  }
}

TEST_CASE("Cut and remembered words give what merging the whole text gives, in trained models") {
  for (const char* name :
       {"bpe_bytes", "bpe_rules", "bpe_suffix", "bpe_across_words", "bpe_ties"}) {
    CAPTURE(name);
    const std::string path =
        std::string("worker_runtime/tokenizer/sentencepiece/golden/") + name + ".model";
    const auto bytes = ReadFile(path);
    REQUIRE_OK(bytes);
    const auto model = ParseModelFile(*bytes);
    REQUIRE_OK(model);
    CompareWithPlain(*model, 1, 80);
  }
}

TEST_CASE("And in models of random pieces, with many ties and pieces that no merge reaches") {
  const uint32_t seed = GENERATE(range(1u, 41u));
  std::mt19937 random(seed);
  const std::vector<std::string> alphabet = {"a", "b", "c", kSpaceSymbol, "é", "🦙"};
  std::map<std::string, ModelPiece> pieces;
  for (int i = 0; i < 60; ++i) {
    ModelPiece piece;
    const size_t characters = 1 + random() % 4;
    for (size_t j = 0; j < characters; ++j) piece.text += alphabet[random() % alphabet.size()];
    piece.score = -static_cast<float>(random() % 8);
    if (seed % 4 == 0 && random() % 8 == 0) piece.type = PieceType::kUserDefined;
    pieces.emplace(piece.text, piece);
  }
  ModelFile model;
  model.type = ModelType::kBpe;
  model.pieces.push_back({"<unk>", 0, PieceType::kUnknown});
  for (const auto& [text, piece] : pieces) model.pieces.push_back(piece);
  CompareWithPlain(model, seed, 30);
}

TEST_CASE("A word of a million characters is encoded, and so is one without any merge") {
  ModelFile model;
  model.type = ModelType::kBpe;
  model.pieces = {{"<unk>", 0, PieceType::kUnknown},
                  {"a", -9, PieceType::kNormal},
                  {"aa", -1, PieceType::kNormal},
                  {"aaaa", -2, PieceType::kNormal}};
  const ByteTrie user_symbols = UserSymbols(model);
  const auto bpe = BpeModel::Make(model, &user_symbols);
  REQUIRE_OK(bpe);
  BpeModel::Scratch scratch;
  std::vector<int32_t> ids;
  (*bpe)->Append(std::string(1000001, 'a'), &ids, &scratch);
  CHECK(ids.size() == 250001);
  CHECK(ids.front() == 3);
  CHECK(ids.back() == 1);
  ids.clear();
  (*bpe)->Append(std::string(1000000, 'z'), &ids, &scratch);
  CHECK(ids == std::vector<int32_t>{0});
}

TEST_CASE("Pieces made to keep the program busy are refused") {
  ModelFile model;
  model.type = ModelType::kBpe;
  model.pieces.push_back({"<unk>", 0, PieceType::kUnknown});
  for (int i = 0; i < 100; ++i) {
    model.pieces.push_back({std::string(7900 - i, 'a'), 0, PieceType::kNormal});
  }
  const ByteTrie user_symbols = UserSymbols(model);
  CHECK_STATUS(BpeModel::Make(model, &user_symbols), absl::StatusCode::kInvalidArgument,
               "longer pieces than any vocabulary");
}

}  // namespace
}  // namespace convene::worker
