// Saves beside a training of real engines, whose ranks are threads, on a disk that is slow, full or
// gone when the test says so.
#include "worker_runtime/checkpointing/saver.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/exit_code.h"
#include "tools/base/files.h"
#include "tools/base/mutex.h"
#include "tools/base/testing/poll.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/testing/checkpoint_world.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::kSeed;
using testing::Rank;
using testing::RequireAllOk;
using testing::World;

// Rank 1's calls wait while they are held, and its writes at some paths fail.
class Disk {
 public:
  // `from`: calls before the first one of this kind go on.
  void Hold(bool is_held, FileOp from = FileOp::kOpen) {
    MutexLock lock(&mutex_);
    is_held_ = is_held;
    holds_from_ = from;
    other_has_written_ = false;
    changed_.SignalAll();
  }
  bool IsWaiting() {
    MutexLock lock(&mutex_);
    return is_waiting_;
  }
  // Rank 0, which is never held, has come to the end of its file since Hold.
  bool OtherHasWritten() {
    MutexLock lock(&mutex_);
    return other_has_written_;
  }
  // `parts`: of paths.
  void FailAt(std::vector<std::string> parts) {
    MutexLock lock(&mutex_);
    failing_ = std::move(parts);
  }
  // Writes fail while `path` is there.
  void FailWhileThere(const std::string& path) {
    MutexLock lock(&mutex_);
    fills_disk_ = path;
  }
  // One write fails. Rank 0 comes to the removal of what it wrote itself only when rank 1 has
  // written its part again, or after `at_most`.
  void FailOnceAt(const std::string& part, absl::Duration at_most) {
    MutexLock lock(&mutex_);
    failing_ = {part};
    fails_once_ = true;
    removal_wait_ = at_most;
    writer_.reset();
    is_written_ = false;
  }
  // The data files that were opened, and the manifests that were renamed.
  std::vector<std::string> log() {
    MutexLock lock(&mutex_);
    return log_;
  }

 private:
  int OnCall(FileOp op, const std::string& path) {
    MutexLock lock(&mutex_);
    if ((op == FileOp::kOpen && absl::EndsWith(path, ".bin")) ||
        (op == FileOp::kRename && absl::EndsWith(path, "/manifest"))) {
      log_.push_back(path);
    }
    if (op == FileOp::kSync && absl::StrContains(path, "/rank_00000.")) other_has_written_ = true;
    if (absl::EndsWith(path, "/rank_00000.index")) writer_ = pthread_self();
    if (absl::EndsWith(path, "/rank_00001.index")) {
      is_written_ = true;
      changed_.SignalAll();
    }
    if (op == FileOp::kOpen && absl::EndsWith(path, "/manifest")) WaitToRemove();
    if (!absl::StrContains(path, "/rank_00001.")) return 0;
    is_waiting_ = is_held_ && op == holds_from_;
    while (is_waiting_ && is_held_) changed_.Wait(&mutex_);
    is_waiting_ = false;
    const auto is_in_path = [&](const std::string& part) { return absl::StrContains(path, part); };
    if (op != FileOp::kWrite) return 0;
    if (!fills_disk_.empty() && IsDirectory(fills_disk_)) return ENOSPC;
    if (!absl::c_any_of(failing_, is_in_path)) return 0;
    if (fails_once_) failing_.clear();
    return ENOSPC;
  }
  // To remove what it wrote, rank 0 asks the manifest which files stay.
  void WaitToRemove() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!writer_.has_value() || pthread_equal(*writer_, pthread_self()) == 0) return;
    const MonotonicTime deadline = Clock::Real().Now() + std::exchange(removal_wait_, {});
    while (!is_written_ && Clock::Real().Now() < deadline) {
      changed_.WaitFor(&mutex_, deadline - Clock::Real().Now());
    }
  }

  Mutex mutex_;
  CondVar changed_;
  bool is_held_ ABSL_GUARDED_BY(mutex_) = false;
  FileOp holds_from_ ABSL_GUARDED_BY(mutex_) = FileOp::kOpen;
  bool is_waiting_ ABSL_GUARDED_BY(mutex_) = false;
  bool other_has_written_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::string> failing_ ABSL_GUARDED_BY(mutex_);
  std::string fills_disk_ ABSL_GUARDED_BY(mutex_);
  bool fails_once_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration removal_wait_ ABSL_GUARDED_BY(mutex_);
  std::optional<pthread_t> writer_ ABSL_GUARDED_BY(mutex_);  // rank 0's, from its index on
  bool is_written_ ABSL_GUARDED_BY(mutex_) = false;          // rank 1's index
  std::vector<std::string> log_ ABSL_GUARDED_BY(mutex_);
  const ScopedFileFault fault_{
      [this](FileOp op, const std::string& path) { return OnCall(op, path); }};
};

