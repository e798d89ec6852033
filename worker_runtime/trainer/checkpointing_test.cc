// Saving and restoring by real engines, whose ranks are threads.
#include "worker_runtime/trainer/checkpointing.h"

#include <atomic>
#include <cerrno>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/loopback.h"
#include "worker_runtime/trainer/engine.h"

namespace convene::worker {
namespace {

using convene::testing::TempDir;

constexpr int kSequenceLength = 6;
constexpr int64_t kSeed = 3;
constexpr char kData[] = "9 tokens with hash 1";
constexpr char kSamples[] = "4 training samples of 2 tokens";

ModelConfig Small() {
  return {.layers = 2,
          .hidden_size = 12,
          .ffn_size = 20,
          .heads = 6,
          .kv_heads = 2,
          .head_size = 4,
          .vocabulary_size = 18,
          .tied_embeddings = true};
}

// One rank's engine, for as long as a test needs it.
struct Rank {
  Collective* world = nullptr;
  std::unique_ptr<Engine> engine;
};

void RequireAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
}

// Whether an engine's parameters are the weights of `state`.
bool Holds(const Engine& engine, const std::vector<char>& parameters,
           const std::map<std::string, std::vector<float>>& state) {
  const DType dtype = engine.store().dtype();
  const ConstElements held(parameters.data(), parameters.size() / SizeOf(dtype), dtype);
  for (const PlacedParameter& slice : engine.placement().parameters) {
    const std::vector<float>& tensor = state.at(slice.name);
    for (int64_t i = 0; i < slice.count(); ++i) {
      const auto [row, column] = std::pair{i / slice.extent[1], i % slice.extent[1]};
      const float value =
          tensor[(slice.offset[0] + row) * slice.global_shape[1] + slice.offset[1] + column];
      const ConstElements one = held.Slice(slice.flat_offset + i, 1);
      if (dtype == DType::kFloat32 ? one.As<float>()[0] != value
                                   : one.As<BFloat16>()[0].bits != BFloat16(value).bits)
        return false;
    }
  }
  return true;
}

// All ranks of a layout.
class World {
 public:
  explicit World(const Layout& layout, uint64_t seed = kSeed, DType dtype = DType::kFloat32,
                 int64_t bucket_count_min = 1, bool fresh_weights = true, int zero_stage = 1,
                 bool offloads = false, const ModelConfig& model = Small())
      : layout_(layout),
        model_(model),
        sets_(LoopbackCommunicators(layout)),
        ranks_(layout.world_size()) {
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      devices_.push_back(Device::Cpu());
      auto engine = Engine::Create({.model = model,
                                    .layout = layout,
                                    .rank = rank,
                                    .seed = seed,
                                    .dtype = dtype,
                                    .micro_batch_size = 2,
                                    .sequence_length = kSequenceLength,
                                    .bucket_count_min = bucket_count_min,
                                    .zero_stage = zero_stage,
                                    .offload_optimizer = offloads,
                                    .offload_parameters = offloads && zero_stage == 3,
                                    .fresh_weights = fresh_weights},
                                   sets_[rank], *devices_[rank]);
      REQUIRE_OK(engine);
      ranks_[rank] = {sets_[rank].host.get(), *std::move(engine)};
    }
  }

