#include "worker_runtime/tokenizer/byte_bpe.h"

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/tokenizer/pair_merges.h"

namespace convene::worker {
namespace {

std::vector<std::string> AllBytes() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  return tokens;
}

std::vector<int32_t> Encoded(const ByteBpe& bpe, absl::string_view piece) {
  ByteBpe::Scratch scratch;
  std::vector<int32_t> ids;
  bpe.Encode(piece, &scratch, &ids);
  return ids;
}

// tiktoken's rule, word for word.
std::vector<int32_t> Naive(const std::vector<std::string>& tokens, const std::string& piece) {
  std::map<std::string, int32_t> rank_of;
  for (size_t id = 0; id < tokens.size(); ++id) rank_of[tokens[id]] = static_cast<int32_t>(id);
  if (rank_of.count(piece) > 0) return {rank_of[piece]};
  std::vector<std::string> parts;
  for (const char byte : piece) parts.emplace_back(1, byte);
  for (;;) {
    int32_t best = std::numeric_limits<int32_t>::max();
    size_t place = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = rank_of.find(parts[i] + parts[i + 1]);
      if (found == rank_of.end() || found->second >= best) continue;
      best = found->second;
      place = i;
    }
    if (best == std::numeric_limits<int32_t>::max()) break;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(rank_of[part]);
  return ids;
}

TEST_CASE("pieces are merged by rank, whatever their length, also when they come again") {
  std::mt19937 random(9);
  const std::string letters = "abc ";
  for (int round = 0; round < 8; ++round) {
    std::vector<std::string> tokens = AllBytes();
    std::map<std::string, bool> known;
    for (int i = 0; i < 60; ++i) {
      std::string token;
      const size_t size = 2 + random() % 5;
      while (token.size() < size) token.push_back(letters[random() % letters.size()]);
      if (known.emplace(token, true).second) tokens.push_back(token);
    }
    const auto bpe = ByteBpe::FromRanks(tokens);
    REQUIRE_OK(bpe);
    ByteBpe::Scratch scratch;
    for (int i = 0; i < 200; ++i) {
      std::string piece;
      const size_t size = 1 + random() % (i % 10 == 0 ? 70 : i % 2 == 0 ? 4 : 20);
      while (piece.size() < size) piece.push_back(letters[random() % letters.size()]);
      const std::vector<int32_t> expected = Naive(tokens, piece);
      for (int again = 0; again < 2; ++again) {
        std::vector<int32_t> ids = {-7};
        (*bpe)->Encode(piece, &scratch, &ids);
        REQUIRE(ids.front() == -7);
        ids.erase(ids.begin());
        REQUIRE(ids == expected);
      }
    }
  }
}

TEST_CASE("a token that merging cannot make is found as a whole piece only") {
  std::vector<std::string> tokens = AllBytes();
  tokens.push_back("bc");    // 256
  tokens.push_back("abc");   // 257, of a and bc
  tokens.push_back("ab");    // 258
  tokens.push_back("abcd");  // 259: of abc and d
  tokens.push_back("xyz");   // 260: of none
  const auto bpe = ByteBpe::FromRanks(tokens);
  REQUIRE_OK(bpe);
  CHECK(Encoded(**bpe, "xyz") == std::vector<int32_t>{260});
  CHECK(Encoded(**bpe, "xyzx") == std::vector<int32_t>{'x', 'y', 'z', 'x'});
  CHECK(Encoded(**bpe, "abcde") == std::vector<int32_t>{259, 'e'});
  CHECK(Encoded(**bpe, "").empty());

  const ByteBpe never(tokens, PairMerges(std::vector<PairMerges::Merge>{{'x', 'y', 5, 0}}),
                      ByteBpe::WholePieces::kNever);
  CHECK(Encoded(never, "xyz") == std::vector<int32_t>{5, 'z'});
}

TEST_CASE("every word of 1 to 40 bytes keeps its own place in the cache") {
  const auto bpe = ByteBpe::FromRanks(AllBytes());
  REQUIRE_OK(bpe);
  ByteBpe::Scratch scratch;
  std::mt19937 random(1);
  for (int round = 0; round < 3; ++round) {
    random.seed(1);  // the same words again
    for (int i = 0; i < 5'000; ++i) {
      std::string piece(1 + random() % (i % 2 == 0 ? 4 : 40), ' ');
      // Zero bytes and words that differ in length alone.
      for (char& byte : piece) byte = static_cast<char>(random() % 2);
      std::vector<int32_t> ids;
      (*bpe)->Encode(piece, &scratch, &ids);
      REQUIRE(ids == std::vector<int32_t>(piece.begin(), piece.end()));
    }
  }
}

TEST_CASE("vocabularies that cannot work are refused") {
  std::vector<std::string> tokens = AllBytes();
  tokens[7].clear();
  CHECK_STATUS(ByteBpe::FromRanks(tokens), absl::StatusCode::kInvalidArgument, "0x07");
  tokens = AllBytes();
  tokens.push_back("a");
  CHECK_STATUS(ByteBpe::FromRanks(tokens), absl::StatusCode::kInvalidArgument,
               "tokens 97 and 256 have the same bytes");
  tokens.back() = std::string(2000, 'a');
  CHECK_STATUS(ByteBpe::FromRanks(tokens), absl::StatusCode::kInvalidArgument, "2000 bytes");
}

TEST_CASE("a byte without a token vanishes where that is allowed") {
  std::vector<std::string> tokens = {"a", "b", "ab"};
  const ByteBpe bpe(tokens, PairMerges(std::vector<PairMerges::Merge>{{0, 1, 2, 0}}),
                    ByteBpe::WholePieces::kNever);
  CHECK(Encoded(bpe, "axb") == std::vector<int32_t>{2});
  CHECK(Encoded(bpe, "xyz").empty());
  CHECK(Encoded(bpe, "xyz").empty());
}

}  // namespace
}  // namespace convene::worker