struct Reports final : SaveListener {
  absl::Status CheckpointSaved(const std::string& /*path*/,
                               const CheckpointMetrics& metrics) override {
    saved.push_back(metrics);
    return absl::OkStatus();
  }
  void CheckpointFailed(int64_t /*step*/, const absl::Status& /*why*/,
                        const FailuresInARow& /*failures*/, absl::Duration /*pause*/) override {}
  void Say(const std::string& /*text*/) override {}

  std::vector<CheckpointMetrics> saved;
};

// Two data-parallel ranks and their savers.
struct Run {
  // `lock` of the first rank: the saver's.
  explicit Run(int64_t failures_max, bool offloads = false, const DirectoryLock* lock = nullptr)
      : world({.dp = 2}, kSeed, DType::kFloat32, 1, true, 1, offloads, testing::Small(),
              /*copies=*/true) {
    savers.resize(2);
    RequireAllOk(world.OnEveryRank([&](Rank& rank, Stream& /*stream*/) -> absl::Status {
      const int number = rank.world->rank();
      savers[number] = std::make_unique<CheckpointSaver>(
          CheckpointSaver::Options{.directory = directory.File("saved"),
                                   .keep = 5,
                                   .failures_max = failures_max,
                                   .in_background = true,
                                   .lock = number == 0 ? lock : nullptr},
          *rank.world, *progress, number == 0 ? &reports : nullptr, Clock::Real());
      return absl::OkStatus();
    }));
  }
  ~Run() { disk.Hold(false); }

  std::vector<absl::Status> Save(int64_t step) {
    return world.OnEveryRank([&](Rank& rank, Stream& /*stream*/) {
      return savers[rank.world->rank()]->Save(world.Info(step), rank.engine->optimizer());
    });
  }
  std::vector<absl::Status> SaveLast(int64_t step) {
    return world.OnEveryRank([&](Rank& rank, Stream& /*stream*/) {
      return savers[rank.world->rank()]->SaveLast(world.Info(step), rank.engine->optimizer());
    });
  }
  std::string StepPath(int64_t step) const {
    return directory.File(absl::StrCat("saved/step_0000000", step));
  }
  bool IsSaved(int64_t step) const { return CheckpointReader::Open(StepPath(step)).ok(); }
  // The content of its data files behind their headers, which tell attempts apart.
  std::vector<std::string> BytesOf(int64_t step) const {
    std::vector<std::string> bytes;
    const std::vector<std::string> names = *ListDirectory(StepPath(step));
    for (const std::string& name : names) {
      if (!absl::EndsWith(name, ".bin")) continue;
      bytes.push_back(ReadFile(absl::StrCat(StepPath(step), "/", name))->substr(64));
    }
    return bytes;
  }
  std::vector<int64_t> ReportedSteps() const {
    std::vector<int64_t> steps;
    for (const CheckpointMetrics& saved : reports.saved) {
      CHECK(saved.checkpoint_held_seconds > 0);
      CHECK(saved.checkpoint_held_seconds <= saved.checkpoint_seconds);
      steps.push_back(saved.step);
    }
    return steps;
  }

