#include "worker_runtime/data/dataset.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/data/pair_source.h"
#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/data/testing/token_files.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::OpenTokens;
using testing::TestDocument;
using testing::WriteTokenFile;
using Tokens = std::vector<int32_t>;
using Positions = std::vector<int64_t>;

// A file of the tokens 0, 1, 2, ...
std::string Counting(const TempDir& dir, int tokens, const std::string& name = "counting") {
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

struct Filled {
  Tokens inputs, targets;
};

Filled Training(const Dataset& data, int64_t seed, const Positions& positions) {
  Filled filled;
  filled.inputs.resize(positions.size() * data.sequence_length(), 99);
  filled.targets = filled.inputs;
  REQUIRE_OK(
      data.Fill(data.TrainingPlaces(seed, positions), filled.inputs.data(), filled.targets.data()));
  return filled;
}

Filled Validation(const Dataset& data, const Positions& indices) {
  Filled filled;
  filled.inputs.resize(indices.size() * data.sequence_length(), 99);
  filled.targets = filled.inputs;
  REQUIRE_OK(
      data.Fill(data.ValidationPlaces(indices), filled.inputs.data(), filled.targets.data()));
  return filled;
}

int64_t NotIgnored(const Tokens& targets) {
  return std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
}

TEST_CASE("a training row is its sample, its targets the tokens one later") {
  const TempDir dir;
  const auto data = Dataset::Open(Options({Counting(dir, 43)}, 4));
  REQUIRE_OK(data);
  CHECK(data->training_samples() == 10);
  CHECK(data->validation_samples() == 0);
  const Positions positions = {0, 25, kNoSample};
  const Filled filled = Training(*data, 7, positions);
  for (int row = 0; row < 2; ++row) {
    const int64_t sample = SampleAt(7, 10, positions[row]);
    for (int i = 0; i < 4; ++i) {
      CHECK(filled.inputs[row * 4 + i] == sample * 4 + i);
      CHECK(filled.targets[row * 4 + i] == sample * 4 + i + 1);
    }
  }
  CHECK(Tokens(filled.inputs.begin() + 8, filled.inputs.end()) == Tokens(4, 0));
  CHECK(Tokens(filled.targets.begin() + 8, filled.targets.end()) == Tokens(4, -2));
  CHECK(data->CountedTargets(data->TrainingPlaces(7, positions)) == 8);
  CHECK_FALSE(data->has_counted());
}

TEST_CASE("the tail is held out, and training never has it as input") {
  const TempDir dir;
  const auto data = Dataset::Open(Options({Counting(dir, 41)}, 4, 0.25));
  REQUIRE_OK(data);
  CHECK(data->training_samples() == 8);
  CHECK(data->validation_samples() == 2);
  for (int64_t position = 0; position < 8; ++position) {
    CHECK(Training(*data, 1, {position}).inputs[3] < 32);
  }
  const Filled second = Validation(*data, {1});
  CHECK(second.inputs == Tokens{36, 37, 38, 39});
  CHECK(second.targets == Tokens{37, 38, 39, 40});
}

TEST_CASE("data is recognised by its tokens and its cut") {
  const TempDir dir;
  WriteTokenFile(dir.File("same"), 256, {1, 2, 3});
  WriteTokenFile(dir.File("other"), 256, {1, 2, 4});
  const auto same = Dataset::Open(Options({dir.File("same")}, 1));
  const auto other = Dataset::Open(Options({dir.File("other")}, 1));
  CHECK(same->Identity() == "3 tokens with hash ebce9b7632ae733b");
  CHECK(same->Identity() != other->Identity());
  CHECK(same->SamplesText() == "2 training samples of 1 tokens");
  CHECK(same->content_hash() != other->content_hash());
}

TEST_CASE("a token that occurs is found, wherever it stands") {
  const TempDir dir;
  const auto data =
      Dataset::Open(Options({Counting(dir, 41), Counting(dir, 5000, "longer")}, 4, 0.25));
  REQUIRE_OK(data);
  for (const int32_t token : {0, 20, 40, 4999}) CHECK(data->Contains(token));
  CHECK_FALSE(data->Contains(5000));
  CHECK_FALSE(data->Contains(-1));
}

TEST_CASE("the smallest fraction holds out one sample") {
  const TempDir dir;
  const auto data = Dataset::Open(Options({Counting(dir, 41)}, 4, 0.001));
  REQUIRE_OK(data);
  CHECK(data->validation_samples() == 1);
  CHECK(data->training_samples() == 9);
}

TEST_CASE("data that are held out whole have each sample once, in the order of the file") {
  const TempDir dir;
  const auto data = Dataset::Open(Options({Counting(dir, 41), Counting(dir, 5, "short")}, 4, 1.0));
  REQUIRE_OK(data);
  CHECK(data->training_samples() == 0);
  REQUIRE(data->validation_samples() == 11);
  std::vector<int64_t> rows_of_long;
  int64_t of_short = 0;
  for (int64_t index = 0; index < 11; ++index) {
    const Dataset::Place place = data->ValidationPlaces({index})[0];
    if (place.source == 0) rows_of_long.push_back(place.row);
    of_short += place.source;
  }
  CHECK(rows_of_long == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(of_short == 1);
  std::vector<int32_t> inputs(4), targets(4);
  const Dataset::Place last = {.source = 0, .row = 9};
  REQUIRE_OK(data->Fill({last}, inputs.data(), targets.data()));
  CHECK(targets == std::vector<int32_t>{37, 38, 39, 40});
  DatasetOptions megatron = Options({Counting(dir, 41)}, 4, 1.0);
  megatron.order = SampleOrder::kMegatron;
  CHECK_STATUS(Dataset::Open(megatron), absl::StatusCode::kInvalidArgument, "leave the order");
}

TEST_CASE("too little data says how much is needed, and of which source") {
  const TempDir dir;
  const std::string path = Counting(dir, 812);
  CHECK_STATUS(Dataset::Open(Options({path}, 1024)), absl::StatusCode::kInvalidArgument,
               "data has 812 tokens; sequence_length 1024 needs at least 1025");
  CHECK_OK(Dataset::Open(Options({path}, 811)));
  CHECK_STATUS(Dataset::Open(Options({path}, 811, 0.1)), absl::StatusCode::kInvalidArgument,
               "needs at least 1623 (one training sample and one validation sample)");
  CHECK_STATUS(Dataset::Open(Options({path}, 0)), absl::StatusCode::kInvalidArgument,
               "sequence_length 0");
  CHECK_STATUS(Dataset::Open(Options({path}, 8, 1.1)), absl::StatusCode::kInvalidArgument,
               "validation_fraction 1.1");
  DatasetOptions shares = Options({path, Counting(dir, 7, "short")}, 8);
  for (DatasetSource& source : shares.sources) source.weight = 1.0;
  CHECK_STATUS(Dataset::Open(shares), absl::StatusCode::kInvalidArgument,
               dir.File("short") + ": data has 7 tokens");
  CHECK_STATUS(
      Dataset::Open(Options({dir.File("short"), Counting(dir, 5, "shorter")}, 8)),
      absl::StatusCode::kInvalidArgument,
      "each of the 2 files is too short; the first: " + dir.File("short") + ": data has 7");
  CHECK_STATUS(Dataset::Open(Options({}, 8)), absl::StatusCode::kInvalidArgument, "no source");
}

TEST_CASE("a target whose token does not count is -1, and the rest are counted") {
  const TempDir dir;
  std::mt19937 random(1);
  TestDocument document;
  for (int i = 0; i < 101; ++i) {
    document.ids.push_back(i);
    document.counted.push_back(random() % 3 == 0);
  }
  TokenFileInfo info;
  info.vocabulary_size = 200;
  info.has_counted = true;
  for (int i = 0; i < 200; ++i) info.token_bytes.push_back(static_cast<uint16_t>(i % 7));
  WriteTokenFile(dir.File("t"), info, {document});
  const auto data = Dataset::Open(Options({dir.File("t")}, 10, 0.3));
  REQUIRE_OK(data);
  CHECK(data->has_counted());
  const auto check = [&](const Filled& filled, int64_t counted, std::optional<int64_t> bytes) {
    int64_t sum = 0;
    for (size_t i = 0; i < filled.inputs.size(); ++i) {
      const int32_t next = filled.inputs[i] + 1;
      CHECK(filled.targets[i] == (document.counted[next] != 0 ? next : -1));
      if (filled.targets[i] >= 0) sum += next % 7;
    }
    CHECK(counted == NotIgnored(filled.targets));
    if (bytes.has_value()) CHECK(*bytes == sum);
  };
  for (int64_t position = 0; position < 10; position += 2) {
    const Positions positions = {position, position + 1};
    check(Training(*data, 3, positions), data->CountedTargets(data->TrainingPlaces(3, positions)),
          std::nullopt);
  }
  const Positions all = {0, 1, 2};
  REQUIRE(data->validation_samples() == 3);
  check(Validation(*data, all), data->CountedTargets(data->ValidationPlaces(all)),
        data->ValidationTargetBytes(all));
}

TEST_CASE("bytes of targets are not known where a source does not know them") {
  const TempDir dir;
  const auto data = Dataset::Open(Options({Counting(dir, 41)}, 4, 0.25));
  REQUIRE_OK(data);
  CHECK_FALSE(data->ValidationTargetBytes(Positions{0}).has_value());
}

TEST_CASE("sources keep their shares and each comes round in its own order") {
  const TempDir dir;
  // Tokens tell the source: thousands.
  DatasetOptions options;
  options.sequence_length = 4;
  const std::vector<double> shares = {0.5, 0.3, 0.2};
  for (int source = 0; source < 3; ++source) {
    Tokens tokens(40 * (source + 1) + 1);
    std::iota(tokens.begin(), tokens.end(), 1000 * source);
    const std::string path = dir.File(absl::StrCat("s", source));
    WriteTokenFile(path, 65536, tokens);
    options.sources.push_back({OpenTokens(path), shares[source]});
  }
  const auto data = Dataset::Open(options);
  REQUIRE_OK(data);
  CHECK(data->training_samples() == 60);
  std::vector<std::vector<int64_t>> seen(3);  // samples of each source, in order
  for (int64_t position = 0; position < 1000; ++position) {
    const int32_t first = Training(*data, 5, {position}).inputs[0];
    seen[first / 1000].push_back(first % 1000 / 4);
    for (int source = 0; source < 3; ++source) {
      const double share = shares[source] * static_cast<double>(position + 1);
      CHECK(std::abs(static_cast<double>(seen[source].size()) - share) < 2.0);
    }
  }
  for (int source = 0; source < 3; ++source) {
    const size_t samples = 10 * (source + 1);
    for (size_t pass = 0; (pass + 1) * samples <= seen[source].size(); ++pass) {
      const auto begin = seen[source].begin() + static_cast<int64_t>(pass * samples);
      CHECK(std::set<int64_t>(begin, begin + static_cast<int64_t>(samples)).size() == samples);
    }
  }
  // The first source goes in the order that it has alone.
  for (size_t i = 0; i < seen[0].size(); ++i) {
    CHECK(seen[0][i] == SampleAt(5, 10, static_cast<int64_t>(i)));
  }
}

TEST_CASE("without shares all sources come round together, in orders of their own") {
  const TempDir dir;
  const auto data =
      Dataset::Open(Options({Counting(dir, 81, "a"), Counting(dir, 81, "b")}, 4, 0.1));
  REQUIRE_OK(data);
  CHECK(data->training_samples() == 36);
  CHECK(data->validation_samples() == 4);
  std::multiset<int32_t> firsts;
  Tokens order;
  for (int64_t position = 0; position < 36; ++position) {
    order.push_back(Training(*data, 1, {position}).inputs[0]);
    firsts.insert(order.back());
  }
  for (int32_t first = 0; first < 72; first += 4) CHECK(firsts.count(first) == 2);
  // The two sources have other orders: pairs of neighbours are seldom the same sample.
  int same = 0;
  for (size_t i = 0; i < 36; i += 2) same += order[i] == order[i + 1];
  CHECK(same < 6);
  std::multiset<int32_t> held_out;
  for (int64_t index = 0; index < 4; ++index) {
    held_out.insert(Validation(*data, {index}).inputs[0]);
  }
  CHECK(held_out == std::multiset<int32_t>{72, 72, 76, 76});
  CHECK_THAT(data->Identity(), Catch::Contains(" + ") && Catch::Contains("share 0.5"));
}

TEST_CASE("the tokenizer is that of the first source that says") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 10;
  info.tokenizer = {"tekken", "/mistral", 2, 7};
  WriteTokenFile(dir.File("a"), info, {{{1, 2, 3, 4, 5}, {}}});
  const auto data = Dataset::Open(Options({Counting(dir, 41), dir.File("a")}, 2));
  REQUIRE_OK(data);
  CHECK(data->tokenizer().end_of_document == 7);
}

TEST_CASE("ids outside the model's vocabulary are refused, told or found") {
  const TempDir dir;
  DatasetOptions options = Options({Counting(dir, 41)}, 4);
  options.vocabulary_size = 40;
  CHECK_STATUS(Dataset::Open(options), absl::StatusCode::kInvalidArgument,
               "vocabulary of 65536; the model's vocabulary_size is 40");
  // nanotron's files do not say.
  std::string tokens;
  for (uint16_t i = 0; i < 41; ++i) {
    tokens.append(reinterpret_cast<const char*>(&i), sizeof(i));
  }
  REQUIRE_OK(WriteFileAtomic(dir.File("x.ds"), tokens));
  REQUIRE_OK(WriteFileAtomic(dir.File("x.ds.metadata"), "gpt2|2\n41\n41 T"));
  options = Options({dir.File("x.ds")}, 4);
  options.vocabulary_size = 40;
  const auto data = Dataset::Open(options);
  REQUIRE_OK(data);
  absl::Status status;
  Tokens inputs(4), targets(4);
  for (int64_t position = 0; position < 10; ++position) {
    status.Update(data->Fill(data->TrainingPlaces(1, {position}), inputs.data(), targets.data()));
  }
  CHECK_STATUS(status, absl::StatusCode::kInvalidArgument, "x.ds: a sample has the token 40");
}

TEST_CASE("a model may lack a file's special tokens, until a sample has one") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 10;
  info.token_bytes = {1, 1, 1, 1, 1, 1, 0, 0, 0, 0};  // special from 6 on
  info.tokenizer.end_of_document = 7;
  WriteTokenFile(dir.File("a"), info, {{{1, 2, 7}, {}}, {{3, 8, 7}, {}}});
  DatasetOptions options = Options({dir.File("a")}, 2);
  options.vocabulary_size = 7;
  CHECK_STATUS(Dataset::Open(options), absl::StatusCode::kInvalidArgument,
               "a has ids for a vocabulary of 8; the model's vocabulary_size is 7");
  options.vocabulary_size = 8;
  const auto data = Dataset::Open(options);
  REQUIRE_OK(data);
  REQUIRE(data->training_samples() == 2);
  Tokens inputs(4), targets(4);
  CHECK_STATUS(data->Fill(data->TrainingPlaces(1, {0, 1}), inputs.data(), targets.data()),
               absl::StatusCode::kInvalidArgument, "a: a sample has the token 8");
  WriteTokenFile(dir.File("b"), info, {{{1, 4, 7}, {}}, {{3, 5, 7}, {}}});
  const auto pairs = JoinPairs(OpenTokens(dir.File("a")), OpenTokens(dir.File("b")));
  REQUIRE_OK(pairs);
  CHECK((*pairs)->document_vocabulary_size() == 8);
}