  // Calls `body` for each rank, each in its own thread.
  std::vector<absl::Status> OnEveryRank(const std::function<absl::Status(Rank&, Stream&)>& body) {
    std::vector<absl::Status> statuses(ranks_.size());
    std::vector<Thread> threads;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      threads.emplace_back(absl::StrCat("rank ", rank), [&, rank] {
        Stream stream = Stream::Cpu();
        statuses[rank] = body(ranks_[rank], stream);
      });
    }
    for (Thread& thread : threads) thread.Join();
    return statuses;
  }

  std::vector<absl::Status> Train(int64_t steps, int64_t first_step = 1) {
    return OnEveryRank([&](Rank& rank, Stream& /*stream*/) -> absl::Status {
      std::vector<int32_t> inputs, targets;
      for (int i = 0; i < 2 * kSequenceLength; ++i) {
        inputs.push_back(i * 5 % 18);
        targets.push_back((i * 7 + 1) % 18);
      }
      for (int64_t step = first_step; step < first_step + steps; ++step) {
        CONVENE_RETURN_IF_ERROR(
            rank.engine
                ->TrainStep({inputs.data(), targets.data(), 1.0f / 24},
                            {.learning_rate = 1e-2, .weight_decay = 0.1, .step = step})
                .status());
      }
      return absl::OkStatus();
    });
  }

  std::vector<absl::Status> Save(const std::string& directory, int64_t step, int keep = 2,
                                 const std::string& data = kData,
                                 const std::string& samples = kSamples) {
    return OnEveryRank([&](Rank& rank, Stream& stream) -> absl::Status {
      CONVENE_ASSIGN_OR_RETURN(const Agreement saved,
                               SaveCheckpoint(directory,
                                              {.step = step,
                                               .samples_consumed = 2 * step,
                                               .updates = step,
                                               .seed = kSeed,
                                               .model = ShapeText(model_),
                                               .data = data,
                                               .samples = samples,
                                               .layout = layout_.ToString(),
                                               .world_size = layout_.world_size()},
                                              keep, rank.engine->optimizer(), *rank.world, stream));
      return saved.verdict;
    });
  }

  // Every rank's answer goes into `steps`: -1 = nothing to resume from.
  std::vector<absl::Status> Restore(const TrainOptions& options, std::vector<int64_t>* steps,
                                    bool is_restart = false, const std::string& data = kData,
                                    const std::string& samples = kSamples) {
    steps->assign(ranks_.size(), -2);
    return OnEveryRank([&](Rank& rank, Stream& stream) -> absl::Status {
      CONVENE_ASSIGN_OR_RETURN(
          const std::optional<Restored> restored,
          RestoreCheckpoint(options, {.data = data, .samples = samples, .is_restart = is_restart},
                            rank.engine->optimizer(), *rank.world, stream));
      (*steps)[rank.world->rank()] = restored.has_value() ? restored->info.step : -1;
      return absl::OkStatus();
    });
  }

  // Rank 0's lock stays in `lock`.
  std::vector<absl::Status> Claim(const TrainOptions& options, const JobIdentity& job,
                                  std::optional<UniqueFd>* lock) {
    return OnEveryRank([&](Rank& rank, Stream& stream) -> absl::Status {
      CONVENE_ASSIGN_OR_RETURN(std::optional<UniqueFd> mine,
                               ClaimCheckpointDirectory(options, job, *rank.world, stream));
      if (rank.world->rank() == 0) *lock = std::move(mine);
      return absl::OkStatus();
    });
  }

  // Weights and moments by name, as one global tensor each.
  std::map<std::string, std::vector<float>> State() {
    std::map<std::string, std::vector<float>> state;
    for (const Rank& rank : ranks_) {
      const auto pieces = rank.engine->optimizer().PiecesToWrite();
      REQUIRE_OK(pieces);
      for (const PieceToWrite& item : *pieces) {
        const TensorPiece& piece = item.piece;
        const int64_t columns = piece.global_shape[1];
        std::vector<float>& tensor = state[piece.name];
        tensor.resize(piece.global_shape[0] * columns, -1234.5f);
        for (int64_t i = 0; i < piece.flat_count; ++i) {
          const int64_t place = piece.flat_begin + i;
          const int64_t row = piece.local_box.offset[0] + place / piece.local_box.extent[1];
          const int64_t column = piece.local_box.offset[1] + place % piece.local_box.extent[1];
          tensor[row * columns + column] = item.data[i];
        }
      }
    }
    return state;
  }

  // Whether each rank's parameters are the weights of `state`.
  bool EveryRankHolds(const std::map<std::string, std::vector<float>>& state) {
    std::vector<char> holds(ranks_.size());
    RequireAllOk(OnEveryRank([&](Rank& rank, Stream& /*stream*/) -> absl::Status {
      CONVENE_ASSIGN_OR_RETURN(const auto bytes, rank.engine->CopyParameters());
      holds[rank.world->rank()] = Holds(*rank.engine, bytes, state);
      return absl::OkStatus();
    }));
    return std::find(holds.begin(), holds.end(), false) == holds.end();
  }

 private:
  const Layout layout_;
  const ModelConfig model_;
  std::vector<CommunicatorSet> sets_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<Rank> ranks_;
};

