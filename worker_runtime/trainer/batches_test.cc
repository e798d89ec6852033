#include "worker_runtime/trainer/batches.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/testing/token_files.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

constexpr int kSequenceLength = 4;
constexpr int64_t kGlobalBatch = 8;

// Token i is i: a row's first token tells its sample.
Dataset Counting(const TempDir& directory, int samples, double validation_fraction) {
  const std::string path = directory.File("tokens");
  std::vector<int32_t> tokens(samples * kSequenceLength + 1);
  std::iota(tokens.begin(), tokens.end(), 0);
  testing::WriteTokenFile(path, 256, tokens);
  DatasetOptions options;
  options.sources = {{path, std::nullopt}};
  options.sequence_length = kSequenceLength;
  options.validation_fraction = validation_fraction;
  auto dataset = Dataset::Open(options);
  REQUIRE_OK(dataset);
  return *dataset;
}

// The first input of every row that counts.
std::vector<int32_t> Firsts(const BatchLoader& loader, int micro_batch_size,
                            const TokenBatch& batch) {
  std::vector<int32_t> firsts;
  for (int64_t row = 0; row < loader.microbatches() * micro_batch_size; ++row) {
    const int32_t* inputs = batch.inputs + row * kSequenceLength;
    const int32_t* targets = batch.targets + row * kSequenceLength;
    if (targets[0] < 0) {
      CHECK(std::all_of(targets, targets + kSequenceLength, [](int32_t t) { return t == -1; }));
      continue;
    }
    for (int i = 0; i < kSequenceLength; ++i) CHECK(targets[i] == inputs[i] + 1);
    firsts.push_back(inputs[0]);
  }
  return firsts;
}

TEST_CASE("a step has the same samples in the same order on every cut") {
  const TempDir directory;
  const Dataset dataset = Counting(directory, 50, 0.0);
  BatchLoader alone(dataset, 5, {kGlobalBatch, static_cast<int>(kGlobalBatch), 1}, 0, std::nullopt);
  std::vector<int32_t> before;
  for (int64_t first_sample = 0; first_sample < 5 * kGlobalBatch; first_sample += kGlobalBatch) {
    const auto expected = Firsts(alone, kGlobalBatch, alone.Training(first_sample));
    REQUIRE(expected.size() == kGlobalBatch);
    CHECK(expected != before);
    before = expected;
    for (const int dp : {1, 2, 4}) {
      for (const int micro : {1, 2}) {
        std::vector<int32_t> firsts;
        for (int rank = 0; rank < dp; ++rank) {
          BatchLoader loader(dataset, 5, {kGlobalBatch, micro, dp}, rank, std::nullopt);
          const TokenBatch batch = loader.Training(first_sample);
          CHECK(batch.gradient_scale == 1.0f / (kGlobalBatch * kSequenceLength));
          const auto mine = Firsts(loader, micro, batch);
          firsts.insert(firsts.end(), mine.begin(), mine.end());
        }
        CHECK(firsts == expected);
      }
    }
  }
}

TEST_CASE("validation sees each held-out sample once and pads the rest") {
  const TempDir directory;
  const Dataset dataset = Counting(directory, 50, 0.26);
  REQUIRE(dataset.validation_samples() == 13);
  const int64_t end = 11;
  std::vector<int32_t> firsts;
  for (int64_t first = 0; first < end; first += kGlobalBatch) {
    for (int rank = 0; rank < 2; ++rank) {
      BatchLoader loader(dataset, 5, {kGlobalBatch, 2, 2}, rank, std::nullopt);
      const auto mine = Firsts(loader, 2, loader.Validation(first, end));
      firsts.insert(firsts.end(), mine.begin(), mine.end());
    }
  }
  std::vector<int32_t> expected;
  for (int i = 0; i < end; ++i) expected.push_back((37 + i) * kSequenceLength);
  CHECK(firsts == expected);
}

TEST_CASE("packed rows say where documents begin, on every cut, in training and validation") {
  const TempDir directory;
  const Dataset dataset = Counting(directory, 50, 0.26);
  // Each row is its own number times 4 and the three after it: row 2 is {8, 9, 10, 11}.
  const int32_t end_of_document = 9;
  for (const int micro : {1, 2}) {
    BatchLoader loader(dataset, 5, {kGlobalBatch, micro, 1}, 0, end_of_document);
    int rows_with_end = 0;
    // A whole pass.
    for (int64_t first = 0; first < 37; first += kGlobalBatch) {
      const TokenBatch batch = loader.Training(first);
      REQUIRE(batch.document_begin != nullptr);
      for (int64_t row = 0; row < kGlobalBatch; ++row) {
        const int32_t* begin = batch.document_begin + row * kSequenceLength;
        const bool has_end = batch.inputs[row * kSequenceLength] == 8;
        rows_with_end += has_end ? 1 : 0;
        const std::vector<int32_t> expected = {0, 0, has_end ? 2 : 0, has_end ? 2 : 0};
        CHECK(std::vector<int32_t>(begin, begin + kSequenceLength) == expected);
      }
    }
    CHECK(rows_with_end >= 1);
  }
  BatchLoader loader(dataset, 5, {kGlobalBatch, 2, 1}, 0, 37 * kSequenceLength);
  const TokenBatch batch = loader.Validation(0, 1);
  // The first held-out row begins with its own end; all others are padding.
  CHECK(std::vector<int32_t>(batch.document_begin, batch.document_begin + 8) ==
        std::vector<int32_t>{0, 1, 1, 1, 0, 0, 0, 0});
}

TEST_CASE("a padding row is one document, although its tokens are the one that ends documents") {
  const TempDir directory;
  const Dataset dataset = Counting(directory, 50, 0.26);
  BatchLoader loader(dataset, 5, {kGlobalBatch, 2, 1}, 0, /*end_of_document=*/0);
  const TokenBatch batch = loader.Validation(0, 1);
  CHECK(std::count(batch.document_begin, batch.document_begin + kGlobalBatch * kSequenceLength,
                   0) == kGlobalBatch * kSequenceLength);
}

TEST_CASE("rows that are not packed say nothing of documents") {
  const TempDir directory;
  const Dataset dataset = Counting(directory, 50, 0.0);
  BatchLoader loader(dataset, 5, {kGlobalBatch, 2, 1}, 0, std::nullopt);
  CHECK(loader.Training(0).document_begin == nullptr);
}

}  // namespace
}  // namespace convene::worker