// Documents whose tokens are 100 * document + place + 1, of random lengths.
std::vector<TestDocument> RandomDocuments(int count, int longest, bool masked) {
  std::mt19937 random(4);
  std::vector<TestDocument> documents(count);
  for (int i = 0; i < count; ++i) {
    const int length = static_cast<int>(random() % (longest + 1));
    for (int k = 0; k < length; ++k) {
      documents[i].ids.push_back(100 * i + k + 1);
      if (masked) documents[i].counted.push_back(k >= length / 2);
    }
  }
  return documents;
}

TEST_CASE("packed rows hold whole documents, and no target reaches into another one") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 1 << 20;
  for (const bool masked : {false, true}) {
    for (const bool drop : {false, true}) {
      info.has_counted = masked;
      const std::vector<TestDocument> documents = RandomDocuments(200, 40, masked);
      WriteTokenFile(dir.File("t"), info, documents);
      DatasetOptions options = Options({dir.File("t")}, 32, 0.2);
      options.packing = PackingOptions{.drop_too_long = drop};
      const auto data = Dataset::Open(options);
      REQUIRE_OK(data);
      CHECK(data->has_documents());
      std::multiset<int32_t> seen;
      const auto look = [&](const Filled& filled, const Tokens& begin, int64_t counted) {
        CHECK(counted == NotIgnored(filled.targets));
        for (int i = 0; i < 32; ++i) {
          const int32_t token = filled.inputs[i];
          if (begin[i] == i && token != 0) seen.insert(token / 100);
          if (filled.targets[i] < 0) continue;
          CHECK(filled.targets[i] == token + 1);   // of the same document
          CHECK(token % 100 - 1 == i - begin[i]);  // which begins where it is said to
          CHECK(begin[i + 1 < 32 ? i + 1 : i] == begin[i]);
          if (masked) CHECK(documents[token / 100].counted[token % 100] == 1);
        }
      };
      Tokens begin(32);
      for (int64_t position = 0; position < data->training_samples(); ++position) {
        const auto places = data->TrainingPlaces(9, {position});
        data->FillDocuments(places, begin.data());
        look(Training(*data, 9, {position}), begin, data->CountedTargets(places));
      }
      for (const int32_t document : seen) CHECK(document < 160);
      for (int64_t index = 0; index < data->validation_samples(); ++index) {
        const auto places = data->ValidationPlaces({index});
        data->FillDocuments(places, begin.data());
        look(Validation(*data, {index}), begin, data->CountedTargets(places));
      }
      std::multiset<int32_t> expected;
      for (int i = 0; i < 200; ++i) {
        const size_t length = documents[i].ids.size();
        if (length >= 2 && (!drop || length <= 32)) expected.insert(i);
      }
      CHECK(seen == expected);
      REQUIRE(data->packing_counts().has_value());
      CHECK(data->packing_counts()->documents == 200);
      CHECK((data->packing_counts()->dropped > 0) == drop);
      CHECK((data->packing_counts()->cut > 0) == !drop);
    }
  }
}