TrainOptions ResumeFrom(const std::string& directory) {
  TrainOptions options;
  options.model = Small();
  options.seed = kSeed;
  options.checkpoint_dir = directory;
  return options;
}

TEST_CASE("what one layout saves another restores, bit by bit") {
  const TempDir directory;
  World saved({.pp = 1, .dp = 2, .tp = 2});
  RequireAllOk(saved.Train(3));
  RequireAllOk(saved.Save(directory.path(), 3));
  const auto state = saved.State();
  REQUIRE(state.count("optimizer.second_moment/model.embed_tokens.weight") == 1);
  for (const Layout layout : {Layout{2, 1, 2}, Layout{1, 1, 1}, Layout{2, 2, 1}, Layout{1, 3, 1}}) {
    INFO(layout.ToString());
    World restored(layout, /*seed=*/99);
    CHECK(restored.State() != state);
    std::vector<int64_t> steps;
    RequireAllOk(restored.Restore(ResumeFrom(directory.path()), &steps));
    CHECK(steps == std::vector<int64_t>(layout.world_size(), 3));
    CHECK(restored.State() == state);
    CHECK(restored.EveryRankHolds(state));
  }
}

TEST_CASE("copies of key and value heads are saved once, and all restored, bit by bit") {
  const ModelConfig model = {2, 16, 20, /*heads=*/4, /*kv_heads=*/1, /*head_size=*/4, 20};
  const auto world = [&](const Layout& layout, uint64_t seed) {
    return World(layout, seed, DType::kFloat32, 1, /*fresh_weights=*/true, /*zero_stage=*/1,
                 /*offloads=*/false, model);
  };
  const TempDir copied, whole;
  World saved = world({.dp = 2, .tp = 4}, kSeed);
  RequireAllOk(saved.Train(3));
  RequireAllOk(saved.Save(copied.path(), 3));
  const auto state = saved.State();
  std::vector<int64_t> steps;
  TrainOptions options = ResumeFrom(copied.path());
  options.model = model;
  World one = world({}, /*seed=*/99);
  RequireAllOk(one.Restore(options, &steps));
  CHECK(one.State() == state);
  RequireAllOk(one.Save(whole.path(), 3));
  options.checkpoint_dir = whole.path();
  World again = world({.tp = 4}, /*seed=*/98);
  RequireAllOk(again.Restore(options, &steps));
  CHECK(again.State() == state);
  CHECK(again.EveryRankHolds(state));
}

TEST_CASE(
    "whatever is sharded or in host memory, what one run saves another restores, bit by bit") {
  const auto dtype = GENERATE(DType::kFloat32, DType::kBFloat16);
  const int zero_stage = GENERATE(1, 2, 3), offloads = GENERATE(0, 1);
  const TempDir directory;
  World saved({.dp = 2}, kSeed, dtype, 1, true, zero_stage, offloads == 1);
  RequireAllOk(saved.Train(3));
  RequireAllOk(saved.Save(directory.path(), 3));
  const auto state = saved.State();
  RequireAllOk(saved.Train(2, /*first_step=*/4));
  World resumed({.dp = 2}, /*seed=*/99, dtype, 1, true, zero_stage, offloads == 1);
  World other({.dp = 3}, /*seed=*/99, dtype, 1, true, 4 - zero_stage, offloads == 0);
  std::vector<int64_t> steps;
  for (World* world : {&resumed, &other}) {
    RequireAllOk(world->Restore(ResumeFrom(directory.path()), &steps));
    CHECK(world->State() == state);
    CHECK(world->EveryRankHolds(state));
  }
  RequireAllOk(resumed.Train(2, 4));
  CHECK(resumed.State() == saved.State());
}

