// Saving and restoring by real engines, whose ranks are threads: which checkpoint is taken, and
// what is refused. checkpoint_bits_test has what is in them.
#include "worker_runtime/checkpointing/save_restore.h"

#include <atomic>
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/logged_text.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/checkpoint_world.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;
using testing::kData;
using testing::kSamples;
using testing::kSeed;
using testing::MemorySource;
using testing::Rank;
using testing::RequireAllOk;
using testing::ResumeFrom;
using testing::World;

// Every rank reads from a source of its own.
auto From(const MemorySource& source) {
  return [&](int /*rank*/) { return std::make_unique<MemorySource>(source); };
}

TEST_CASE("a run goes on from memory as from files, in another layout, bit by bit") {
  const TempDir directory;
  World saved({.dp = 2, .tp = 2});
  RequireAllOk(saved.Train(3));
  RequireAllOk(saved.Save(directory.path(), 3));
  const MemorySource memory = saved.HandOver(3);
  const auto state = saved.State();
  const TrainOptions options = ResumeFrom(directory.path());
  for (const Layout layout : {Layout{2, 1, 2}, Layout{}, Layout{.dp = 2, .cp = 3}}) {
    INFO(layout.ToString());
    World files(layout, /*seed=*/99), moved(layout, /*seed=*/98);
    std::vector<int64_t> steps;
    RequireAllOk(files.Restore(options, &steps));
    RequireAllOk(moved.RestoreFrom(From(memory), options));
    CHECK(moved.State() == state);
    CHECK(moved.EveryRankHolds(state));
    RequireAllOk(files.Train(2, /*first_step=*/4));
    RequireAllOk(moved.Train(2, /*first_step=*/4));
    CHECK(moved.State() == files.State());
  }
}

TEST_CASE("adapters of experts go on in another layout, bit by bit") {
  if (!testing::HasPlacesOrSkips(4)) return;
  ModelConfig model = testing::Small();
  model.family = NamedModel("moe-tiny")->family;
  model.experts = {.count = 4, .chosen = 2, .ffn_size = 8};
  model.adapter = {.rank = 2, .alpha = 4, .targets = {"w1", "w2"}};
  const auto world = [&](const Layout& layout, uint64_t seed) {
    return World(layout, seed, DType::kFloat32, 1, true, 1, false, model);
  };
  const TempDir directory;
  World saved = world({.dp = 2, .tp = 2, .ep = 2}, kSeed);
  RequireAllOk(saved.Train(3));
  RequireAllOk(saved.Save(directory.path(), 3));
  const auto state = saved.State();
  CHECK(state.size() == size_t{3} * model.layers * 4 * 2 * 2);  // with moments
  TrainOptions options = ResumeFrom(directory.path());
  options.model = model;
  for (const Layout layout : {Layout{2, 1, 2}, Layout{}, Layout{.dp = 4, .ep = 4}}) {
    INFO(layout.ToString());
    World resumed = world(layout, /*seed=*/99);
    std::vector<int64_t> steps;
    RequireAllOk(resumed.Restore(options, &steps));
    CHECK(resumed.State() == state);
  }
}

TEST_CASE("adapters that were trained beside other weights go on with a warning") {
  World saved({.dp = 2});
  RequireAllOk(saved.Train(1));
  const auto state = saved.State();
  TrainOptions options = ResumeFrom("");
  options.init_from = "/new";
  for (const std::string base : {"", "/new", "/new/step_00000005", "/old"}) {
    INFO(base);
    const MemorySource memory = saved.HandOver(1, DType::kFloat32, base);
    World resumed({.dp = 2}, /*seed=*/99);
    const convene::testing::LoggedText log;
    RequireAllOk(resumed.RestoreFrom(From(memory), options));
    CHECK(resumed.State() == state);
    CHECK(log.CountOf("was trained beside /old, and --init-from is /new") == (base == "/old"));
    CHECK(log.CountOf("was trained beside") == (base == "/old"));
  }
}