TEST_CASE("rows of padding are one document") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 1 << 20;
  WriteTokenFile(dir.File("t"), info, {{{1, 2, 3}, {}}, {{4, 5}, {}}});
  DatasetOptions options = Options({dir.File("t")}, 8);
  options.packing.emplace();
  const auto data = Dataset::Open(options);
  REQUIRE_OK(data);
  const Positions positions = {0, kNoSample};
  const Filled filled = Training(*data, 1, positions);
  Tokens begin(16, 99);
  data->FillDocuments(data->TrainingPlaces(1, positions), begin.data());
  CHECK(filled.inputs == Tokens{1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(filled.targets == Tokens{2, 3, -1, 5, -1, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2, -2});
  CHECK(begin == Tokens{0, 0, 0, 3, 3, 5, 5, 5, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(data->CountedTargets(data->TrainingPlaces(1, positions)) == 3);
  CHECK_THAT(data->SamplesText(),
             Catch::StartsWith("1 training rows of 8 tokens, packed with 2 documents with hash "));
}

TEST_CASE("a pair of answers fills a row, half of it each, and counts once") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 100;
  info.has_counted = true;
  WriteTokenFile(dir.File("chosen"), info,
                 {{{1, 2, 3}, {0, 1, 1}}, {{1, 2, 3, 4, 5}, {0, 0, 1, 1, 1}}, {{6, 7}, {0, 1}}});
  WriteTokenFile(dir.File("rejected"), info,
                 {{{1, 9}, {0, 1}}, {{1, 2, 8}, {0, 0, 1}}, {{6, 9}, {0, 1}}});
  const auto joined = JoinPairs(OpenTokens(dir.File("chosen")), OpenTokens(dir.File("rejected")));
  REQUIRE_OK(joined);
  DatasetOptions options = {.sources = {{*joined, std::nullopt}}, .sequence_length = 8};
  options.packing.emplace();
  options.pairs = true;
  const auto data = Dataset::Open(options);
  REQUIRE_OK(data);
  REQUIRE(data->row_count() == 3);
  const auto places = data->RowPlaces({0, 1, kNoSample});
  Tokens inputs(24, 99), targets(24, 99), begin(24, 99);
  REQUIRE_OK(data->Fill(places, inputs.data(), targets.data()));
  data->FillDocuments(places, begin.data());
  CHECK(inputs == Tokens{1, 2, 3, 0, 1, 9, 0, 0, 1, 2, 3, 4, 1, 2, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(targets == Tokens{2,  3, -1, -1, 9,  -1, -2, -2, -1, 3,  4,  -1,
                          -1, 8, -1, -2, -2, -2, -2, -2, -2, -2, -2, -2});
  CHECK(begin == Tokens{0, 0, 0, 3, 4, 4, 6, 6, 0, 0, 0, 0, 4, 4, 4, 7, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(data->CountedTargets(places) == 2);
  CHECK(data->RowNumber(places[1]) == 1);
  CHECK(data->packing_counts()->cut == 1);
  CHECK_THAT(data->SamplesText(), Catch::StartsWith("3 training pairs in rows of 8 tokens"));
  // Left out where they are too long, and held out from the end.
  options.packing->drop_too_long = true;
  options.validation_fraction = 0.5;
  const auto fewer = Dataset::Open(options);
  REQUIRE_OK(fewer);
  CHECK(fewer->training_samples() == 1);
  CHECK(fewer->RowNumber(fewer->ValidationPlaces({0})[0]) == 1);
  CHECK(Validation(*fewer, {0}).inputs == Tokens{6, 7, 0, 0, 6, 9, 0, 0});
  options.sequence_length = 2;
  CHECK_STATUS(Dataset::Open(options), absl::StatusCode::kInvalidArgument,
               "of 3 pairs 3 have an answer that is longer than half of sequence_length 2");
}

TEST_CASE("data that cannot be packed says why") {
  const TempDir dir;
  DatasetOptions options = Options({Counting(dir, 41)}, 8);
  options.packing = PackingOptions{.drop_too_long = true};
  CHECK_STATUS(Dataset::Open(options), absl::StatusCode::kInvalidArgument,
               "of 1 documents 1 are longer than sequence_length 8");
  options.order = SampleOrder::kMegatron;
  CHECK_STATUS(Dataset::Open(options), absl::StatusCode::kInvalidArgument, "without packing");
}

TEST_CASE("rows in Megatron's order are megatron-core's samples") {
  // The first case of golden/megatron_order.txt: token k of document s is 1000 * s + k.
  const TempDir dir;
  std::vector<TestDocument> documents(100);
  uint64_t state = 1;
  for (int s = 0; s < 100; ++s) {
    state = state * 6364136223846793005 + 1442695040888963407;
    documents[s].ids.resize((state >> 33) % 31);
    std::iota(documents[s].ids.begin(), documents[s].ids.end(), 1000 * s);
  }
  TokenFileInfo info;
  info.vocabulary_size = 100000;
  WriteTokenFile(dir.File("t"), info, documents);
  DatasetOptions options = Options({dir.File("t")}, 16);
  options.order = SampleOrder::kMegatron;
  options.seed = 1234;
  options.run_samples = 10;
  const auto data = Dataset::Open(options);
  REQUIRE_OK(data);
  CHECK(data->training_samples() == 98);
  const Filled filled = Training(*data, 1234, {0, 1, 2, 3});
  CHECK(filled.inputs[0] == 14005);
  CHECK(filled.inputs[16] == 22019);
  CHECK(filled.inputs[32] == 18009);
  CHECK(filled.inputs[48] == 4021);
}

TEST_CASE("Megatron's split of sequences rounds halves to the even one") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 10000;
  for (const auto& [sequences, first_held_out] : {std::pair{10, 8}, {6, 4}}) {
    std::vector<TestDocument> documents(sequences);
    for (int i = 0; i < sequences; ++i) documents[i].ids.assign(10, i);
    WriteTokenFile(dir.File("t"), info, documents);
    DatasetOptions options = Options({dir.File("t")}, 4, 0.25);
    options.order = SampleOrder::kMegatron;
    options.run_samples = 1;
    const auto data = Dataset::Open(options);
    REQUIRE_OK(data);
    CHECK(Validation(*data, {0}).inputs[0] == first_held_out);
  }
}

TEST_CASE("Megatron's order has each sample of an epoch once, cut from shuffled documents") {
  const TempDir dir;
  TokenFileInfo info;
  info.vocabulary_size = 1 << 20;
  std::vector<TestDocument> documents = RandomDocuments(100, 30, /*masked=*/false);
  WriteTokenFile(dir.File("t"), info, documents);
  DatasetOptions options = Options({dir.File("t")}, 16, 0.1);
  options.order = SampleOrder::kMegatron;
  options.seed = 1234;
  options.run_samples = 10;
  const auto data = Dataset::Open(options);
  REQUIRE_OK(data);
  std::set<int32_t> inputs;
  for (int64_t position = 0; position < data->training_samples(); ++position) {
    const Filled filled = Training(*data, 1234, {position});
    for (int i = 0; i < 16; ++i) {
      CHECK(inputs.insert(filled.inputs[i]).second);
      CHECK(filled.inputs[i] < 9000);  // the last tenth of the documents is held out
      if (i < 15) CHECK(filled.targets[i] == filled.inputs[i + 1]);
    }
  }
  CHECK(data->validation_samples() > 0);
  CHECK(Validation(*data, {0}).inputs[0] / 100 == 90);
  CHECK_THAT(data->SamplesText(), Catch::EndsWith("in Megatron's order of 1 epochs"));
}

}  // namespace
}  // namespace convene::worker