TEST_CASE("a run in bf16 goes on from its checkpoint as if it had not stopped") {
  const TempDir directory;
  const Layout layout{.pp = 2, .dp = 2, .tp = 1};
  World whole(layout, kSeed, DType::kBFloat16);
  RequireAllOk(whole.Train(3));
  RequireAllOk(whole.Save(directory.path(), 3));
  const auto saved = whole.State();
  RequireAllOk(whole.Train(2, /*first_step=*/4));

  World resumed(layout, /*seed=*/99, DType::kBFloat16);
  std::vector<int64_t> steps;
  RequireAllOk(resumed.Restore(ResumeFrom(directory.path()), &steps));
  CHECK(resumed.EveryRankHolds(resumed.State()));
  RequireAllOk(resumed.Train(2, /*first_step=*/4));
  CHECK(resumed.State() == whole.State());
  CHECK(resumed.EveryRankHolds(whole.State()));

  // The master weights are saved: another precision starts from the same ones.
  World in_fp32({.pp = 1, .dp = 1, .tp = 2}, /*seed=*/99);
  RequireAllOk(in_fp32.Restore(ResumeFrom(directory.path()), &steps));
  CHECK(steps == std::vector<int64_t>(2, 3));
  CHECK(in_fp32.State() == saved);
  CHECK(in_fp32.EveryRankHolds(saved));
}

TEST_CASE("a run goes on with buckets of another size, bit by bit") {
  const DType dtype = GENERATE(DType::kFloat32, DType::kBFloat16);
  CAPTURE(dtype);
  const TempDir directory;
  const Layout layout{.pp = 1, .dp = 2, .tp = 1};
  World many(layout, kSeed, dtype, /*bucket_count_min=*/1);
  RequireAllOk(many.Train(3));
  RequireAllOk(many.Save(directory.path(), 3));
  for (const int64_t bucket_count_min : {1500, 1 << 30}) {
    CAPTURE(bucket_count_min);
    World other(layout, /*seed=*/99, dtype, bucket_count_min);
    std::vector<int64_t> steps;
    RequireAllOk(other.Restore(ResumeFrom(directory.path()), &steps));
    CHECK(steps == std::vector<int64_t>(2, 3));
    CHECK(other.State() == many.State());
    CHECK(other.EveryRankHolds(many.State()));
  }
}

TEST_CASE("a directory that another job writes to is refused by every rank") {
  const TempDir directory;
  World first({.pp = 1, .dp = 2, .tp = 1}), second({.pp = 1, .dp = 2, .tp = 1});
  TrainOptions options = ResumeFrom(directory.File("made/by/the/first"));
  options.checkpoint_timeout = absl::Milliseconds(200);  // the wait is at most half of it
  std::optional<UniqueFd> held, refused;
  RequireAllOk(first.Claim(options, {.name = "first"}, &held));
  CHECK(held.has_value());
  auto statuses = second.Claim(options, {.name = "second"}, &refused);
  CHECK_STATUS(statuses[0], absl::StatusCode::kAlreadyExists, "job first, since ");
  CHECK_STATUS(statuses[0], absl::StatusCode::kAlreadyExists, "another --checkpoint-dir, or stop");
  CHECK_STATUS(statuses[1], absl::StatusCode::kAlreadyExists,
               "rank 0 could not have the checkpoint directory for itself: ");
  CHECK_STATUS(statuses[1], absl::StatusCode::kAlreadyExists, "another --checkpoint-dir, or stop");
  // A restart, whose predecessor it may be, is to try again.
  statuses = second.Claim(options, {.name = "first", .is_restart = true}, &refused);
  CHECK_STATUS(statuses[0], absl::StatusCode::kDeadlineExceeded, "job first, since ");
  held.reset();
  RequireAllOk(second.Claim(options, {.name = "second"}, &refused));
  options.checkpoint_dir.clear();
  RequireAllOk(first.Claim(options, {.name = "first"}, &held));
  CHECK_FALSE(held.has_value());
}

TEST_CASE("a directory that cannot take checkpoints is refused by every rank") {
  const TempDir directory;
  REQUIRE_OK(WriteFileAtomic(directory.File("file"), "text"));
  World world({.pp = 1, .dp = 2, .tp = 1});
  std::optional<UniqueFd> lock;
  const auto statuses = world.Claim(ResumeFrom(directory.File("file/below")), {}, &lock);
  CHECK_THAT(std::string(statuses[0].message()), Catch::Contains("--checkpoint-dir cannot take"));
  CHECK(statuses[1].code() == statuses[0].code());
  CHECK_THAT(std::string(statuses[1].message()), Catch::Contains("--checkpoint-dir cannot take"));
}

