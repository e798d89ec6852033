#include "worker_runtime/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "worker_runtime/checkpoint/testing/test_checkpoint.h"
#include "worker_runtime/checkpoint/testing/test_layout.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::CheckHolds;
using testing::CutModel;
using testing::InfoOf;
using testing::kModel;
using testing::RankPieces;
using testing::TokenizerOf;
using testing::WholeBox;
using testing::WriteCheckpoint;
using testing::WriteRank;

RankPieces Cut(int dp, int tp, uint64_t seed) {
  std::mt19937_64 random(seed);
  return CutModel(kModel, dp, tp, &random);
}

std::string StepPath(const TempDir& dir, int step) {
  return dir.File("step_0000000" + std::to_string(step));
}

TEST_CASE("a checkpoint of any layout is read by any other") {
  struct Layout {
    int dp, tp;
  };
  const std::vector<Layout> layouts = {{1, 1}, {2, 1}, {1, 2}, {4, 2}, {3, 4}, {7, 1}};
  for (const Layout& written : layouts) {
    TempDir dir;
    REQUIRE_OK(WriteCheckpoint(dir.path(), 5, 0, Cut(written.dp, written.tp, 1)));
    const auto reader = CheckpointReader::Open(StepPath(dir, 5));
    REQUIRE_OK(reader);
    for (const Layout& read : layouts) {
      INFO("dp" << written.dp << " tp" << written.tp << " -> dp" << read.dp << " tp" << read.tp);
      CHECK_OK(CheckHolds(*reader, 0, Cut(read.dp, read.tp, 2)));
    }
  }
}

TEST_CASE("random layouts written are read by random layouts") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 12; ++round) {
    TempDir dir;
    const int dp = 1 + random() % 4, tp = 1 + random() % 3;
    REQUIRE_OK(WriteCheckpoint(dir.path(), round, round, Cut(dp, tp, random())));
    std::vector<std::string> refused;
    const auto reader = OpenNewest(dir.path(), round + 1, &refused);
    REQUIRE_OK(reader);
    REQUIRE_OK(CheckHolds(*reader, round, Cut(1 + random() % 4, 1 + random() % 3, random())));
  }
}

TEST_CASE("the manifest carries the information to the letter") {
  TempDir dir;
  const RankPieces ranks = Cut(2, 2, 3);
  REQUIRE_OK(WriteCheckpoint(dir.path(), 5, 0, ranks));
  const auto reader = CheckpointReader::Open(StepPath(dir, 5));
  REQUIRE_OK(reader);
  CHECK(reader->info() == InfoOf(5, ranks.size()));
  CHECK(reader->name() == StepPath(dir, 5));
}

TEST_CASE("ranks write at the same time") {
  TempDir dir;
  const RankPieces ranks = Cut(4, 2, 4);
  std::vector<absl::Status> statuses(ranks.size());
  std::vector<Thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back("rank", [&, rank] {
      statuses[rank] = WriteRank(dir.File("new/place"), 5, static_cast<int>(rank), 0, ranks[rank]);
    });
  }
  for (Thread& thread : threads) thread.Join();
  for (const absl::Status& status : statuses) CHECK_OK(status);
  REQUIRE_OK(PublishCheckpoint(dir.File("new/place"), InfoOf(5, ranks.size())));
  const auto reader = CheckpointReader::Open(dir.File("new/place/step_00000005"));
  REQUIRE_OK(reader);
  CHECK_OK(CheckHolds(*reader, 0, Cut(1, 1, 5)));
}

TEST_CASE("a piece larger than a chunk is written as several and read in part") {
  TempDir dir;
  const std::vector<int64_t> shape = {3000, 1500};  // 4,500,000 elements: a chunk and a bit
  std::vector<float> values(3000 * 1500);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const TensorPiece whole = {"large", shape, WholeBox(shape), 0, 3000 * 1500};
  REQUIRE_OK(WriteShard(dir.path(), 5, 0, {{whole, absl::MakeConstSpan(values)}}));
  REQUIRE_OK(PublishCheckpoint(dir.path(), InfoOf(5, 1)));
  const auto reader = CheckpointReader::Open(StepPath(dir, 5));
  REQUIRE_OK(reader);
  std::vector<float> column(3000, -1.0f);
  REQUIRE_OK(
      reader->Read({{{"large", shape, {{0, 700}, {3000, 1}}, 0, 3000}, absl::MakeSpan(column)}}));
  int wrong = 0;
  for (int64_t row = 0; row < 3000; ++row) wrong += column[row] != values[row * 1500 + 700];
  CHECK(wrong == 0);
}