TEST_CASE("a source in bf16 fills fp32 masters, in another layout") {
  const auto dtype = GENERATE(DType::kFloat32, DType::kBFloat16);
  World saved({.dp = 2, .tp = 2});
  RequireAllOk(saved.Train(3));
  auto rounded = saved.State();
  for (auto& [name, values] : rounded) {
    for (float& value : values) value = static_cast<float>(BFloat16(value));
  }
  REQUIRE(rounded != saved.State());
  World restored({2, 3, 1}, /*seed=*/99, dtype);
  RequireAllOk(restored.RestoreFrom(From(saved.HandOver(3, DType::kBFloat16)), ResumeFrom("")));
  CHECK(restored.State() == rounded);
  CHECK(restored.EveryRankHolds(rounded));
}

TEST_CASE("where one rank has no source, or one of another state, no rank goes on") {
  World world({.pp = 1, .dp = 2, .tp = 1});
  const MemorySource memory = world.HandOver(1);
  TrainOptions options = ResumeFrom("");
  const auto lost = [&](int rank) -> absl::StatusOr<std::unique_ptr<StateSource>> {
    if (rank == 1) return absl::DataLossError("the memory is gone");
    return std::make_unique<MemorySource>(memory);
  };
  for (const absl::Status& status : world.RestoreFrom(lost, options)) {
    CHECK_STATUS(status, absl::StatusCode::kDataLoss, "the memory is gone");
  }
  options.seed = kSeed + 1;
  for (const absl::Status& status : world.RestoreFrom(From(memory), options)) {
    CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition,
                 "the memory of a test was trained with --seed 3, not 4");
  }
}

TrainOptions Named(const std::string& directory, const std::string& checkpoint) {
  TrainOptions options = ResumeFrom(directory);
  options.resume = ResumeMode::kDirectory;
  options.resume_directory = checkpoint;
  return options;
}

TEST_CASE("each start goes on from the run's own newest checkpoint, with the words that began it") {
  const TempDir old_run;
  World world({.pp = 1, .dp = 2, .tp = 1});
  RequireAllOk(world.Save(old_run.path(), 4));
  for (const ResumeMode mode : {ResumeMode::kNone, ResumeMode::kDirectory}) {
    const TempDir directory;
    TrainOptions options = Named(directory.path(), old_run.File("step_00000004"));
    options.resume = mode;
    const int64_t first = mode == ResumeMode::kNone ? -1 : 4;
    for (const bool is_restart : {false, true}) {
      std::vector<int64_t> steps;
      // Before the run has saved anything.
      RequireAllOk(world.Restore(options, &steps, is_restart));
      CHECK(steps == std::vector<int64_t>(2, first));
      // Cut off before it was published.
      REQUIRE_OK(MakeDirectories(directory.File("step_00000007")));
      CheckpointInfo info = world.Info(6);
      info.began_with = BeganWith(options);
      RequireAllOk(world.Save(directory.path(), info, 2));
      RequireAllOk(world.Restore(options, &steps, is_restart));
      CHECK(steps == std::vector<int64_t>(2, 6));
      RequireAllOk(world.Restore(ResumeFrom(directory.path()), &steps, is_restart));
      CHECK(steps == std::vector<int64_t>(2, 6));
      REQUIRE_OK(RemoveTree(directory.File("step_00000006")));
    }
  }
}

TEST_CASE("the checkpoints of another run are neither gone on from nor written over") {
  const TempDir old_run, directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  RequireAllOk(world.Save(old_run.path(), 4));
  const TrainOptions named = Named(directory.path(), old_run.File("step_00000004"));
  TrainOptions fresh = named;
  fresh.resume = ResumeMode::kNone;
  std::vector<int64_t> steps;
  for (const bool is_restart : {false, true}) {
    RequireAllOk(world.Save(directory.path(), 2));
    RequireAllOk(world.Restore(named, &steps, is_restart));
    CHECK(steps == std::vector<int64_t>(2, 4));
    CHECK_STATUS(world.Restore(fresh, &steps, is_restart)[1], absl::StatusCode::kFailedPrecondition,
                 "already holds checkpoints up to step 2 of a run that did not begin with --resume "
                 "none (or that an older build saved), and this run is to go on after step 0");
    RequireAllOk(world.Save(directory.path(), 6));
    CHECK_STATUS(world.Restore(named, &steps, is_restart)[0], absl::StatusCode::kFailedPrecondition,
                 "already holds checkpoints up to step 6");
    REQUIRE_OK(RemoveTree(directory.File("step_00000006")));
  }
}