TEST_CASE("a restart goes on from the job's own newest checkpoint whatever the first start said") {
  const TempDir old_run, directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  RequireAllOk(world.Save(old_run.path(), 4));
  TrainOptions fresh = ResumeFrom(directory.path());
  fresh.resume = ResumeMode::kNone;
  TrainOptions named = ResumeFrom(directory.path());
  named.resume = ResumeMode::kDirectory;
  named.resume_directory = old_run.File("step_00000004");
  const std::vector<int64_t> nothing(2, -1), named_step(2, 4), own_step(2, 6);
  std::vector<int64_t> steps;
  for (const bool is_restart : {false, true}) {
    // Before the job has saved anything.
    RequireAllOk(world.Restore(fresh, &steps, is_restart));
    CHECK(steps == nothing);
    RequireAllOk(world.Restore(named, &steps, is_restart));
    CHECK(steps == named_step);
  }
  RequireAllOk(world.Save(directory.path(), 6));
  for (const TrainOptions& options : {fresh, named}) {
    RequireAllOk(world.Restore(options, &steps, /*is_restart=*/true));
    CHECK(steps == own_step);
    CHECK_STATUS(world.Restore(options, &steps)[0], absl::StatusCode::kFailedPrecondition,
                 "already holds checkpoints up to step 6");
  }
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

  TrainOptions named = ResumeFrom("");
  named.resume = ResumeMode::kDirectory;
  named.resume_directory = directory.File("step_00000002");
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

TEST_CASE("a checkpoint needs no fresh weights beneath it, and a fresh start gets them later") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const TempDir directory;
    World whole({.pp = 2, .dp = 2, .tp = 1}, kSeed, dtype);
    const auto fresh = whole.State();
    RequireAllOk(whole.Train(3));
    RequireAllOk(whole.Save(directory.path(), 3));
    World restored({.pp = 1, .dp = 3, .tp = 2}, kSeed, dtype, 1, /*fresh_weights=*/false);
    for (const auto& [name, values] : restored.State()) {
      INFO(name);
      CHECK(values == std::vector<float>(values.size()));
    }
    std::vector<int64_t> steps;
    RequireAllOk(restored.Restore(ResumeFrom(directory.path()), &steps));
    CHECK(steps == std::vector<int64_t>(6, 3));
    CHECK(restored.State() == whole.State());
    CHECK(restored.EveryRankHolds(whole.State()));
    World later({.pp = 1, .dp = 1, .tp = 1}, kSeed, dtype, 1, /*fresh_weights=*/false);
    RequireAllOk(later.OnEveryRank([](Rank& rank, Stream& /*stream*/) {
      rank.engine->InitializeWeights();
      return absl::OkStatus();
    }));
    CHECK(later.State() == fresh);
    CHECK(later.EveryRankHolds(fresh));
  }
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
  TrainOptions options = ResumeFrom("");
  options.resume = ResumeMode::kDirectory;
  options.resume_directory = directory.path();
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

TEST_CASE("another seed or shape is refused by every rank") {
  const TempDir directory;
  World world({.pp = 1, .dp = 2, .tp = 1});
  RequireAllOk(world.Save(directory.path(), 1));
  TrainOptions other_seed = ResumeFrom(directory.path());
  other_seed.seed = kSeed + 1;
  TrainOptions other_shape = ResumeFrom(directory.path());
  other_shape.model.rope_theta = 500000;
  std::vector<int64_t> steps;
  for (const absl::Status& status : world.Restore(other_seed, &steps)) {
    CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition, "--seed 3, not 4");
  }
  for (const absl::Status& status : world.Restore(other_shape, &steps)) {
    CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition, "theta 500000");
  }
  other_shape = ResumeFrom(directory.path());
  other_shape.model.rope_scaling.factor = 32;
  for (const absl::Status& status : world.Restore(other_shape, &steps)) {
    CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition,
                 "theta 10000 scaled 32 (1 to 4 of 8192)");
  }
}

}  // namespace
}  // namespace convene::worker