TEST_CASE("what the checkpoint lacks is refused by name") {
  TempDir dir;
  REQUIRE_OK(WriteCheckpoint(dir.path(), 5, 0, Cut(2, 1, 6)));
  const auto reader = CheckpointReader::Open(StepPath(dir, 5));
  REQUIRE_OK(reader);
  float one = 0;
  const absl::Span<float> value(&one, 1);
  CHECK_STATUS(reader->Read({{{"bias", {1}, {{0}, {1}}, 0, 1}, value}}),
               absl::StatusCode::kFailedPrecondition, "tensor 'bias' is in no chunk");
  CHECK_STATUS(reader->Read({{{"experts", {1}, {{0}, {1}}, 0, 1}, value}}),
               absl::StatusCode::kFailedPrecondition, "has shape [4, 3, 5] where it was written");
  CHECK_STATUS(reader->Read({{{"experts", {1}, {{0}, {2}}, 0, 1}, value}}),
               absl::StatusCode::kInvalidArgument, "is not inside the shape");
  CHECK_OK(reader->Read({{{"bias", {}, {}, 0, 0}, {}}}));
}

TEST_CASE("data of another length or type than a piece can have is refused by name") {
  TempDir dir;
  const TensorPiece piece = {"weight", {2}, {{0}, {2}}, 0, 2};
  const std::vector<float> three(3);
  CHECK_STATUS(WriteShard(dir.path(), 5, 0, {{piece, absl::MakeConstSpan(three)}}),
               absl::StatusCode::kInvalidArgument,
               "tensor 'weight': its data is 3 elements in fp32, not 2 in fp32 or bf16");
  REQUIRE_OK(WriteShard(dir.path(), 5, 0, {{piece, absl::MakeConstSpan(three).first(2)}}));
  REQUIRE_OK(PublishCheckpoint(dir.path(), InfoOf(5, 1)));
  std::vector<double> two(2);
  CHECK_STATUS(CheckpointReader::Open(StepPath(dir, 5))->Read({{piece, absl::MakeSpan(two)}}),
               absl::StatusCode::kInvalidArgument, "2 elements in fp64, not 2 in fp32 or bf16");
}

// Layouts write values in one type, and other layouts read them in the other.
template <typename Stored, typename Wanted>
void CheckConverts() {
  for (const int tp : {1, 3}) {
    TempDir dir;
    REQUIRE_OK(WriteCheckpoint<Stored>(dir.path(), 5, 1, Cut(2, tp, 11)));
    const auto reader = CheckpointReader::Open(StepPath(dir, 5));
    REQUIRE_OK(reader);
    for (const int dp : {1, 3}) {
      CHECK_OK((CheckHolds<Stored, Wanted>(*reader, 1, Cut(dp, 2, 12))));
    }
  }
}

TEST_CASE("values are read in the type that is wanted, whichever they were written in") {
  CheckConverts<float, BFloat16>();
  CheckConverts<BFloat16, float>();
  CheckConverts<BFloat16, BFloat16>();
}

