// Pairs of answers that become rows, and those that do not.
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/dataset.h"
#include "worker_runtime/data/pair_source.h"
#include "worker_runtime/data/testing/token_files.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::OpenTokens;
using testing::WriteTokenFile;
using Tokens = std::vector<int32_t>;

// Of the folder's files "chosen" and "rejected".
DatasetOptions PairsIn(const TempDir& dir, int sequence_length) {
  const auto joined = JoinPairs(OpenTokens(dir.File("chosen")), OpenTokens(dir.File("rejected")));
  REQUIRE_OK(joined);
  DatasetOptions options = {.sources = {{*joined, std::nullopt}},
                            .sequence_length = sequence_length};
  options.packing.emplace();
  options.pairs = true;
  return options;
}

TEST_CASE("a pair that teaches nothing is left out") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 100;
  info.has_counted = true;
  // The prompt of the second pair fills the half of a row; the answers of the third are the same.
  WriteTokenFile(dir.File("chosen"), info,
                 {{{1, 2, 3}, {0, 1, 1}}, {{1, 2, 3, 4, 5}, {0, 0, 0, 0, 1}}, {{6, 7}, {0, 1}}});
  WriteTokenFile(dir.File("rejected"), info,
                 {{{1, 9}, {0, 1}}, {{1, 2, 3, 4, 8}, {0, 0, 0, 0, 1}}, {{6, 7}, {0, 1}}});
  DatasetOptions options = PairsIn(dir, 8);
  const auto data = Dataset::Open(options);
  REQUIRE_OK(data);
  CHECK(data->row_count() == 1);
  CHECK(data->packing_counts()->idle == 4);
  options.validation_fraction = 0.5;
  CHECK_STATUS(Dataset::Open(options), absl::StatusCode::kInvalidArgument,
               "and 2 have the same answers twice, as far as a half holds them, or an answer");
}

TEST_CASE("a pair whose answers are the same as far as a row holds them is left out") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 100;
  const std::vector<int32_t> common = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto write = [&](const std::string& name, int more, int32_t last) {
    std::vector<int32_t> answer = common;
    answer.insert(answer.end(), more, last);
    std::vector<int32_t> other = common;
    other.back() = last;
    WriteTokenFile(dir.File(name), info, {{answer, {}}, {other, {}}});
  };
  write("chosen", 4, 9);
  write("rejected", 6, 10);
  DatasetOptions options = PairsIn(dir, 16);
  const auto data = Dataset::Open(options);
  REQUIRE_OK(data);
  CHECK(data->row_count() == 1);
  CHECK(data->packing_counts()->idle == 2);
  CHECK(data->packing_counts()->cut == 0);
  // With room for their ends they differ.
  options.sequence_length = 32;
  const auto longer = Dataset::Open(options);
  REQUIRE_OK(longer);
  CHECK(longer->row_count() == 2);
}

TEST_CASE("sources that make no pairs are refused") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 100;
  WriteTokenFile(dir.File("one"), info, {{{1, 2}, {}}});
  WriteTokenFile(dir.File("two"), info, {{{1, 2}, {}}, {{3, 4}, {}}});
  const auto one = OpenTokens(dir.File("one"));
  const auto two = OpenTokens(dir.File("two"));
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  CHECK_STATUS(JoinPairs(one, two), kInvalid, "has 1 chosen answers, and 2 rejected ones");
  CHECK_STATUS(JoinPairs(two, two), kInvalid, "a file of tokens has no pairs");
  // A reader may take tokens on both sides of the border.
  WriteTokenFile(dir.File("other"), info, {{{5, 6}, {}}});
  const auto joined = JoinPairs(one, OpenTokens(dir.File("other")));
  REQUIRE_OK(joined);
  Tokens tokens(2);
  (*joined)->Read(1, 2, tokens.data());
  CHECK(tokens == Tokens{2, 5});
}

}  // namespace
}  // namespace convene::worker