TEST_CASE("a run goes on without the checkpoint that it began with, but not before its own") {
  const TempDir directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  const TrainOptions options = Named(directory.path(), directory.File("step_00000004"));
  CheckpointInfo info = world.Info(5);
  info.began_with = BeganWith(options);
  RequireAllOk(world.Save(directory.path(), info, 2));
  std::vector<int64_t> steps;
  RequireAllOk(world.Restore(options, &steps));
  CHECK(steps == std::vector<int64_t>(2, 5));
  // Nobody can tell whose it was. The run does not silently begin again.
  RequireAllOk(world.Save(directory.path(), 4));
  REQUIRE_OK(WriteFileAtomic(directory.File("step_00000005/manifest"), "cut"));
  CHECK_STATUS(world.Restore(options, &steps)[0], absl::StatusCode::kDataLoss,
               "none of the 1 checkpoints in");
}

TEST_CASE("a run that is restored knows what it began with") {
  const TempDir old_run, directory;
  World world({.pp = 1, .dp = 1, .tp = 1});
  CheckpointInfo info = world.Info(4);
  info.began_with = "/older";
  RequireAllOk(world.Save(old_run.path(), info, 2));
  const auto began_with = [&](const TrainOptions& options) {
    std::string found;
    RequireAllOk(world.OnEveryRank([&](Rank& rank, Stream& stream) -> absl::Status {
      CONVENE_ASSIGN_OR_RETURN(const std::optional<Restored> restored,
                               RestoreCheckpoint(options, {.data = kData, .samples = kSamples},
                                                 rank.engine->optimizer(), *rank.world, stream));
      found = restored->info.began_with;
      return absl::OkStatus();
    }));
    return found;
  };
  const std::string named = old_run.File("step_00000004");
  CHECK(began_with(Named(directory.path(), named)) == named);
  CHECK(began_with(ResumeFrom(old_run.path())) == "/older");
}

TEST_CASE("a rank that cannot write fails the save everywhere and the older checkpoint stays") {
  const TempDir directory;
  World world({.pp = 1, .dp = 2, .tp = 2});
  RequireAllOk(world.Train(1));
  RequireAllOk(world.Save(directory.path(), 1));
  std::vector<absl::Status> statuses;
  {
    const ScopedFileFault full_disk([](FileOp op, const std::string& path) {
      return op == FileOp::kWrite && absl::StrContains(path, "rank_00002.") ? ENOSPC : 0;
    });
    statuses = world.Save(directory.path(), 2);
  }
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == 2) {
      CHECK_STATUS(statuses[rank], absl::StatusCode::kResourceExhausted, "rank 2");
    } else {
      CHECK_STATUS(statuses[rank], absl::StatusCode::kResourceExhausted, "rank 2 could not write");
    }
  }
  CHECK(*ListDirectory(directory.path()) == std::vector<std::string>{"step_00000001"});
  std::vector<int64_t> steps;
  RequireAllOk(world.Restore(ResumeFrom(directory.path()), &steps));
  CHECK(steps == std::vector<int64_t>(4, 1));
}

TEST_CASE("a checkpoint that cannot be published fails the save everywhere") {
  const TempDir directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  const ScopedFileFault fault([](FileOp op, const std::string& path) {
    return op == FileOp::kRename && absl::EndsWith(path, "/manifest") ? EACCES : 0;
  });
  const auto statuses = world.Save(directory.path(), 1);
  CHECK_STATUS(statuses[0], absl::StatusCode::kPermissionDenied, "manifest");
  CHECK_STATUS(statuses[1], absl::StatusCode::kPermissionDenied, "rank 0 could not publish");
}

TEST_CASE("old checkpoints that cannot be removed do not fail the save") {
  const TempDir directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  // RemoveOldCheckpoints refuses to keep none.
  RequireAllOk(world.Save(directory.path(), 1, /*keep=*/0));
  std::vector<int64_t> steps;
  RequireAllOk(world.Restore(ResumeFrom(directory.path()), &steps));
  CHECK(steps == std::vector<int64_t>(2, 1));
}

TEST_CASE("with nothing saved every rank starts fresh") {
  const TempDir directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  std::vector<int64_t> steps;
  RequireAllOk(world.Restore(ResumeFrom(directory.path()), &steps));
  CHECK(steps == std::vector<int64_t>(2, -1));
}