TEST_CASE("fp32 becomes bf16 by rounding to nearest, ties to even; every bf16 is an fp32") {
  TempDir dir;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {0x1.00p0f,  0x1.01p0f, 0x1.010002p0f, 0x1.03p0f,
                                     -0x1.03p0f, -0.0f,     kInfinity,     0x1.fffp127f};
  const std::vector<float> rounded = {0x1.00p0f,  0x1.00p0f, 0x1.02p0f, 0x1.04p0f,
                                      -0x1.04p0f, -0.0f,     kInfinity, kInfinity};
  const TensorPiece piece = {"weight", {8}, {{0}, {8}}, 0, 8};
  REQUIRE_OK(WriteShard(dir.path(), 5, 0, {{piece, absl::MakeConstSpan(values)}}));
  REQUIRE_OK(PublishCheckpoint(dir.path(), InfoOf(5, 1)));
  std::vector<BFloat16> narrow(8);
  REQUIRE_OK(CheckpointReader::Open(StepPath(dir, 5))->Read({{piece, absl::MakeSpan(narrow)}}));
  REQUIRE_OK(WriteShard(dir.path(), 6, 0, {{piece, absl::MakeConstSpan(narrow)}}));
  REQUIRE_OK(PublishCheckpoint(dir.path(), InfoOf(6, 1)));
  std::vector<float> wide(8, -1.0f);
  REQUIRE_OK(CheckpointReader::Open(StepPath(dir, 6))->Read({{piece, absl::MakeSpan(wide)}}));
  CHECK(std::memcmp(wide.data(), rounded.data(), 8 * sizeof(float)) == 0);
}

// The version of a manifest or an index, and its lines of tensors.
std::string VersionAndTensors(const std::string& path) {
  std::string found;
  for (const absl::string_view line : absl::StrSplit(*ReadFile(path), '\n')) {
    if (absl::StartsWith(line, "tensor ")) absl::StrAppend(&found, ", ", line);
    if (absl::StartsWith(line, "convene-")) absl::StrAppend(&found, line);
  }
  return found;
}

TEST_CASE("element types are written where one is not fp32; all in fp32 is the version before") {
  TempDir dir;
  const std::vector<float> wide = {1.0f, 2.0f};
  const std::vector<BFloat16> narrow = {BFloat16(3.0f), BFloat16(4.0f)};
  const TensorPiece first = {"weight", {4}, {{0}, {2}}, 0, 2};
  const TensorPiece second = {"weight", {4}, {{2}, {2}}, 0, 2};
  REQUIRE_OK(WriteShard(dir.path(), 5, 0, {{first, absl::MakeConstSpan(wide)}}));
  REQUIRE_OK(WriteShard(dir.path(), 5, 1, {{second, absl::MakeConstSpan(narrow)}}));
  REQUIRE_OK(PublishCheckpoint(dir.path(), InfoOf(5, 2)));
  CHECK(VersionAndTensors(StepPath(dir, 5) + "/rank_00000.index") ==
        "convene-checkpoint-index 3, tensor 1 4 weight");
  CHECK(VersionAndTensors(StepPath(dir, 5) + "/rank_00001.index") ==
        "convene-checkpoint-index 4, tensor bf16 1 4 weight");
  CHECK(VersionAndTensors(StepPath(dir, 5) + "/manifest") ==
        "convene-checkpoint-manifest 4, tensor fp32 1 4 weight, tensor bf16 1 4 weight");
  std::vector<float> all(4);
  REQUIRE_OK(CheckpointReader::Open(StepPath(dir, 5))
                 ->Read({{{"weight", {4}, {{0}, {4}}, 0, 4}, absl::MakeSpan(all)}}));
  CHECK(all == std::vector<float>{1.0f, 2.0f, 3.0f, 4.0f});
}

TEST_CASE("an optimizer is named where it is not AdamW, whose checkpoints older programs read") {
  TempDir dir;
  const std::vector<float> values = {1.0f, 2.0f};
  for (const char* const optimizer : {"adamw", "sgd"}) {
    INFO(optimizer);
    REQUIRE_OK(WriteShard(dir.path(), 5, 0,
                          {{{"weight", {2}, {{0}, {2}}, 0, 2}, absl::MakeConstSpan(values)}}));
    CheckpointInfo info = InfoOf(5, 1);
    info.optimizer = optimizer;
    REQUIRE_OK(PublishCheckpoint(dir.path(), info));
    const auto reader = CheckpointReader::Open(StepPath(dir, 5));
    REQUIRE_OK(reader.status());
    CHECK(reader->info() == info);
    CHECK(VersionAndTensors(StepPath(dir, 5) + "/manifest") ==
          (info.optimizer == "adamw" ? "convene-checkpoint-manifest 3, tensor 1 2 weight"
                                     : "convene-checkpoint-manifest 5, tensor fp32 1 2 weight"));
  }
}

