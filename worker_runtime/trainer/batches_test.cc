#include "worker_runtime/trainer/batches.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/token_file.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

constexpr int kSequenceLength = 4;
constexpr int64_t kGlobalBatch = 8;

// Token i is i: a row's first token tells its sample.
Dataset Counting(const TempDir& directory, int samples, double validation_fraction) {
  const std::string path = directory.File("tokens");
  auto writer = TokenFileWriter::Create(path, 1, 256, 0);
  REQUIRE_OK(writer);
  std::string tokens;
  for (int i = 0; i <= samples * kSequenceLength; ++i) tokens += static_cast<char>(i);
  REQUIRE_OK(writer->Append(tokens));
  REQUIRE_OK(writer->Finish());
  auto dataset = Dataset::Open(path, kSequenceLength, validation_fraction);
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
  BatchLoader alone(dataset, 5, {kGlobalBatch, static_cast<int>(kGlobalBatch), 1}, 0);
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
          BatchLoader loader(dataset, 5, {kGlobalBatch, micro, dp}, rank);
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
      BatchLoader loader(dataset, 5, {kGlobalBatch, 2, 2}, rank);
      const auto mine = Firsts(loader, 2, loader.Validation(first, end));
      firsts.insert(firsts.end(), mine.begin(), mine.end());
    }
  }
  std::vector<int32_t> expected;
  for (int i = 0; i < end; ++i) expected.push_back((37 + i) * kSequenceLength);
  CHECK(firsts == expected);
}

}  // namespace
}  // namespace convene::worker
