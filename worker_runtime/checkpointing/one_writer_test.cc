// A checkpoint directory has one writer; and a writer whose place another start has taken.
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/checkpointing/save_restore.h"
#include "worker_runtime/trainer/testing/checkpoint_world.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::RequireAllOk;
using testing::ResumeFrom;
using testing::World;

TEST_CASE("a directory that another job writes to is refused by every rank") {
  const TempDir directory;
  World first({.pp = 1, .dp = 2, .tp = 1}), second({.pp = 1, .dp = 2, .tp = 1});
  TrainOptions options = ResumeFrom(directory.File("made/by/the/first"));
  options.checkpoint_timeout = absl::Milliseconds(200);  // the wait is at most half of it
  std::optional<DirectoryLock> held, refused;
  RequireAllOk(first.Claim(options, {.name = "first"}, &held));
  CHECK(held.has_value());
  auto statuses = second.Claim(options, {.name = "second"}, &refused);
  CHECK_STATUS(statuses[0], absl::StatusCode::kAlreadyExists, "job first, since ");
  CHECK_STATUS(statuses[0], absl::StatusCode::kAlreadyExists, "another --checkpoint-dir, or stop");
  CHECK_STATUS(statuses[1], absl::StatusCode::kAlreadyExists,
               "rank 0 could not have the checkpoint directory for itself: ");
  CHECK_STATUS(statuses[1], absl::StatusCode::kAlreadyExists, "another --checkpoint-dir, or stop");
  CHECK_STATUS(statuses[0], absl::StatusCode::kAlreadyExists, "/writer.lock");
  held.reset();
  RequireAllOk(second.Claim(options, {.name = "second"}, &refused));
  options.checkpoint_dir.clear();
  RequireAllOk(first.Claim(options, {.name = "first"}, &held));
  CHECK_FALSE(held.has_value());
}

TEST_CASE("a restart takes a directory from its predecessor, which publishes nothing any more") {
  const TempDir directory;
  World first({.pp = 1, .dp = 2, .tp = 1}), restarted({.pp = 1, .dp = 2, .tp = 1});
  TrainOptions options = ResumeFrom(directory.path());
  options.checkpoint_timeout = absl::Milliseconds(200);
  std::optional<DirectoryLock> held, taken;
  RequireAllOk(first.Claim(options, {.name = "job"}, &held));
  RequireAllOk(first.Save(directory.path(), first.Info(1), 2, &*held));
  RequireAllOk(restarted.Claim(options, {.name = "job", .is_restart = true}, &taken));
  RequireAllOk(restarted.Save(directory.path(), restarted.Info(2), 2, &*taken));
  // The restart is about to publish this.
  REQUIRE_OK(MakeDirectories(directory.File("step_00000003")));
  REQUIRE_OK(WriteFileAtomic(directory.File("step_00000003/rank_00000.index"), "of the restart"));
  for (const absl::Status& status : first.Save(directory.path(), first.Info(3), 2, &*held)) {
    CHECK_STATUS(status, absl::StatusCode::kAborted, "has been taken over by process");
  }
  CHECK(*ReadFile(directory.File("step_00000003/rank_00000.index")) == "of the restart");
  CHECK_FALSE(IsFile(directory.File("step_00000003/manifest")));
  RequireAllOk(restarted.Save(directory.path(), restarted.Info(3), 2, &*taken));
}

TEST_CASE("a restart without a run id of its own takes the directory from nobody") {
  const TempDir directory;
  World first({.pp = 1, .dp = 2, .tp = 1}), other({.pp = 1, .dp = 2, .tp = 1});
  TrainOptions options = ResumeFrom(directory.path());
  options.checkpoint_timeout = absl::Milliseconds(200);
  std::optional<DirectoryLock> held, taken;
  RequireAllOk(first.Claim(options, {.name = "none"}, &held));
  CHECK_STATUS(other.Claim(options, {.name = "none", .is_restart = true}, &taken)[0],
               absl::StatusCode::kDeadlineExceeded, "/writer.lock");
  CHECK_FALSE(taken.has_value());
  RequireAllOk(first.Save(directory.path(), first.Info(1), 2, &*held));
}

TEST_CASE("a writer that stands still until its place is taken has published nothing") {
  const TempDir directory;
  World first({.pp = 1, .dp = 1, .tp = 1}), restarted({.pp = 1, .dp = 1, .tp = 1});
  TrainOptions options = ResumeFrom(directory.path());
  options.checkpoint_timeout = absl::Milliseconds(200);
  std::optional<DirectoryLock> held, taken;
  RequireAllOk(first.Claim(options, {.name = "job"}, &held));
  {
    const ScopedFileFault pause([&](FileOp op, const std::string& path) {
      if (op == FileOp::kRename && absl::EndsWith(path, "/rank_00000.index")) {
        (void)restarted.Claim(options, {.name = "job", .is_restart = true}, &taken);
      }
      return 0;
    });
    CHECK_STATUS(first.Save(directory.path(), first.Info(1), 2, &*held)[0],
                 absl::StatusCode::kAborted, "has been taken over by process");
  }
  REQUIRE(taken.has_value());
  CHECK_FALSE(IsFile(directory.File("step_00000001/manifest")));
}

TEST_CASE("a directory that cannot take checkpoints is refused by every rank") {
  const TempDir directory;
  REQUIRE_OK(WriteFileAtomic(directory.File("file"), "text"));
  World world({.pp = 1, .dp = 2, .tp = 1});
  std::optional<DirectoryLock> lock;
  const auto statuses = world.Claim(ResumeFrom(directory.File("file/below")), {}, &lock);
  CHECK_THAT(std::string(statuses[0].message()), Catch::Contains("--checkpoint-dir cannot take"));
  CHECK(statuses[1].code() == statuses[0].code());
  CHECK_THAT(std::string(statuses[1].message()), Catch::Contains("--checkpoint-dir cannot take"));
}

}  // namespace
}  // namespace convene::worker