TEST_CASE("a spike guard's means come back, and only where there is a guard") {
  TempDir dir;
  const std::vector<float> values = {1.0f, 2.0f};
  REQUIRE_OK(WriteShard(dir.path(), 5, 0,
                        {{{"weight", {2}, {{0}, {2}}, 0, 2}, absl::MakeConstSpan(values)}}));
  CheckpointInfo info = InfoOf(5, 1);
  info.spike_guard = "99 2.5 0.75";
  REQUIRE_OK(PublishCheckpoint(dir.path(), info));
  const auto reader = CheckpointReader::Open(StepPath(dir, 5));
  REQUIRE_OK(reader.status());
  CHECK(reader->info() == info);
  CHECK(VersionAndTensors(StepPath(dir, 5) + "/manifest") ==
        "convene-checkpoint-manifest 6, tensor fp32 1 2 weight");
}

TEST_CASE("a checkpoint of adapters names their base, with a spike guard or without") {
  for (const char* const guard : {"", "99 2.5 0.75"}) {
    TempDir dir;
    const std::vector<float> values = {1.0f, 2.0f};
    REQUIRE_OK(WriteShard(dir.path(), 5, 0,
                          {{{"weight", {2}, {{0}, {2}}, 0, 2}, absl::MakeConstSpan(values)}}));
    CheckpointInfo info = InfoOf(5, 1);
    info.spike_guard = guard;
    info.base = "/models/a \\folder";
    REQUIRE_OK(PublishCheckpoint(dir.path(), info));
    const auto reader = CheckpointReader::Open(StepPath(dir, 5));
    REQUIRE_OK(reader.status());
    CHECK(reader->info() == info);
    CHECK(VersionAndTensors(StepPath(dir, 5) + "/manifest") ==
          "convene-checkpoint-manifest 7, tensor fp32 1 2 weight");
  }
}

TEST_CASE("a checkpoint remembers its tokenizer to the letter, with its files") {
  TempDir dir;
  const RankPieces ranks = Cut(1, 1, 12);
  REQUIRE_OK(WriteRank(dir.path(), 5, 0, 0, ranks[0]));
  CheckpointInfo info = InfoOf(5, 1);
  info.tokenizer = {
      .path = "/models/a \\folder", .fingerprint = ~uint64_t{0}, .chat_template = "chat\nml"};
  REQUIRE_OK(PublishCheckpoint(dir.path(), info, TokenizerOf(1)));
  const auto reader = CheckpointReader::Open(StepPath(dir, 5));
  REQUIRE_OK(reader.status());
  CHECK(reader->info() == info);
  CHECK(reader->tokenizer_files() == MarksOf(TokenizerOf(1)));
  CHECK_OK(reader->Verify());
  const auto folder = reader->TokenizerFolder();
  REQUIRE_OK(folder.status());
  for (const auto& [name, content] : TokenizerOf(1))
    CHECK(*ReadFile(*folder + "/" + name) == content);
  CHECK(VersionAndTensors(StepPath(dir, 5) + "/manifest")
            .starts_with("convene-checkpoint-manifest 8, "));
}

TEST_CASE("a checkpoint remembers how long a text its model is made for, with a tokenizer or not") {
  for (const char* const tokenizer : {"", "/models/a"}) {
    TempDir dir;
    const std::vector<float> values = {1.0f, 2.0f};
    REQUIRE_OK(WriteShard(dir.path(), 5, 0,
                          {{{"weight", {2}, {{0}, {2}}, 0, 2}, absl::MakeConstSpan(values)}}));
    CheckpointInfo info = InfoOf(5, 1);
    info.tokenizer.path = tokenizer;
    info.longest_text = 32768;
    REQUIRE_OK(PublishCheckpoint(dir.path(), info));
    const auto reader = CheckpointReader::Open(StepPath(dir, 5));
    REQUIRE_OK(reader.status());
    CHECK(reader->info() == info);
    CHECK(VersionAndTensors(StepPath(dir, 5) + "/manifest") ==
          "convene-checkpoint-manifest 9, tensor fp32 1 2 weight");
  }
}

