// Files that are too short for a row, among others.
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/dataset.h"
#include "worker_runtime/data/pair_source.h"
#include "worker_runtime/data/testing/token_files.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::OpenTokens;
using testing::TestDocument;
using testing::WriteTokenFile;
using Tokens = std::vector<int32_t>;

// A file of the tokens 0, 1, 2, ...
std::string Counting(const TempDir& dir, int tokens, const std::string& name) {
  Tokens values(tokens);
  std::iota(values.begin(), values.end(), 0);
  WriteTokenFile(dir.File(name), 65536, values);
  return dir.File(name);
}

DatasetOptions Options(const std::vector<std::string>& paths, int sequence_length,
                       double validation_fraction = 0.0) {
  DatasetOptions options;
  for (const std::string& path : paths) options.sources.push_back({OpenTokens(path), std::nullopt});
  options.sequence_length = sequence_length;
  options.validation_fraction = validation_fraction;
  return options;
}

// Of the first pass over all training samples.
Tokens Inputs(const Dataset& data) {
  std::vector<int64_t> positions(data.training_samples());
  std::iota(positions.begin(), positions.end(), 0);
  Tokens inputs(positions.size() * data.sequence_length()), targets = inputs;
  REQUIRE_OK(data.Fill(data.TrainingPlaces(7, positions), inputs.data(), targets.data()));
  return inputs;
}

TEST_CASE("files that are too short beside others are left out, and the rest is as without them") {
  const TempDir dir;
  const std::string none = dir.File("none.ds");  // as datatrove leaves one
  REQUIRE_OK(WriteFileAtomic(none, ""));
  REQUIRE_OK(WriteFileAtomic(none + ".metadata", "gpt2|2\n0\n0 T"));
  const std::string few = Counting(dir, 5, "few");
  const std::string a = Counting(dir, 812, "a");
  const std::string b = Counting(dir, 500, "b");
  for (const double fraction : {0.0, 0.1, 1.0}) {
    const auto data = Dataset::Open(Options({none, a, few, b}, 16, fraction));
    const auto alone = Dataset::Open(Options({a, b}, 16, fraction));
    REQUIRE_OK(data);
    CHECK(data->Identity() == alone->Identity());
    CHECK(data->SamplesText() == alone->SamplesText());
    CHECK(data->content_hash() == alone->content_hash());
    CHECK(data->validation_samples() == alone->validation_samples());
    CHECK(alone->left_out().empty());
    REQUIRE(data->left_out().size() == 2);
    CHECK(data->left_out()[0]->path() == none);
    CHECK(data->left_out()[1]->path() == few);
    if (fraction == 1.0) continue;
    CHECK(Inputs(*data) == Inputs(*alone));
  }
  // Of two rows one is held out.
  const std::string one_row = Counting(dir, 20, "one_row");
  CHECK(Dataset::Open(Options({a, one_row}, 16))->left_out().empty());
  CHECK(Dataset::Open(Options({a, one_row}, 16, 0.1))->left_out().size() == 1);
}

TEST_CASE("a packed file without a row is left out, one that only lacks its held-out row is not") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 100;
  const TestDocument whole = {{1, 2, 3, 4, 5, 6}, {}};
  const TestDocument too_long = {Tokens(20, 7), {}};
  WriteTokenFile(dir.File("good"), info, {whole, whole, whole});
  WriteTokenFile(dir.File("short"), info, {{{1}, {}}, whole});
  WriteTokenFile(dir.File("long"), info, {too_long, too_long});
  WriteTokenFile(dir.File("end"), info, {whole, whole, whole, too_long});
  const auto open = [&](const std::vector<std::string>& paths) {
    DatasetOptions options = Options(paths, 8, 0.1);
    options.packing = PackingOptions{.drop_too_long = true};
    return Dataset::Open(options);
  };
  const auto data = open({dir.File("short"), dir.File("good")});
  REQUIRE_OK(data);
  CHECK(data->left_out().size() == 1);
  CHECK(data->Identity() == open({dir.File("good")})->Identity());
  CHECK(data->packing_counts()->documents == 3);
  CHECK_STATUS(open({dir.File("good"), dir.File("end")}), absl::StatusCode::kInvalidArgument,
               dir.File("end") + ": of 4 documents 1 are longer");
  // A file whose documents were dropped is not short.
  CHECK_STATUS(open({dir.File("good"), dir.File("long")}), absl::StatusCode::kInvalidArgument,
               dir.File("long") + ": of 2 documents 2 are longer");
}

TEST_CASE("a file of too few pairs is left out, one whose pairs are dropped or idle is refused") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 100;
  const auto pair = [&](const std::string& name, const Tokens& chosen, const Tokens& rejected) {
    // The second pair is always too short.
    WriteTokenFile(dir.File(name + ".c"), info, {{chosen, {}}, {{1}, {}}});
    WriteTokenFile(dir.File(name + ".r"), info, {{rejected, {}}, {{2}, {}}});
    const auto joined =
        JoinPairs(OpenTokens(dir.File(name + ".c")), OpenTokens(dir.File(name + ".r")));
    REQUIRE_OK(joined);
    return *joined;
  };
  const auto good = pair("good", {1, 2, 3}, {1, 4});
  const auto open = [&](const std::shared_ptr<const TokenSource>& other) {
    DatasetOptions options;
    options.sources = {{good, std::nullopt}, {other, std::nullopt}};
    options.sequence_length = 8;
    options.packing = PackingOptions{.drop_too_long = true};
    options.pairs = true;
    return Dataset::Open(options);
  };
  const auto data = open(pair("short", {1}, {2, 3}));
  REQUIRE_OK(data);
  CHECK(data->left_out().size() == 1);
  CHECK_STATUS(open(pair("long", Tokens(20, 7), {1, 2})), absl::StatusCode::kInvalidArgument,
               "of 2 pairs 1 have an answer that is longer");
  CHECK_STATUS(open(pair("idle", {5, 6}, {5, 6})), absl::StatusCode::kInvalidArgument,
               "and 1 have the same answers twice");
}

}  // namespace
}  // namespace convene::worker
