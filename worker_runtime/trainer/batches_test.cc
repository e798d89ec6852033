#include "worker_runtime/trainer/batches.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/testing/token_files.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::TestDocument;

constexpr int kSequenceLength = 4;
constexpr int64_t kGlobalBatch = 8;

// A file of tokens and its cut.
struct Data {
  std::vector<TestDocument> documents;
  std::vector<uint16_t> token_bytes;
  double validation_fraction = 0;
  bool packs = false;
};

Dataset Open(const TempDir& directory, const Data& data) {
  const std::string path = directory.File("tokens");
  const bool has_counted = !data.documents[0].counted.empty();
  testing::WriteTokenFile(
      path, {.vocabulary_size = 256, .token_bytes = data.token_bytes, .has_counted = has_counted},
      data.documents);
  DatasetOptions options = {.sources = {{.tokens = testing::OpenTokens(path)}},
                            .sequence_length = kSequenceLength,
                            .validation_fraction = data.validation_fraction,
                            .vocabulary_size = 256};
  if (data.packs) options.packing = PackingOptions{};
  auto dataset = Dataset::Open(options);
  REQUIRE_OK(dataset);
  return *dataset;
}

// Token i is i: a row's first token tells its sample.
Data CountingData(int samples, double validation_fraction) {
  Data data = {.documents = {{}}, .validation_fraction = validation_fraction};
  for (int i = 0; i <= samples * kSequenceLength; ++i) data.documents[0].ids.push_back(i);
  return data;
}

Dataset Counting(const TempDir& directory, int samples, double validation_fraction) {
  return Open(directory, CountingData(samples, validation_fraction));
}

TokenBatch Training(BatchLoader& loader, int64_t first, int64_t samples) {
  const auto batch = loader.Training(first, samples);
  REQUIRE_OK(batch);
  return *batch;
}

TokenBatch Training(BatchLoader& loader, int64_t first) {
  return Training(loader, first, loader.global_batch_size());
}

TokenBatch Validation(BatchLoader& loader, int64_t first, int64_t end) {
  const auto batch = loader.Validation(first, end);
  REQUIRE_OK(batch);
  return *batch;
}

int64_t Counted(const BatchLoader& loader, int micro_batch_size, const TokenBatch& batch) {
  return std::count_if(batch.targets,
                       batch.targets + loader.microbatches() * micro_batch_size * kSequenceLength,
                       [](int32_t target) { return target >= 0; });
}