  const TempDir directory;
  Disk disk;
  World world;
  Reports reports;
  const std::unique_ptr<ProgressWriter> progress = *ProgressWriter::Open("", 0, Clock::Real());
  std::vector<std::unique_ptr<CheckpointSaver>> savers;
};

TEST_CASE("the training goes on beside a slow disk, which gets the bytes of a save that waits") {
  if (!testing::HasPlacesOrSkips(2)) return;
  const bool offloads = GENERATE(false, true);
  CAPTURE(offloads);
  Run run(/*failures_max=*/1, offloads);
  RequireAllOk(run.world.Train(1));
  run.disk.Hold(true);
  RequireAllOk(run.Save(1));
  RequireAllOk(run.world.Train(2, /*first_step=*/2));
  for (const auto& saver : run.savers) CHECK_OK(saver->Poll());
  CHECK_FALSE(run.IsSaved(1));
  CHECK(run.ReportedSteps().empty());
  run.disk.Hold(false);
  RequireAllOk(run.SaveLast(3));
  CHECK(run.IsSaved(1));
  CHECK(run.IsSaved(3));
  CHECK(run.ReportedSteps() == std::vector<int64_t>{1, 3});

  const auto beside = std::pair(run.BytesOf(1), run.BytesOf(3));
  World waiting({.dp = 2}, kSeed, DType::kFloat32, 1, true, 1, offloads);
  RequireAllOk(waiting.Train(1));
  RequireAllOk(waiting.Save(run.directory.File("saved"), 1));
  RequireAllOk(waiting.Train(2, 2));
  RequireAllOk(waiting.Save(run.directory.File("saved"), 3));
  CHECK((std::pair(run.BytesOf(1), run.BytesOf(3)) == beside));
}

TEST_CASE("a save that comes due waits until the one in flight is on the disk") {
  if (!testing::HasPlacesOrSkips(2)) return;
  Run run(/*failures_max=*/1);
  run.disk.Hold(true);
  RequireAllOk(run.Save(1));
  {
    Thread disk("disk", [&] { run.disk.Hold(false); });
    RequireAllOk(run.Save(2));
    disk.Join();
  }
  RequireAllOk(run.SaveLast(2));
  const std::vector<std::string> log = run.disk.log();
  // Two data files and a manifest each; the same step is not saved twice.
  REQUIRE(log.size() == 6);
  CHECK(log[2] == run.StepPath(1) + "/manifest");
  CHECK(log[5] == run.StepPath(2) + "/manifest");
  CHECK(run.ReportedSteps() == std::vector<int64_t>{1, 2});
}

TEST_CASE("saves that fail beside the training are counted on all ranks until they end the run") {
  if (!testing::HasPlacesOrSkips(2)) return;
  Run run(/*failures_max=*/2);
  run.disk.FailAt({"step_00000001/", "step_00000003/", "step_00000004/"});
  for (const int64_t step : {1, 2, 3, 4}) {
    INFO(step);
    RequireAllOk(run.Save(step));
  }
  for (const auto& saver : run.savers) CHECK_FALSE(saver->wants_stop());
  for (const std::vector<absl::Status>& statuses : {run.Save(5), run.SaveLast(5)}) {
    for (const absl::Status& status : statuses) {
      CHECK_STATUS(status, absl::StatusCode::kResourceExhausted, "(2 failures in a row)");
    }
    CHECK_STATUS(statuses[0], absl::StatusCode::kResourceExhausted, "rank 1 could not write");
  }
  CHECK(run.ReportedSteps() == std::vector<int64_t>{2});
  CHECK(*ListDirectory(run.directory.File("saved")) == std::vector<std::string>{"step_00000002"});
}