TEST_CASE("a checkpoint says what its run began with, and only where that was named") {
  for (const char* const beginning : {"", "none", "/main/step_00000004 \n\\"}) {
    TempDir dir;
    REQUIRE_OK(WriteRank(dir.path(), 5, 0, 0, Cut(1, 1, 12)[0]));
    CheckpointInfo info = InfoOf(5, 1);
    info.began_with = beginning;
    REQUIRE_OK(PublishCheckpoint(dir.path(), info));
    const auto reader = CheckpointReader::Open(StepPath(dir, 5));
    REQUIRE_OK(reader.status());
    CHECK(reader->info() == info);
    CHECK(VersionAndTensors(StepPath(dir, 5) + "/manifest")
              .starts_with(*beginning == 0 ? "convene-checkpoint-manifest 3, "
                                           : "convene-checkpoint-manifest 9, "));
  }
}

TEST_CASE("the newest checkpoint of a run is found beside those of other runs") {
  TempDir dir;
  const RankPieces ranks = Cut(1, 1, 12);
  const auto write = [&](int64_t step, const std::string& beginning) {
    REQUIRE_OK(WriteRank(dir.path(), step, 0, 0, ranks[0]));
    CheckpointInfo info = InfoOf(step, 1);
    info.began_with = beginning;
    REQUIRE_OK(PublishCheckpoint(dir.path(), info));
  };
  write(3, "none");
  write(5, "/main");
  write(8, "/main");
  write(9, "");
  std::vector<std::string> refused;
  const auto newest = [&](const RunBeginning& run, int64_t below_step = 100) {
    const auto reader = OpenNewest(dir.path(), below_step, &refused, &run);
    return reader.ok() ? reader->info().step : -1;
  };
  CHECK(OpenNewest(dir.path(), 100, &refused)->info().step == 9);
  CHECK(newest({.began_with = "none"}) == 3);
  CHECK(newest({.began_with = "/main"}) == 8);
  CHECK(newest({.began_with = "/main"}, 8) == 5);
  CHECK(newest({.began_with = "/main", .step = 6}, 8) == -1);
  CHECK(newest({.began_with = "/other"}) == -1);
  CHECK(refused.empty());
  // A damaged one may be of any run.
  REQUIRE_OK(WriteFileAtomic(StepPath(dir, 5) + "/manifest", "cut"));
  CHECK(newest({.began_with = "/main", .step = 6}, 8) == -1);
  CHECK(refused.empty());
  CHECK(newest({.began_with = "none"}) == 3);
  CHECK(refused.size() == 1);
}

TEST_CASE(
    "a tokenizer's file that is damaged or missing is told; without the folder there is none") {
  TempDir dir;
  REQUIRE_OK(WriteCheckpoint(dir.path(), 5, 1, Cut(1, 1, 12), true));
  const auto reader = CheckpointReader::Open(StepPath(dir, 5));
  REQUIRE_OK(reader.status());
  const std::string folder = *reader->TokenizerFolder();
  const std::string path = folder + "/tokenizer.json";
  REQUIRE_OK(WriteFileAtomic(path, TokenizerOf(2)[0].content));
  for (const absl::Status& status : {reader->TokenizerFolder().status(), reader->Verify()}) {
    CHECK_STATUS(status, absl::StatusCode::kDataLoss, path + " has another checksum");
  }
  REQUIRE_OK(RemoveTree(path));
  CHECK_STATUS(reader->Verify(), absl::StatusCode::kDataLoss,
               "the weights are whole, and the tokenizer is not: " + path + " is missing");
  // The weights are whole all the same.
  CHECK_OK(CheckHolds(*reader, 1, Cut(1, 1, 12)));
  REQUIRE_OK(RemoveTree(folder));
  CHECK(*reader->TokenizerFolder() == "");
  CHECK_STATUS(reader->Verify(), absl::StatusCode::kDataLoss, "is missing");
}

uint64_t FileNumber(const std::string& path) {
  struct stat info = {};
  REQUIRE(stat(path.c_str(), &info) == 0);
  return info.st_ino;
}