// Flips the last byte of this rank's data file.
void Damage(const std::string& step_directory, const std::string& rank_prefix) {
  const std::vector<std::string> names = *ListDirectory(step_directory);
  for (const std::string& name : names) {
    if (!absl::StartsWith(name, rank_prefix) || !absl::EndsWith(name, ".bin")) continue;
    const std::string path = absl::StrCat(step_directory, "/", name);
    std::string bytes = *ReadFile(path);
    bytes.back() ^= 1;
    REQUIRE_OK(WriteFileAtomic(path, bytes));
  }
}

TEST_CASE("a checkpoint that one rank finds damaged is refused by all, and the older one loaded") {
  const TempDir directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  RequireAllOk(world.Save(directory.path(), 1));
  const auto state = world.State();
  RequireAllOk(world.Train(2));
  RequireAllOk(world.Save(directory.path(), 2));
  Damage(directory.File("step_00000002"), "rank_00001.");
  std::vector<int64_t> steps;
  RequireAllOk(world.Restore(ResumeFrom(directory.path()), &steps));
  CHECK(steps == std::vector<int64_t>(2, 1));
  CHECK(world.State() == state);
  CHECK(world.EveryRankHolds(state));

  const TrainOptions named = Named("", directory.File("step_00000002"));
  auto statuses = world.Restore(named, &steps);
  CHECK_STATUS(statuses[0], absl::StatusCode::kDataLoss, "rank 1 could not load the checkpoint: ");
  CHECK_STATUS(statuses[0], absl::StatusCode::kDataLoss, "has checksum");
  CHECK_STATUS(statuses[1], absl::StatusCode::kDataLoss, "has checksum");

  Damage(directory.File("step_00000001"), "rank_00000.");
  statuses = world.Restore(ResumeFrom(directory.path()), &steps);
  CHECK_STATUS(statuses[0], absl::StatusCode::kDataLoss, "none of the 2 checkpoints in");
  CHECK_STATUS(statuses[0], absl::StatusCode::kDataLoss, "rank 1 could not load the checkpoint: ");
  CHECK_STATUS(statuses[1], absl::StatusCode::kDataLoss, "rank 0 could not open");
}

// States in a rank's memory, the newest first.
class HandedOver final : public StatesInMemory {
 public:
  explicit HandedOver(std::vector<MemorySource> states) : states_(std::move(states)) {}

  absl::StatusOr<std::unique_ptr<StateSource>> OpenNext() override {
    if (next_ == states_.size()) return nullptr;
    return std::make_unique<MemorySource>(states_[next_++]);
  }

 private:
  const std::vector<MemorySource> states_;
  size_t next_ = 0;
};

// A restart: every rank's step, and whether it came from memory.
std::vector<std::pair<int64_t, bool>> RestartBesideMemory(World& world,
                                                          const std::string& directory,
                                                          const std::vector<MemorySource>& states,
                                                          int64_t below_step = kAnyStep) {
  std::vector<std::pair<int64_t, bool>> found(2);
  RequireAllOk(world.OnEveryRank([&](Rank& rank, Stream& stream) -> absl::Status {
    HandedOver memory(states);
    CONVENE_ASSIGN_OR_RETURN(
        const std::optional<Restored> restored,
        RestoreCheckpoint(ResumeFrom(directory),
                          {.data = kData, .samples = kSamples, .is_restart = true},
                          rank.engine->optimizer(), *rank.world, stream, &memory, below_step));
    const bool is_any = restored.has_value();
    found[rank.world->rank()] = {is_any ? restored->info.step : -1,
                                 is_any && restored->path.empty()};
    return absl::OkStatus();
  }));
  return found;
}

TEST_CASE("a damaged checkpoint does not keep a restart from the states in memory") {
  const auto memory_of = [](int64_t step) {
    return std::vector<std::pair<int64_t, bool>>(2, {step, true});
  };
  const auto files_of = [](int64_t step) {
    return std::vector<std::pair<int64_t, bool>>(2, {step, false});
  };
  const TempDir directory;
  World world({.dp = 2});
  RequireAllOk(world.Save(directory.path(), 50));
  const std::vector<MemorySource> memory = {world.HandOver(55), world.HandOver(54)};
  CHECK(RestartBesideMemory(world, directory.path(), memory) == memory_of(55));
  RequireAllOk(world.Save(directory.path(), 60));
  CHECK(RestartBesideMemory(world, directory.path(), memory) == files_of(60));
  SECTION("its files are whole, and their data are not") {
    Damage(directory.File("step_00000060"), "rank_00001.");
  }
  SECTION("it does not open") {
    REQUIRE_OK(WriteFileAtomic(directory.File("step_00000060/manifest"), "cut"));
  }
  const convene::testing::LoggedText log;
  CHECK(RestartBesideMemory(world, directory.path(), memory) == memory_of(55));
  CHECK(log.CountOf("checkpoint refused") == 1);
  CHECK(RestartBesideMemory(world, directory.path(), {}) == files_of(50));
  // No checkpoint opens.
  REQUIRE_OK(WriteFileAtomic(directory.File("step_00000050/manifest"), "cut"));
  CHECK(RestartBesideMemory(world, directory.path(), memory) == memory_of(55));
}

