// A disk that fails, a process that dies and files that rot, at every place they can.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/checkpoint/checkpoint.h"
#include "worker_runtime/checkpoint/testing/test_checkpoint.h"
#include "worker_runtime/checkpoint/testing/test_layout.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::CheckHolds;
using testing::CutModel;
using testing::InfoOf;
using testing::RankPieces;
using testing::TokenizerOf;
using testing::WriteCheckpoint;
using testing::WriteRank;

RankPieces Cut(int dp, int tp) {
  std::mt19937_64 random(11);
  return CutModel({{"embedding", {9, 5}}, {"norm", {7}}}, dp, tp, &random);
}

std::string StepPath(const TempDir& dir, int step) {
  return dir.File(absl::StrCat("step_0000000", step));
}

std::vector<std::string> NamesIn(const std::string& directory) { return *ListDirectory(directory); }

int CountOps(const std::function<void()>& body) {
  int ops = 0;
  ScopedFileFault count([&](FileOp, const std::string&) {
    ++ops;
    return 0;
  });
  body();
  return ops;
}

constexpr int64_t kAnyStep = INT64_MAX;

// The step and version of the newest whole checkpoint in `dir`.
struct Found {
  int64_t step = -1;
  int version = -1;
  friend bool operator==(const Found&, const Found&) = default;
};

Found Newest(const TempDir& dir) {
  std::vector<std::string> refused;
  const auto reader = OpenNewest(dir.path(), kAnyStep, &refused);
  if (!reader.ok()) return {};
  for (int version : {1, 2}) {
    const bool has_tokenizer = reader->tokenizer_files() == MarksOf(TokenizerOf(version)) &&
                               CheckKeptFiles(reader->name(), reader->tokenizer_files()).ok();
    if (!reader->tokenizer_files().empty() && !has_tokenizer) continue;
    if (CheckHolds(*reader, version, Cut(1, 2)).ok()) return {reader->info().step, version};
  }
  return {reader->info().step, -1};
}

// Data, index for each of two ranks, and the manifest. A tokenizer has a folder beside them.
constexpr size_t kFilesOfTwoRanks = 5;

// Step 1 is published as version 1; then `step` is written as version 2 and disturbed at each of
// its file operations in turn. In every case a whole checkpoint is loaded, and the next attempt
// succeeds and leaves no remains.
void DisturbEachOperation(int step,
                          const std::function<absl::Status(const TempDir&, int)>& write_disturbed) {
  const RankPieces ranks = Cut(2, 1);
  TempDir undisturbed;
  const int ops =
      CountOps([&] { CHECK_OK(WriteCheckpoint(undisturbed.path(), step, 2, ranks, true)); });
  REQUIRE(ops > 15);
  for (int op = 0; op < ops; ++op) {
    INFO("operation " << op << " of " << ops);
    TempDir dir;
    REQUIRE_OK(WriteCheckpoint(dir.path(), 1, 1, ranks, true));
    const absl::Status status = write_disturbed(dir, op);
    INFO(status.ToString());
    REQUIRE(!status.ok());
    const Found found = Newest(dir);
    // Only operations after the manifest's rename may fail with the new checkpoint in place.
    if (op < ops - 2) {
      REQUIRE(found == Found{1, 1});
    } else {
      REQUIRE((found == Found{1, 1} || found == Found{step, 2}));
    }
    REQUIRE_OK(WriteCheckpoint(dir.path(), step, 2, ranks, true));
    REQUIRE(Newest(dir) == Found{step, 2});
    REQUIRE(ListDirectory(StepPath(dir, step))->size() == kFilesOfTwoRanks + 1);
  }
}

absl::Status WriteWithFault(const TempDir& dir, int step, int failing_op, int error) {
  int op = 0;
  ScopedFileFault fault([&](FileOp, const std::string&) { return op++ == failing_op ? error : 0; });
  return WriteCheckpoint(dir.path(), step, 2, Cut(2, 1), true);
}