TEST_CASE("many checkpoints hold a tokenizer once, and no damage of it spreads to later ones") {
  TempDir dir;
  const RankPieces ranks = Cut(1, 1, 12);
  const auto path = [&](int step) {
    return *CheckpointReader::Open(StepPath(dir, step))->TokenizerFolder() + "/tokenizer.json";
  };
  for (int step : {1, 2, 3}) REQUIRE_OK(WriteCheckpoint(dir.path(), step, 1, ranks, true));
  CHECK(FileNumber(path(1)) == FileNumber(path(3)));
  // The bytes of all three, which are one file.
  std::FILE* const file = std::fopen(path(3).c_str(), "r+");
  REQUIRE(file != nullptr);
  std::fputc('x', file);
  std::fclose(file);
  REQUIRE_OK(WriteCheckpoint(dir.path(), 4, 1, ranks, true));
  CHECK_OK(CheckpointReader::Open(StepPath(dir, 4))->Verify());
  CHECK(absl::IsDataLoss(CheckpointReader::Open(StepPath(dir, 3))->Verify()));
  // So it is where the oldest have gone.
  REQUIRE_OK(WriteCheckpoint(dir.path(), 5, 1, ranks, true));
  CHECK(FileNumber(path(4)) == FileNumber(path(5)));
  REQUIRE_OK(RemoveOldCheckpoints(dir.path(), 5, 1));
  CHECK_OK(CheckpointReader::Open(StepPath(dir, 5))->Verify());
}

TEST_CASE("a repeated step with another tokenizer has that one alone") {
  TempDir dir;
  const RankPieces ranks = Cut(1, 1, 12);
  for (int version : {1, 2}) REQUIRE_OK(WriteCheckpoint(dir.path(), 1, version, ranks, true));
  const auto reader = CheckpointReader::Open(StepPath(dir, 1));
  REQUIRE_OK(reader.status());
  CHECK(reader->tokenizer_files() == MarksOf(TokenizerOf(2)));
  CHECK_OK(reader->Verify());
  CHECK(ListDirectory(StepPath(dir, 1))->size() == 4);  // data, index, manifest, folder
  // A failed attempt takes nothing of the published one with it.
  REQUIRE_OK(DiscardUnpublished(dir.path(), 1));
  CHECK_OK(reader->Verify());
}

TEST_CASE("a checkpoint that does not tile its tensors is not published") {
  TempDir dir;
  const TensorPiece half = {"weight", {4}, {{0}, {2}}, 0, 2};
  const std::vector<float> values(2);
  REQUIRE_OK(WriteShard(dir.path(), 5, 0, {{half, absl::MakeConstSpan(values)}}));
  REQUIRE_OK(WriteShard(dir.path(), 5, 1, {{half, absl::MakeConstSpan(values)}}));
  CHECK_STATUS(PublishCheckpoint(dir.path(), InfoOf(5, 1)), absl::StatusCode::kFailedPrecondition,
               "tensor 'weight' has box [2:4] in no chunk");
  CHECK_STATUS(PublishCheckpoint(dir.path(), InfoOf(5, 2)), absl::StatusCode::kFailedPrecondition,
               "in two chunks");
  CHECK_STATUS(PublishCheckpoint(dir.path(), InfoOf(5, 3)), absl::StatusCode::kNotFound,
               "rank_00002.index");
  CHECK(ListCheckpoints(dir.path())->empty());
}

TEST_CASE("checkpoints are listed newest first, unpublished steps and other names are not") {
  TempDir dir;
  const RankPieces ranks = Cut(1, 1, 7);
  CHECK(ListCheckpoints(dir.File("absent"))->empty());
  for (int step : {2, 9, 4}) REQUIRE_OK(WriteCheckpoint(dir.path(), step, 0, ranks));
  REQUIRE_OK(WriteRank(dir.path(), 7, 0, 0, ranks[0]));
  REQUIRE_OK(MakeDirectories(dir.File("step_8")));
  const std::vector<std::string> expected = {StepPath(dir, 9), StepPath(dir, 4), StepPath(dir, 2)};
  CHECK(*ListCheckpoints(dir.path()) == expected);
}