TEST_CASE("a training that goes back takes no checkpoint of a later step") {
  const TempDir directory;
  World world({.dp = 2});
  RequireAllOk(world.Save(directory.path(), 50));
  RequireAllOk(world.Save(directory.path(), 60));
  using Found = std::vector<std::pair<int64_t, bool>>;
  CHECK(RestartBesideMemory(world, directory.path(), {}, 61) == Found(2, {60, false}));
  CHECK(RestartBesideMemory(world, directory.path(), {}, 60) == Found(2, {50, false}));
  CHECK(RestartBesideMemory(world, directory.path(), {}, 50) == Found(2, {-1, false}));
}

TEST_CASE("each rank reads what it needs once, and rank 0 no more than the others") {
  const TempDir directory;
  World world({.pp = 2, .dp = 1, .tp = 1});
  RequireAllOk(world.Save(directory.path(), 1));
  std::atomic<int> opened = 0;
  const ScopedFileFault count([&](FileOp op, const std::string& path) {
    opened += op == FileOp::kOpen && absl::EndsWith(path, ".bin") ? 1 : 0;
    return 0;
  });
  std::vector<int64_t> steps;
  RequireAllOk(world.Restore(ResumeFrom(directory.path()), &steps));
  // Each stage its own file; the last also the tied table, which the first has written.
  CHECK(opened == 3);
}

TEST_CASE("a directory that is no checkpoint says what was looked for and what to give") {
  const TempDir directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  const TrainOptions options = Named("", directory.path());
  std::vector<int64_t> steps;
  auto statuses = world.Restore(options, &steps);
  CHECK_STATUS(statuses[0], absl::StatusCode::kNotFound,
               "is no checkpoint: it has no file \"manifest\". Give the directory of one");
  CHECK_STATUS(statuses[1], absl::StatusCode::kNotFound, "Give the directory of one");
  RequireAllOk(world.Save(directory.path(), 1));
  RequireAllOk(world.Save(directory.path(), 2));
  statuses = world.Restore(options, &steps);
  CHECK_STATUS(statuses[0], absl::StatusCode::kNotFound,
               absl::StrCat("the newest is ", directory.File("step_00000002"), ": give that"));
}

TEST_CASE("other data is refused by every rank, unless it is accepted") {
  const TempDir directory, old_directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  RequireAllOk(world.Save(directory.path(), 1));
  TrainOptions options = ResumeFrom(directory.path());
  std::vector<int64_t> steps;
  const std::string other = "9 tokens with hash 2";
  for (const bool is_restart : {false, true}) {
    for (const absl::Status& status : world.Restore(options, &steps, is_restart, other)) {
      CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition,
                   "was trained on 9 tokens with hash 1, 4 training samples of 2 tokens; this run "
                   "has 9 tokens with hash 2, 4 training");
      CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition, "--accept-new-data");
    }
  }
  options.accept_new_data = true;
  RequireAllOk(world.Restore(options, &steps, false, other));
  CHECK(steps == std::vector<int64_t>(2, 1));
  // One of format version 1 does not know.
  RequireAllOk(world.Save(old_directory.path(), 1, 2, ""));
  RequireAllOk(world.Restore(ResumeFrom(old_directory.path()), &steps, false, other));
  CHECK(steps == std::vector<int64_t>(2, 1));
}