TEST_CASE("a directory that another start has taken over ends the run at once") {
  if (!testing::HasPlacesOrSkips(2)) return;
  const TempDir locked;
  const auto lock = LockDirectory(locked.path(), {.job = "job"});
  REQUIRE_OK(lock);
  Run run(/*failures_max=*/5, /*offloads=*/false, &*lock);
  RequireAllOk(run.Save(1));
  RequireAllOk(run.SaveLast(2));
  REQUIRE_OK(RemoveTree(locked.File("writer.lock")));
  CHECK_OK(LockDirectory(locked.path(), {.job = "job"}));
  for (const absl::Status& status : run.SaveLast(3)) {
    CHECK_STATUS(status, absl::StatusCode::kAborted, "has been taken over by process");
  }
  CHECK(run.ReportedSteps() == std::vector<int64_t>{1, 2});
  CHECK_FALSE(run.IsSaved(3));
}

TEST_CASE("a rank that sees too many failures asks all to stop, and goes on until they do") {
  if (!testing::HasPlacesOrSkips(2)) return;
  Run run(/*failures_max=*/1);
  run.disk.FailAt({"step_00000001/"});
  RequireAllOk(run.Save(1));
  CheckpointSaver& first = *run.savers[0];
  const MonotonicTime deadline = Clock::Real().Now() + absl::Seconds(30);
  while (!first.wants_stop() && Clock::Real().Now() < deadline) CHECK_OK(first.Poll());
  CHECK(first.wants_stop());
  CHECK_FALSE(run.savers[1]->wants_stop());
  for (const absl::Status& status : run.SaveLast(2)) {
    CHECK_STATUS(status, absl::StatusCode::kResourceExhausted, "(1 failure)");
  }
}

TEST_CASE("a stop after a save in flight that fails still saves the last step") {
  if (!testing::HasPlacesOrSkips(2)) return;
  Run run(/*failures_max=*/2);
  run.disk.Hold(true);
  run.disk.FailAt({"step_00000001/rank_00001.index"});
  RequireAllOk(run.Save(1));
  Thread disk("disk", [&] { run.disk.Hold(false); });
  RequireAllOk(run.SaveLast(2));
  disk.Join();
  CHECK(run.IsSaved(2));
  CHECK_FALSE(run.IsSaved(1));
}

TEST_CASE("on a full disk older checkpoints make room for the last one, and for no other") {
  if (!testing::HasPlacesOrSkips(2)) return;
  Run run(/*failures_max=*/3);
  for (const int64_t step : {1, 2, 3}) RequireAllOk(run.Save(step));
  for (const auto& status : run.world.OnEveryRank([&](Rank&rank, Stream& /*stream*/) {
         return run.savers[rank.world->rank()]->Finish(3);
       })) {
    REQUIRE_OK(status);
  }
  run.disk.FailWhileThere(run.StepPath(2));
  RequireAllOk(run.Save(4));
  RequireAllOk(run.Save(5));
  for (const int64_t step : {1, 2, 3}) CHECK(run.IsSaved(step));
  RequireAllOk(run.SaveLast(6));
  CHECK(run.IsSaved(6));
  CHECK(run.IsSaved(3));
  CHECK_FALSE(run.IsSaved(2));
  CHECK_FALSE(run.IsSaved(1));
}

TEST_CASE("no rank writes again while rank 0 removes the files of a save that failed") {
  if (!testing::HasPlacesOrSkips(2)) return;
  Run run(/*failures_max=*/5);
  // The manifest of an earlier save of the step: the removal reads it first.
  RequireAllOk(run.world.Save(run.directory.File("saved"), 1));
  // Longer than the pause before the next attempt.
  run.disk.FailOnceAt("step_00000001/rank_00001.", absl::Seconds(2));
  const size_t before = run.disk.log().size();
  RequireAllOk(run.SaveLast(1));
  CHECK(run.IsSaved(1));
  // Two data files in each of two attempts, and a manifest.
  CHECK(run.disk.log().size() - before == 5);
}