TEST_CASE("old checkpoints and remains go, the newest and what may still be written stay") {
  TempDir dir;
  const RankPieces ranks = Cut(2, 1, 8);
  for (int step : {1, 2, 4, 5}) REQUIRE_OK(WriteCheckpoint(dir.path(), step, 0, ranks));
  REQUIRE_OK(WriteRank(dir.path(), 3, 0, 0, ranks[0]));
  REQUIRE_OK(WriteRank(dir.path(), 6, 0, 0, ranks[0]));
  CHECK_STATUS(RemoveOldCheckpoints(dir.path(), 5, 0), absl::StatusCode::kInvalidArgument,
               "at least 1");
  REQUIRE_OK(RemoveOldCheckpoints(dir.path(), 5, 2));
  const std::vector<std::string> expected = {"step_00000004", "step_00000005", "step_00000006"};
  CHECK(*ListDirectory(dir.path()) == expected);
}

TEST_CASE("a damaged newest checkpoint does not count as the one to keep") {
  TempDir dir;
  const RankPieces ranks = Cut(2, 1, 9);
  for (int step : {1, 2, 3}) REQUIRE_OK(WriteCheckpoint(dir.path(), step, 0, ranks));
  REQUIRE_OK(WriteFileAtomic(StepPath(dir, 3) + "/manifest", "torn"));
  REQUIRE_OK(RemoveOldCheckpoints(dir.path(), 3, 1));
  const std::vector<std::string> expected = {"step_00000002", "step_00000003"};
  CHECK(*ListDirectory(dir.path()) == expected);
}

TEST_CASE("a checkpoint that a look at its chunks refuses does not count as one to keep") {
  TempDir dir;
  const RankPieces ranks = Cut(1, 1, 9);
  for (int step : {1, 2, 3, 4}) REQUIRE_OK(WriteCheckpoint(dir.path(), step, 0, ranks));
  std::vector<std::string> looked_at;
  REQUIRE_OK(RemoveOldCheckpoints(dir.path(), 4, 1, [&](const CheckpointReader& reader) {
    looked_at.push_back(reader.name());
    return looked_at.size() < 3 ? absl::DataLossError("a flipped bit") : absl::OkStatus();
  }));
  CHECK(looked_at ==
        std::vector<std::string>{StepPath(dir, 4), StepPath(dir, 3), StepPath(dir, 2)});
  const std::vector<std::string> expected = {"step_00000002", "step_00000003", "step_00000004"};
  CHECK(*ListDirectory(dir.path()) == expected);
}

TEST_CASE("a link to a checkpoint elsewhere goes alone, and nothing is written through it") {
  TempDir archive;
  TempDir dir;
  const RankPieces ranks = Cut(1, 1, 9);
  REQUIRE_OK(WriteCheckpoint(archive.path(), 1, 0, ranks));
  REQUIRE_OK(WriteFileAtomic(StepPath(archive, 1) + "/notes", "of a person"));
  const auto link = [&](int step) {
    std::filesystem::create_directory_symlink(StepPath(archive, 1), StepPath(dir, step));
  };
  link(1);
  REQUIRE_OK(DiscardUnpublished(dir.path(), 1));
  SECTION("as the oldest one") {
    REQUIRE_OK(WriteCheckpoint(dir.path(), 2, 0, ranks));
    REQUIRE_OK(RemoveOldCheckpoints(dir.path(), 2, 1));
    CHECK(*ListDirectory(dir.path()) == std::vector<std::string>{"step_00000002"});
  }
  SECTION("where its step is made again") {
    REQUIRE_OK(WriteCheckpoint(dir.path(), 1, 5, ranks));
    CHECK_FALSE(std::filesystem::is_symlink(StepPath(dir, 1)));
  }
  CHECK_OK(CheckpointReader::Open(StepPath(archive, 1))->Verify());
  CHECK(ListDirectory(StepPath(archive, 1))->size() == 4);  // data, index, manifest, notes
}

TEST_CASE("a refused later step neither counts nor goes when an earlier one is published again") {
  TempDir dir;
  const RankPieces ranks = Cut(1, 1, 10);
  for (int step : {1, 2, 9}) REQUIRE_OK(WriteCheckpoint(dir.path(), step, 0, ranks));
  REQUIRE_OK(RemoveOldCheckpoints(dir.path(), 2, 1));
  const std::vector<std::string> expected = {"step_00000002", "step_00000009"};
  CHECK(*ListDirectory(dir.path()) == expected);
}

}  // namespace
}  // namespace convene::worker