// The first input of every row that counts.
std::vector<int32_t> Firsts(const BatchLoader& loader, int micro_batch_size,
                            const TokenBatch& batch) {
  std::vector<int32_t> firsts;
  for (int64_t row = 0; row < loader.microbatches() * micro_batch_size; ++row) {
    const int32_t* inputs = batch.inputs + row * kSequenceLength;
    const int32_t* targets = batch.targets + row * kSequenceLength;
    if (targets[0] < 0) {
      CHECK(std::all_of(targets, targets + kSequenceLength, [](int32_t t) { return t == -2; }));
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
  BatchLoader alone(dataset, {.seed = 5, .cut = {kGlobalBatch, static_cast<int>(kGlobalBatch), 1}});
  std::vector<int32_t> before;
  for (int64_t first_sample = 0; first_sample < 5 * kGlobalBatch; first_sample += kGlobalBatch) {
    const auto expected = Firsts(alone, kGlobalBatch, Training(alone, first_sample));
    REQUIRE(expected.size() == kGlobalBatch);
    CHECK(expected != before);
    before = expected;
    for (const int dp : {1, 2, 4}) {
      for (const int micro : {1, 2}) {
        std::vector<int32_t> firsts;
        for (int rank = 0; rank < dp; ++rank) {
          BatchLoader loader(dataset,
                             {.seed = 5, .cut = {kGlobalBatch, micro, dp}, .dp_rank = rank});
          const TokenBatch batch = Training(loader, first_sample);
          CHECK(batch.counted_targets == kGlobalBatch * kSequenceLength);
          const auto mine = Firsts(loader, micro, batch);
          firsts.insert(firsts.end(), mine.begin(), mine.end());
        }
        CHECK(firsts == expected);
      }
    }
  }
}

TEST_CASE("a step of fewer samples has the next ones, in as few micro batches as hold them") {
  const TempDir directory;
  const Dataset dataset = Counting(directory, 50, 0.0);
  BatchLoader plain(dataset, {.seed = 5, .cut = {kGlobalBatch, 2, 1}});
  std::vector<int32_t> in_order;
  for (int64_t first = 0; first < 3 * kGlobalBatch; first += kGlobalBatch) {
    const auto more = Firsts(plain, 2, Training(plain, first));
    in_order.insert(in_order.end(), more.begin(), more.end());
  }
  int64_t consumed = 0;
  for (const int64_t batch : {2, 2, 2, 5, 8}) {
    std::vector<int32_t> firsts;
    for (int rank = 0; rank < 2; ++rank) {
      BatchLoader loader(dataset, {.seed = 5, .cut = {kGlobalBatch, 2, 2}, .dp_rank = rank});
      const TokenBatch step = Training(loader, consumed, batch);
      CHECK(step.counted_targets == batch * kSequenceLength);
      CHECK(step.microbatches == (batch == 8 ? 2 : batch == 5 ? 2 : 1));
      for (int64_t row = 0; row < step.microbatches * 2; ++row) {
        if (step.targets[row * kSequenceLength] >= 0) {
          firsts.push_back(step.inputs[row * kSequenceLength]);
        }
      }
    }
    CHECK(firsts ==
          std::vector<int32_t>(in_order.begin() + consumed, in_order.begin() + consumed + batch));
    consumed += batch;
  }
  CHECK(Training(plain, 0, 2).microbatches == 1);
}

TEST_CASE("validation sees each held-out sample once and pads the rest") {
  const TempDir directory;
  const Dataset dataset = Counting(directory, 50, 0.26);
  REQUIRE(dataset.validation_samples() == 13);
  const int64_t end = 11;
  std::vector<int32_t> firsts;
  for (int64_t first = 0; first < end; first += kGlobalBatch) {
    for (int rank = 0; rank < 2; ++rank) {
      BatchLoader loader(dataset, {.seed = 5, .cut = {kGlobalBatch, 2, 2}, .dp_rank = rank});
      const TokenBatch batch = Validation(loader, first, end);
      CHECK(batch.counted_targets == std::min(kGlobalBatch, end - first) * kSequenceLength);
      const auto mine = Firsts(loader, 2, batch);
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
    BatchLoader loader(dataset, {.seed = 5,
                                 .cut = {kGlobalBatch, micro, 1},
                                 .packed_documents = true,
                                 .end_of_document = end_of_document});
    int rows_with_end = 0;
    // A whole pass.
    for (int64_t first = 0; first < 37; first += kGlobalBatch) {
      const TokenBatch batch = Training(loader, first);
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
  BatchLoader loader(dataset, {.cut = {kGlobalBatch, 2, 1},
                               .packed_documents = true,
                               .end_of_document = 37 * kSequenceLength});
  const TokenBatch batch = Validation(loader, 0, 1);
  // The first held-out row begins with its own end; all others are padding.
  CHECK(std::vector<int32_t>(batch.document_begin, batch.document_begin + 8) ==
        std::vector<int32_t>{0, 1, 1, 1, 0, 0, 0, 0});
}

TEST_CASE("a padding row is one document, although its tokens are the one that ends documents") {
  const TempDir directory;
  const Dataset dataset = Counting(directory, 50, 0.26);
  BatchLoader loader(dataset,
                     {.cut = {kGlobalBatch, 2, 1}, .packed_documents = true, .end_of_document = 0});
  const TokenBatch batch = Validation(loader, 0, 1);
  CHECK(std::count(batch.document_begin, batch.document_begin + kGlobalBatch * kSequenceLength,
                   0) == kGlobalBatch * kSequenceLength);
}

TEST_CASE("rows that are not packed say nothing of documents") {
  const TempDir directory;
  const Dataset dataset = Counting(directory, 50, 0.0);
  BatchLoader loader(dataset, {.cut = {kGlobalBatch, 2, 1}});
  CHECK(Training(loader, 0).document_begin == nullptr);
}

// On each cut every rank knows the number of all ranks' counted targets.
void CheckCounted(const Dataset& dataset, int64_t first, int64_t end, bool is_training,
                  int64_t expected) {
  for (const int dp : {1, 2, 3, 8}) {
    for (const int micro : {1, 2, 3}) {
      INFO("dp " << dp << ", micro batch " << micro << ", from " << first);
      int64_t counted = 0;
      for (int rank = 0; rank < dp; ++rank) {
        BatchLoader loader(dataset, {.seed = 5, .cut = {kGlobalBatch, micro, dp}, .dp_rank = rank});
        const TokenBatch batch =
            is_training ? Training(loader, first) : Validation(loader, first, end);
        CHECK(batch.counted_targets == expected);
        counted += Counted(loader, micro, batch);
      }
      CHECK(counted == expected);
    }
  }
}

TEST_CASE("every rank knows how many targets of the global batch count, its own or not") {
  const TempDir directory;
  Data data = CountingData(50, 0.26);
  std::vector<uint8_t>& counted = data.documents[0].counted;
  counted.assign(data.documents[0].ids.size(), 0);
  // Single tokens of the first samples, all of some later ones, and nothing else.
  for (size_t i = 0; i < 10 * kSequenceLength; i += 3) counted[i] = 1;
  for (size_t i = 41 * kSequenceLength + 1; i <= 43 * kSequenceLength; ++i) counted[i] = 1;
  const Dataset dataset = Open(directory, data);
  const BatchLoader::Options alone = {.seed = 5,
                                      .cut = {kGlobalBatch, static_cast<int>(kGlobalBatch), 1}};
  BatchLoader loader(dataset, alone);
  int64_t in_a_pass = 0;
  // A step that begins where the second pass begins ends there too.
  for (int64_t first = 0; first + kGlobalBatch <= 37; first += kGlobalBatch) {
    const TokenBatch batch = Training(loader, first);
    const int64_t expected = Counted(loader, kGlobalBatch, batch);
    in_a_pass += expected;
    CheckCounted(dataset, first, 0, /*is_training=*/true, expected);
  }
  CHECK(in_a_pass > 0);
  CHECK(in_a_pass <= 13);
  // The held-out samples are 37 to 49: of these 41 and 42 count.
  CheckCounted(dataset, 0, 11, /*is_training=*/false, 2 * kSequenceLength);
  CheckCounted(dataset, 0, 5, /*is_training=*/false, kSequenceLength);
  CheckCounted(dataset, kGlobalBatch, 13, /*is_training=*/false, 0);
}

TEST_CASE("bits a byte are by the bytes of the counted targets") {
  const TempDir directory;
  Data data = CountingData(50, 0.26);
  {
    const Dataset dataset = Open(directory, data);
    const BatchLoader loader(dataset, {.cut = {kGlobalBatch, 2, 1}});
    CHECK(loader.ValidationTargetBytes(2) == std::nullopt);
  }
  data.token_bytes.assign(256, 3);
  data.token_bytes[37 * kSequenceLength + 1] = 100;
  data.token_bytes[37 * kSequenceLength + 2] = 1000;  // does not count
  data.documents[0].counted.assign(data.documents[0].ids.size(), 1);
  data.documents[0].counted[37 * kSequenceLength + 2] = 0;
  const Dataset dataset = Open(directory, data);
  const BatchLoader loader(dataset, {.cut = {kGlobalBatch, 2, 1}});
  CHECK(loader.ValidationTargetBytes(2) == 100 + 6 * 3);
}

TEST_CASE("rows that the data packed say where its documents begin, whatever their tokens") {
  const TempDir directory;
  // No token ends them.
  const Dataset dataset = Open(
      directory,
      {.documents = {{{10, 11}}, {{20, 21, 22}}, {{30, 31}}, {{40, 41, 42, 43}}}, .packs = true});
  constexpr int kRows = 4;
  BatchLoader loader(dataset, {.cut = {kRows, kRows, 1}, .packed_documents = true});
  const TokenBatch batch = Training(loader, 0);
  REQUIRE(batch.document_begin != nullptr);
  for (int row = 0; row < kRows; ++row) {
    const int32_t* inputs = batch.inputs + row * kSequenceLength;
    const int32_t* targets = batch.targets + row * kSequenceLength;
    const int32_t* begin = batch.document_begin + row * kSequenceLength;
    for (int i = 0; i < kSequenceLength; ++i) {
      INFO("row " << row << ", place " << i);
      const bool begins = i == 0 || inputs[i] != inputs[i - 1] + 1;
      CHECK(begin[i] == (begins ? i : begin[i - 1]));
      if (targets[i] >= 0) CHECK(targets[i] == inputs[i] + 1);
    }
  }
  CHECK(batch.counted_targets == Counted(loader, kRows, batch));
}

}  // namespace
}  // namespace convene::worker
