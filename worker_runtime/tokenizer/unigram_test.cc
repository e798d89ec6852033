#include "worker_runtime/tokenizer/unigram.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <limits>
#include <map>
#include <random>

namespace convene::worker {
namespace {

using Piece = UnigramLattice::Piece;
using Rules = UnigramLattice::Rules;
using Segment = UnigramLattice::Segment;

std::vector<Segment> Best(const UnigramLattice& lattice, absl::string_view text) {
  UnigramLattice::Scratch scratch;
  std::vector<Segment> segments;
  lattice.Best(text, &segments, &scratch);
  return segments;
}

TEST_CASE("The pieces with the highest sum are taken") {
  const UnigramLattice lattice(
      {{"<unk>", 0, false, false}, {"a", -3}, {"b", -3}, {"ab", -5}, {"abc", -20}, {"c", -3}}, 0,
      Rules::kSentencePiece);
  CHECK(Best(lattice, "abc") == std::vector<Segment>{{0, 2, 3}, {2, 3, 5}});
  CHECK(Best(lattice, "") == std::vector<Segment>{});
  // Appended to what is there.
  std::vector<Segment> segments = {{7, 8, 9}};
  UnigramLattice::Scratch scratch;
  lattice.Best("b", &segments, &scratch);
  CHECK(segments == std::vector<Segment>{{7, 8, 9}, {0, 1, 2}});
}

TEST_CASE("Characters that are no piece are unknown, one by one, and cost the lowest score - 10") {
  const UnigramLattice lattice({{"<unk>", 0, false, false}, {"a", -3}, {"xy", -26}, {"é", -4}}, 0,
                               Rules::kSentencePiece);
  CHECK(Best(lattice, "zé🦙a") ==
        std::vector<Segment>{{0, 1, 0}, {1, 3, 3}, {3, 7, 0}, {7, 8, 1}});
  // Two unknown characters cost 2 * 36, "xy" 26.
  CHECK(Best(lattice, "xy") == std::vector<Segment>{{0, 2, 2}});
  const UnigramLattice without({{"a", -3}}, -1, Rules::kHuggingFace);
  CHECK(Best(without, "ba") == std::vector<Segment>{{0, 1, -1}, {1, 2, 0}});
}

TEST_CASE("A user defined piece wins by its length under SentencePiece's rules") {
  const std::vector<Piece> pieces = {
      {"<unk>", 0, false, false}, {"a", -1}, {"b", -1}, {"ab", 0, true}};
  CHECK(Best(UnigramLattice(pieces, 0, Rules::kSentencePiece), "ab") ==
        std::vector<Segment>{{0, 2, 3}});
}

TEST_CASE("Of equal sums the segmentation whose last segment begins first is taken") {
  const UnigramLattice lattice({{"<unk>", 0, false, false}, {"a", -2}, {"aa", -4}, {"aaa", -6}}, 0,
                               Rules::kSentencePiece);
  CHECK(Best(lattice, "aaa") == std::vector<Segment>{{0, 3, 3}});
  CHECK(Best(lattice, "aaaa") == std::vector<Segment>{{0, 1, 1}, {1, 4, 3}});
}

TEST_CASE("SentencePiece's sums are float: after a long text small differences are lost") {
  const std::vector<Piece> pieces = {
      {"<unk>", 0, false, false}, {"x", -0x1p16}, {"a", -1}, {"b", -1}, {"ab", -2 - 0x1p-20}};
  // a + b is better by 2^-20, which is nothing beside a sum of 2^16 in float. "ab" is found first.
  CHECK(Best(UnigramLattice(pieces, 0, Rules::kSentencePiece), "ab").size() == 2);
  CHECK(Best(UnigramLattice(pieces, 0, Rules::kSentencePiece), "xab").size() == 2);
  CHECK(Best(UnigramLattice(pieces, 0, Rules::kHuggingFace), "xab").size() == 3);
  // Two x are less than -100,000: the sum begins at 0 again.
  CHECK(Best(UnigramLattice(pieces, 0, Rules::kSentencePiece), "xxab").size() == 4);
}

// EncodeOptimized of unigram_model.cc, with one array over the whole text and maps for the trie.
template <typename Sum>
std::vector<Segment> Oracle(const std::vector<Piece>& pieces, absl::string_view text) {
  std::map<std::string, int32_t> ids;
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!pieces[i].is_used) continue;
    ids[pieces[i].text] = static_cast<int32_t>(i);
    lowest = std::min(lowest, pieces[i].score);
  }
  struct Node {
    Sum score = 0;
    int32_t id = -1;
    int64_t begin = -1;
  };
  const Sum unknown_score = static_cast<Sum>(lowest - 10);
  std::vector<Node> nodes(text.size() + 1);
  for (size_t begin = 0; begin < text.size(); ++begin) {
    bool has_single = false;
    const Sum so_far = nodes[begin].score;
    for (size_t end = begin + 1; end <= std::min(text.size(), begin + 5); ++end) {
      const auto found = ids.find(std::string(text.substr(begin, end - begin)));
      if (found == ids.end()) continue;
      const Sum score = static_cast<Sum>(pieces[found->second].score) + so_far;
      if (nodes[end].begin < 0 || score > nodes[end].score) {
        nodes[end] = {score, found->second, static_cast<int64_t>(begin)};
      }
      has_single |= end == begin + 1;
    }
    if (has_single) continue;
    const Sum score = unknown_score + so_far;
    if (nodes[begin + 1].begin < 0 || score > nodes[begin + 1].score) {
      nodes[begin + 1] = {score, 0, static_cast<int64_t>(begin)};
    }
  }
  std::vector<Segment> segments;
  for (size_t end = text.size(); end > 0; end = segments.back().begin) {
    segments.push_back({static_cast<size_t>(nodes[end].begin), end, nodes[end].id});
  }
  std::reverse(segments.begin(), segments.end());
  return segments;
}

TEST_CASE("Deciding piece by piece gives what one array over the whole text gives") {
  const uint32_t seed = GENERATE(range(1u, 33u));
  CAPTURE(seed);
  std::mt19937 random(seed);
  const auto word = [&](size_t longest, uint32_t letters) {
    std::string text(1 + random() % longest, '\0');
    for (char& letter : text) letter = static_cast<char>('a' + random() % letters);
    return text;
  };
  std::vector<Piece> pieces = {{"<unk>", 0, false, false}};
  for (int i = 0; i < 60; ++i) {
    // Scores on a coarse grid make ties; odd fractions make roundings.
    const double score = seed % 2 == 0 ? -static_cast<double>(random() % 4)
                                       : static_cast<float>(-0.1 * (1 + random() % 50));
    pieces.push_back({word(5, 4), score});
  }
  const std::string text = word(2000, 5);
  CHECK(Best(UnigramLattice(pieces, 0, Rules::kSentencePiece), text) ==
        Oracle<float>(pieces, text));
  CHECK(Best(UnigramLattice(pieces, 0, Rules::kHuggingFace), text) == Oracle<double>(pieces, text));
}

}  // namespace
}  // namespace convene::worker