// The process dies, so nothing is cleaned up.
absl::Status WriteAndDie(const TempDir& dir, int step, int last_op) {
  const pid_t child = fork();
  if (child == 0) {
    int op = 0;
    ScopedFileFault fault([&](FileOp, const std::string&) -> int {
      if (op++ == last_op) _exit(9);
      return 0;
    });
    WriteCheckpoint(dir.path(), step, 2, Cut(2, 1), true).IgnoreError();
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WEXITSTATUS(status) == 9 ? absl::AbortedError("died") : absl::OkStatus();
}

TEST_CASE("whichever operation of a new step fails, the older checkpoint loads") {
  DisturbEachOperation(2,
                       [](const TempDir& dir, int op) { return WriteWithFault(dir, 2, op, EIO); });
}

TEST_CASE("whichever operation of a repeated step fails, that step loads, old or new") {
  DisturbEachOperation(1,
                       [](const TempDir& dir, int op) { return WriteWithFault(dir, 1, op, EIO); });
}

TEST_CASE("wherever the process dies in a new step, the older checkpoint loads") {
  DisturbEachOperation(2, [](const TempDir& dir, int op) { return WriteAndDie(dir, 2, op); });
}

TEST_CASE("wherever the process dies in a repeated step, that step loads, old or new") {
  DisturbEachOperation(1, [](const TempDir& dir, int op) { return WriteAndDie(dir, 1, op); });
}

TEST_CASE("a full disk is ResourceExhausted and leaves nothing of this rank") {
  const RankPieces ranks = Cut(2, 1);
  for (FileOp full_at : {FileOp::kOpen, FileOp::kWrite, FileOp::kSync}) {
    TempDir dir;
    REQUIRE_OK(WriteCheckpoint(dir.path(), 1, 1, ranks));
    {
      ScopedFileFault fault([&](FileOp op, const std::string& path) {
        return op == full_at && absl::StrContains(path, "rank_00001") ? ENOSPC : 0;
      });
      REQUIRE_OK(WriteRank(dir.path(), 2, 0, 2, ranks[0]));
      CHECK_STATUS(WriteRank(dir.path(), 2, 1, 2, ranks[1]), absl::StatusCode::kResourceExhausted,
                   "checkpoint of step 2, rank 1");
    }
    for (const std::string& name : NamesIn(StepPath(dir, 2))) {
      CHECK(absl::StartsWith(name, "rank_00000."));
    }
    REQUIRE_OK(DiscardUnpublished(dir.path(), 2));
    CHECK(ListDirectory(dir.path())->size() == 1);
    CHECK(Newest(dir) == Found{1, 1});
  }
}

TEST_CASE("discarding a repeated step leaves the published one") {
  TempDir dir;
  REQUIRE_OK(WriteCheckpoint(dir.path(), 1, 1, Cut(2, 1)));
  REQUIRE_OK(WriteRank(dir.path(), 1, 0, 2, Cut(2, 1)[0]));
  REQUIRE_OK(DiscardUnpublished(dir.path(), 1));
  CHECK(Newest(dir) == Found{1, 1});
  CHECK_OK(DiscardUnpublished(dir.path(), 8));
}

TEST_CASE("shards without a manifest are not a checkpoint") {
  TempDir dir;
  std::vector<std::string> refused;
  CHECK_STATUS(OpenNewest(dir.path(), kAnyStep, &refused), absl::StatusCode::kNotFound,
               "no checkpoint that opens");
  REQUIRE_OK(WriteRank(dir.path(), 2, 0, 1, Cut(1, 1)[0]));
  CHECK_STATUS(OpenNewest(dir.path(), kAnyStep, &refused), absl::StatusCode::kNotFound, dir.path());
  CHECK_STATUS(CheckpointReader::Open(StepPath(dir, 2)), absl::StatusCode::kNotFound, "manifest");
  CHECK(refused.empty());
}

TEST_CASE("remains of a larger layout do not disturb a smaller one at the same step") {
  TempDir dir;
  const RankPieces large = Cut(3, 2);
  for (int rank : {0, 2, 5}) REQUIRE_OK(WriteRank(dir.path(), 2, rank, 1, large[rank]));
  REQUIRE_OK(WriteCheckpoint(dir.path(), 2, 2, Cut(2, 1)));
  CHECK(Newest(dir) == Found{2, 2});
  CHECK(ListDirectory(StepPath(dir, 2))->size() == kFilesOfTwoRanks);
}

TEST_CASE("a manifest that is cut or flipped anywhere is refused") {
  TempDir dir;
  REQUIRE_OK(WriteCheckpoint(dir.path(), 1, 1, Cut(2, 1)));
  const std::string path = StepPath(dir, 1) + "/manifest";
  const std::string whole = *ReadFile(path);
  const auto refused = [&](const std::string& text) {
    REQUIRE_OK(RemoveTree(path));
    REQUIRE_OK(WriteFileAtomic(path, text));
    const absl::Status status = CheckpointReader::Open(StepPath(dir, 1)).status();
    return absl::IsDataLoss(status) || absl::IsFailedPrecondition(status);
  };
  for (size_t i = 0; i < whole.size(); i += 7) {
    INFO("byte " << i);
    REQUIRE(refused(whole.substr(0, i)));
    std::string flipped = whole;
    flipped[i] ^= 0x10;
    REQUIRE(refused(flipped));
  }
  CHECK(refused(whole + "\n"));
  CHECK(!refused(whole));
}

// Writes a manifest with the checksum that its text asks for.
void Seal(const std::string& path, std::string text) {
  text.erase(text.rfind("end "));
  absl::StrAppend(&text, "end ", absl::Hex(XXH3_64bits(text.data(), text.size()), absl::kZeroPad16),
                  "\n");
  REQUIRE_OK(WriteFileAtomic(path, text));
}

// Turns a manifest of today into one of an earlier version, which had fewer lines.
void TurnBack(const std::string& path, int version, const std::vector<std::string>& later_lines) {
  std::string text = *ReadFile(path);
  for (const std::string& keyword : later_lines) {
    const size_t line = text.find(absl::StrCat("\n", keyword, " "));
    REQUIRE(line != std::string::npos);
    text.erase(line, text.find('\n', line + 1) - line);
  }
  text[text.find("manifest ") + 9] = static_cast<char>('0' + version);
  Seal(path, std::move(text));
}

TEST_CASE("manifests of earlier versions are read; what they do not say stays open") {
  const std::vector<std::string> later_lines[] = {{"updates", "samples", "data"},
                                                  {"updates", "samples"}};
  for (const int version : {1, 2}) {
    INFO("version " << version);
    TempDir dir;
    REQUIRE_OK(WriteCheckpoint(dir.path(), 1, 1, Cut(2, 1)));
    TurnBack(StepPath(dir, 1) + "/manifest", version, later_lines[version - 1]);
    const auto reader = CheckpointReader::Open(StepPath(dir, 1));
    REQUIRE_OK(reader);
    CheckpointInfo expected = InfoOf(1, 2);
    if (version == 1) expected.data.clear();
    expected.samples.clear();
    expected.updates = 1;  // as many as steps
    CHECK(reader->info() == expected);
    CHECK_OK(CheckHolds(*reader, 1, Cut(1, 1)));
  }
}

TEST_CASE("an element type that nobody knows is damage, and the line is named") {
  TempDir dir;
  REQUIRE_OK(WriteCheckpoint<BFloat16>(dir.path(), 1, 1, Cut(1, 1)));
  const std::string path = StepPath(dir, 1) + "/manifest";
  Seal(path, absl::StrReplaceAll(*ReadFile(path), {{"tensor bf16 1 7", "tensor bf17 1 7"}}));
  CHECK_STATUS(CheckpointReader::Open(StepPath(dir, 1)), absl::StatusCode::kDataLoss,
               "line 15: an element type is neither fp32 nor bf16");
}

TEST_CASE("a later format says so") {
  TempDir dir;
  REQUIRE_OK(MakeDirectories(StepPath(dir, 1)));
  REQUIRE_OK(WriteFileAtomic(StepPath(dir, 1) + "/manifest", "convene-checkpoint-manifest 10\n"));
  CHECK_STATUS(CheckpointReader::Open(StepPath(dir, 1)), absl::StatusCode::kFailedPrecondition,
               "format version 10; this program reads up to 9");
}

std::string FirstDataFile(const TempDir& dir, int step) {
  for (const std::string& name : NamesIn(StepPath(dir, step))) {
    if (absl::EndsWith(name, ".bin")) return absl::StrCat(StepPath(dir, step), "/", name);
  }
  return "";
}

TEST_CASE(
    "a flipped byte of data names file, chunk and both checksums, and the older one can be taken") {
  TempDir dir;
  REQUIRE_OK(WriteCheckpoint(dir.path(), 1, 1, Cut(1, 1)));
  REQUIRE_OK(WriteCheckpoint(dir.path(), 2, 2, Cut(1, 1)));
  const std::string path = FirstDataFile(dir, 2);
  std::string bytes = *ReadFile(path);
  bytes[70] ^= 1;
  REQUIRE_OK(WriteFileAtomic(path, bytes));
  const auto reader = CheckpointReader::Open(StepPath(dir, 2));
  REQUIRE_OK(reader);
  CHECK_STATUS(CheckHolds(*reader, 2, Cut(1, 1)), absl::StatusCode::kDataLoss,
               path + ": chunk 0 (tensor 'embedding', 180 bytes at 64) has checksum ");
  std::vector<std::string> refused;
  const auto older = OpenNewest(dir.path(), 2, &refused);
  REQUIRE_OK(older);
  CHECK(older->info().step == 1);
  CHECK(refused.empty());
}

TEST_CASE("a header of another file, a short file and an absent file are DataLoss") {
  TempDir dir;
  REQUIRE_OK(WriteCheckpoint(dir.path(), 1, 1, Cut(1, 1)));
  const std::string path = FirstDataFile(dir, 1);
  const std::string whole = *ReadFile(path);
  std::string bytes = whole;
  bytes[16] ^= 1;  // the step
  REQUIRE_OK(WriteFileAtomic(path, bytes));
  CHECK_STATUS(CheckHolds(*CheckpointReader::Open(StepPath(dir, 1)), 1, Cut(1, 1)),
               absl::StatusCode::kDataLoss, "header of another file");
  REQUIRE_OK(WriteFileAtomic(path, whole.substr(0, whole.size() - 1)));
  CHECK_STATUS(CheckpointReader::Open(StepPath(dir, 1)), absl::StatusCode::kDataLoss, "instead of");
  REQUIRE_OK(RemoveTree(path));
  CHECK_STATUS(CheckpointReader::Open(StepPath(dir, 1)), absl::StatusCode::kDataLoss, "is missing");
  std::vector<std::string> refused;
  CHECK_STATUS(OpenNewest(dir.path(), kAnyStep, &refused), absl::StatusCode::kNotFound, dir.path());
  REQUIRE(refused.size() == 1);
  CHECK_THAT(refused[0], Catch::Contains("step_00000001") && Catch::Contains("is missing"));
}

// Something odd stands at step 2: the reason is told, step 1 is taken, and step 2 can be written.
void CheckRefusedAndReplaced(const std::string& reason,
                             const std::function<void(const TempDir&)>& make_odd) {
  TempDir dir;
  INFO(reason);
  REQUIRE_OK(WriteCheckpoint(dir.path(), 1, 1, Cut(2, 1)));
  make_odd(dir);
  std::vector<std::string> refused;
  const auto older = OpenNewest(dir.path(), kAnyStep, &refused);
  REQUIRE_OK(older);
  CHECK(older->info().step == 1);
  REQUIRE(refused.size() == 1);
  CHECK_THAT(refused[0], Catch::Contains(StepPath(dir, 2)) && Catch::Contains(reason));
  REQUIRE_OK(WriteCheckpoint(dir.path(), 2, 2, Cut(2, 1)));
  CHECK(ListDirectory(StepPath(dir, 2))->size() == kFilesOfTwoRanks);
}

TEST_CASE("what is no checkpoint at all is refused with its reason, and replaced") {
  CheckRefusedAndReplaced("manifest is not a file", [](const TempDir& dir) {
    REQUIRE_OK(MakeDirectories(StepPath(dir, 2) + "/manifest/below"));
  });
  CheckRefusedAndReplaced("manifest is not a file", [](const TempDir& dir) {
    REQUIRE_OK(MakeDirectories(StepPath(dir, 2)));
    REQUIRE(mkfifo((StepPath(dir, 2) + "/manifest").c_str(), 0600) == 0);
  });
  CheckRefusedAndReplaced("is not a directory", [](const TempDir& dir) {
    REQUIRE_OK(WriteFileAtomic(StepPath(dir, 2), "a plain file"));
  });
  // These tests may run as root, who reads everything.
  std::string unreadable;
  const ScopedFileFault denied([&](FileOp op, const std::string& path) {
    return op == FileOp::kOpen && path == unreadable ? EACCES : 0;
  });
  CheckRefusedAndReplaced("Permission denied", [&](const TempDir& dir) {
    REQUIRE_OK(WriteCheckpoint(dir.path(), 2, 1, Cut(2, 1)));
    unreadable = StepPath(dir, 2) + "/manifest";
  });
}

TEST_CASE("what is no checkpoint goes with the old ones") {
  TempDir dir;
  REQUIRE_OK(WriteFileAtomic(StepPath(dir, 1), "a plain file"));
  REQUIRE_OK(MakeDirectories(StepPath(dir, 2) + "/manifest/below"));
  REQUIRE_OK(WriteCheckpoint(dir.path(), 3, 1, Cut(2, 1)));
  REQUIRE_OK(RemoveOldCheckpoints(dir.path(), 3, 1));
  CHECK(ListDirectory(dir.path())->size() == 1);
}

TEST_CASE("publishing again after success is the same checkpoint") {
  TempDir dir;
  REQUIRE_OK(WriteCheckpoint(dir.path(), 1, 1, Cut(2, 1)));
  CHECK_OK(PublishCheckpoint(dir.path(), InfoOf(1, 2)));
  CHECK(Newest(dir) == Found{1, 1});
}

}  // namespace
}  // namespace convene::worker