TEST_CASE("the same data in other samples is refused by every rank, unless it is accepted") {
  const TempDir directory, old_directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  RequireAllOk(world.Save(directory.path(), 1));
  TrainOptions options = ResumeFrom(directory.path());
  std::vector<int64_t> steps;
  const std::string other = "2 training samples of 4 tokens";
  for (const absl::Status& status : world.Restore(options, &steps, false, kData, other)) {
    CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition,
                 "4 training samples of 2 tokens; this run has 9 tokens with hash 1, 2 training "
                 "samples of 4 tokens");
    CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition, "--accept-new-data");
  }
  options.accept_new_data = true;
  RequireAllOk(world.Restore(options, &steps, false, kData, other));
  CHECK(steps == std::vector<int64_t>(2, 1));
  // Format version 2 knew its data alone. Other data is still refused.
  RequireAllOk(world.Save(old_directory.path(), 1, 2, kData, ""));
  options = ResumeFrom(old_directory.path());
  RequireAllOk(world.Restore(options, &steps, false, kData, other));
  CHECK(steps == std::vector<int64_t>(2, 1));
  CHECK_STATUS(world.Restore(options, &steps, false, "10 tokens", other)[0],
               absl::StatusCode::kFailedPrecondition, "was trained on 9 tokens with hash 1; this");
}

World WorldOf(const Layout& layout, const UpdateRule& rule) {
  return World(layout, kSeed, DType::kFloat32, 1, true, 1, false, testing::Small(), false, rule);
}

TEST_CASE("Muon's state, of which matrices have less, is restored on another layout") {
  if (!testing::HasPlacesOrSkips(4)) return;
  const TempDir directory;
  World saved = WorldOf({.dp = 4}, MuonRule());
  RequireAllOk(saved.Train(2));
  RequireAllOk(saved.Save(directory.path(), 2));
  TrainOptions options = ResumeFrom(directory.path());
  options.optimizer = &MuonRule();
  World read = WorldOf({.dp = 2, .tp = 2}, MuonRule());
  std::vector<int64_t> steps;
  RequireAllOk(read.Restore(options, &steps));
  CHECK(read.State() == saved.State());
}

TEST_CASE("SGD goes on without a momentum that was saved, but with none that was not") {
  const TempDir with, without;
  World momentum = WorldOf({}, SgdRule());
  World plain = WorldOf({}, PlainSgdRule());
  RequireAllOk(momentum.Save(with.path(), 1));
  RequireAllOk(plain.Save(without.path(), 1));
  TrainOptions options = ResumeFrom(with.path());
  options.optimizer = &PlainSgdRule();
  std::vector<int64_t> steps;
  RequireAllOk(plain.Restore(options, &steps));
  CHECK(steps == std::vector<int64_t>(1, 1));
  options = ResumeFrom(without.path());
  options.optimizer = &SgdRule();
  CHECK_STATUS(momentum.Restore(options, &steps)[0], absl::StatusCode::kFailedPrecondition,
               "give --momentum 0 to go on with it");
}

TEST_CASE("another seed, shape or optimizer is refused by every rank") {
  const TempDir directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  RequireAllOk(world.Save(directory.path(), 1));
  TrainOptions other_seed = ResumeFrom(directory.path());
  other_seed.seed = kSeed + 1;
  TrainOptions other_shape = ResumeFrom(directory.path());
  other_shape.model.rope_theta = 500000;
  std::vector<int64_t> steps;
  TrainOptions other_optimizer = ResumeFrom(directory.path());
  other_optimizer.optimizer = &SgdRule();
  for (const absl::Status& status : world.Restore(other_optimizer, &steps)) {
    CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition,
                 "was trained with --optimizer adamw, not sgd");
  }
  for (const absl::Status& status : world.Restore(other_seed, &steps)) {
    CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition, "--seed 3, not 4");
  }
  const auto refuses_shape = [&](const char* shape, const char* advice) {
    for (const absl::Status& status : world.Restore(other_shape, &steps)) {
      CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition, shape);
      CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition, advice);
    }
    other_shape = ResumeFrom(directory.path());
  };
  refuses_shape("theta 500000", "; give the --model it was trained with");
  other_shape.model.rope_scaling.factor = 32;
  refuses_shape("theta 10000 scaled 32 (1 to 4 of 8192)", "; the rotary positions differ: give");
  other_shape.model.adapter = {.rank = 2, .alpha = 4};
  refuses_shape("adapters 2 alpha 4 of all", "; give --lora-rank, ");
}

}  // namespace
}  // namespace convene::worker
