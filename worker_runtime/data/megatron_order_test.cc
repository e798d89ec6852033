#include "worker_runtime/data/megatron_order.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

constexpr char kGolden[] = "worker_runtime/data/golden/megatron_order.txt";

// The lengths of golden/make_megatron_order.py.
std::vector<int64_t> LengthsOf(int64_t count, uint64_t seed, uint64_t longest) {
  std::vector<int64_t> lengths;
  uint64_t state = seed;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    lengths.push_back(static_cast<int64_t>((state >> 33) % (longest + 1)));
  }
  return lengths;
}

absl::StatusOr<MegatronOrder> OrderOf(const MegatronRun& run, const std::vector<int64_t>& lengths) {
  return MegatronOrder::Build(run, static_cast<int64_t>(lengths.size()),
                              [lengths](int64_t sequence) { return lengths[sequence]; });
}

// Token number k of sequence s is 1000 * s + k.
std::vector<int64_t> TokensOf(const MegatronOrder& order, int64_t index) {
  std::vector<MegatronOrder::Piece> pieces;
  order.PiecesOf(index, &pieces);
  std::vector<int64_t> tokens;
  for (const MegatronOrder::Piece& piece : pieces) {
    CHECK(piece.count > 0);
    for (int64_t k = 0; k < piece.count; ++k) {
      tokens.push_back(1000 * piece.sequence + piece.offset + k);
    }
  }
  return tokens;
}

uint64_t Fnv(const std::vector<int64_t>& tokens, uint64_t hash) {
  for (const int64_t token : tokens) {
    for (int byte = 0; byte < 4; ++byte) {
      hash = (hash ^ ((static_cast<uint64_t>(token) >> (8 * byte)) & 255)) * 0x100000001b3;
    }
  }
  return hash;
}

TEST_CASE("the samples are those of megatron-core's GPTDataset") {
  const auto golden = ReadFile(kGolden);
  REQUIRE_OK(golden);
  int cases = 0;
  for (const absl::string_view line : absl::StrSplit(*golden, '\n', absl::SkipEmpty())) {
    INFO(line);
    std::vector<uint64_t> values;
    for (const absl::string_view word : absl::StrSplit(line, ' ')) {
      REQUIRE(absl::SimpleAtoi(word, &values.emplace_back()));
    }
    REQUIRE(values.size() >= 9);
    const MegatronRun run = {.seed = static_cast<int64_t>(values[0]),
                             .sequence_length = static_cast<int>(values[1]),
                             .samples = static_cast<int64_t>(values[2])};
    const auto order =
        OrderOf(run, LengthsOf(static_cast<int64_t>(values[3]), values[4], values[5]));
    REQUIRE_OK(order);
    CHECK(order->sample_count() == static_cast<int64_t>(values[6]));
    uint64_t hash = 0xcbf29ce484222325;
    for (int64_t index = 0; index < order->sample_count(); ++index) {
      const std::vector<int64_t> tokens = TokensOf(*order, index);
      REQUIRE(tokens.size() == values[1] + 1);
      if (static_cast<size_t>(index) + 8 < values.size()) {
        CHECK(tokens[0] == static_cast<int64_t>(values[index + 8]));
      }
      hash = Fnv(tokens, hash);
    }
    CHECK(hash == values[7]);
    ++cases;
  }
  CHECK(cases == 11);
}

TEST_CASE("a short last epoch stands apart, a long one does not") {
  const std::vector<int64_t> lengths(100, 10);  // an epoch: 99 samples of 10 tokens
  const auto order_of = [&](int64_t samples) {
    return *OrderOf({.seed = 1, .sequence_length = 10, .samples = samples}, lengths);
  };
  CHECK(order_of(99).epochs() == 1);
  CHECK_FALSE(order_of(99).separate_final_epoch());
  CHECK(order_of(100).epochs() == 2);
  CHECK(order_of(100).separate_final_epoch());
  // 99 samples of the first epoch, then 78 of int(0.8 * 99) = 79.
  CHECK(order_of(177).separate_final_epoch());
  CHECK_FALSE(order_of(178).separate_final_epoch());
}

TEST_CASE("what Megatron cannot do is refused") {
  const std::vector<int64_t> lengths(10, 10);
  const auto status = [&](int64_t seed, int length, int64_t samples) {
    return OrderOf({.seed = seed, .sequence_length = length, .samples = samples}, lengths).status();
  };
  CHECK_OK(status(1, 99, 1));
  CHECK_STATUS(status(-1, 10, 1), absl::StatusCode::kInvalidArgument, "takes seeds from 0 to");
  CHECK_STATUS(status(int64_t{1} << 32, 10, 1), absl::StatusCode::kInvalidArgument,
               "seed 4294967296");
  CHECK_STATUS(status(1, 100, 1), absl::StatusCode::kInvalidArgument, "at least 101 tokens");
  CHECK_STATUS(status(1, 10, 0), absl::StatusCode::kInvalidArgument, "0 samples");
  CHECK_STATUS(status(1, 10, int64_t{1} << 33), absl::StatusCode::kInvalidArgument,
               "use this program's own order");
  CHECK_STATUS(status(1, 10, INT64_MAX), absl::StatusCode::kInvalidArgument, "own order");
}

}  // namespace
}  // namespace convene::worker