TEST_CASE("the last save takes the place of one that has hardly begun") {
  if (!testing::HasPlacesOrSkips(2)) return;
  Run run(/*failures_max=*/1);
  RequireAllOk(run.SaveLast(1));
  RequireAllOk(run.world.Train(1));
  run.disk.Hold(true);
  RequireAllOk(run.Save(2));
  REQUIRE(convene::testing::PollUntil([&] { return run.disk.IsWaiting(); }, absl::Seconds(30)));
  RequireAllOk(run.world.Train(1, /*first_step=*/2));
  Thread disk("disk", [&] {
    (void)convene::testing::PollUntil([&] { return run.savers[1]->gives_up_flight(); },
                                      absl::Seconds(30));
    run.disk.Hold(false);
  });
  RequireAllOk(run.SaveLast(3));
  disk.Join();
  CHECK(run.IsSaved(1));
  CHECK(run.IsSaved(3));
  CHECK(run.ReportedSteps() == std::vector<int64_t>{1, 3});
  CHECK(*ListDirectory(run.directory.File("saved")) ==
        std::vector<std::string>{"step_00000001", "step_00000003"});
}

TEST_CASE("a save that is nearly on the disk, or is the first one, is waited for") {
  if (!testing::HasPlacesOrSkips(2)) return;
  const bool is_first = GENERATE(false, true);
  CAPTURE(is_first);
  Run run(/*failures_max=*/1);
  if (!is_first) RequireAllOk(run.SaveLast(1));
  run.disk.Hold(true, is_first ? FileOp::kOpen : FileOp::kSync);
  RequireAllOk(run.Save(2));
  REQUIRE(convene::testing::PollUntil(
      [&] { return run.disk.IsWaiting() && run.disk.OtherHasWritten(); }, absl::Seconds(30)));
  bool is_given_up = false;
  Thread disk("disk", [&] {
    // Only a wait shows that nothing is given up.
    is_given_up = convene::testing::PollUntil(
        [&] { return run.savers[0]->gives_up_flight() || run.savers[1]->gives_up_flight(); },
        absl::Milliseconds(200));
    run.disk.Hold(false);
  });
  RequireAllOk(run.SaveLast(3));
  disk.Join();
  CHECK_FALSE(is_given_up);
  CHECK(run.IsSaved(2));
  CHECK(run.IsSaved(3));
}

TEST_CASE("a training that ends without its peers gives up its save in flight") {
  if (!testing::HasPlacesOrSkips(2)) return;
  Run run(/*failures_max=*/1);
  RequireAllOk(run.SaveLast(1));
  const MonotonicTime began = Clock::Real().Now();
  RequireAllOk(run.world.OnEveryRank([&](Rank& rank, Stream& /*stream*/) -> absl::Status {
    if (rank.world->rank() == 1) return absl::OkStatus();
    CONVENE_RETURN_IF_ERROR(run.savers[0]->Save(run.world.Info(2), rank.engine->optimizer()));
    run.savers[0].reset();
    return absl::OkStatus();
  }));
  CHECK(Clock::Real().Now() - began < absl::Seconds(20));  // a collective waits for 30 s
  CHECK(run.IsSaved(1));
  CHECK_FALSE(run.IsSaved(2));
}

TEST_CASE("a saver has its thread before the first save, and needs no other one") {
  if (!testing::HasPlacesOrSkips(2)) return;
  Run run(/*failures_max=*/1);
  const ScopedThreadFault none("checkpoint");
  for (const int64_t step : {1, 2}) {
    RequireAllOk(run.Save(step));
    for (const auto& saver : run.savers) CHECK(saver->is_in_flight());
  }
  RequireAllOk(run.world.OnEveryRank(
      [&](Rank& rank, Stream& /*stream*/) { return run.savers[rank.world->rank()]->Finish(2); }));
  RequireAllOk(run.SaveLast(3));
  CHECK(run.ReportedSteps() == std::vector<int64_t>{1, 2, 3});
}

// At its first save this rank would be late for the others, which wait in the training.
TEST_CASE("a rank that cannot start the thread of its saves ends before the first step") {
  if (testing::OnGpus()) return;  // a forked child has no GPU
  const pid_t child = fork();
  if (child == 0) {
    const ScopedThreadFault none("checkpoint");
    const Run run(/*failures_max=*/1);
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == static_cast<int>(ExitCode::kUnfitNode)));
}

}  // namespace
}  // namespace convene::worker
