// Real engines, whose ranks are threads in their places (testing/places.h), that save and restore.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/checkpoint/testing/memory_source.h"
#include "worker_runtime/checkpointing/save_restore.h"
#include "worker_runtime/model/shape_text.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/copy_parameters.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker::testing {

inline constexpr int kSequenceLength = 6;
inline constexpr int64_t kSeed = 3;
inline constexpr char kData[] = "9 tokens with hash 1";
inline constexpr char kSamples[] = "4 training samples of 2 tokens";

inline ModelConfig Small() {
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
  Device* device = nullptr;
  std::unique_ptr<Engine> engine;
};

inline void RequireAllOk(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
}

// Whether an engine's parameters are the weights of `state`.
inline bool Holds(Engine& engine, const std::vector<char>& parameters,
                  const std::map<std::string, std::vector<float>>& state) {
  const DType dtype = engine.store().dtype();
  const ConstElements held(parameters.data(), parameters.size() / SizeOf(dtype), dtype);
  const auto holds_slice = [&](const PlacedParameter& slice, int64_t first) {
    const std::vector<float>& tensor = state.at(slice.name);
    for (int64_t i = 0; i < slice.count(); ++i) {
      const auto [row, column] = std::pair{i / slice.extent[1], i % slice.extent[1]};
      const float value =
          tensor[(slice.offset[0] + row) * slice.global_shape[1] + slice.offset[1] + column];
      const ConstElements one = held.Slice(first + slice.flat_offset + i, 1);
      if (dtype == DType::kFloat32 ? one.As<float>()[0] != value
                                   : one.As<BFloat16>()[0].bits != BFloat16(value).bits)
        return false;
    }
    return true;
  };
  int64_t first = 0;  // of the store's, in CopyParameters' order
  for (const BucketStore* const store : engine.stores()) {
    for (const PlacedParameter& slice : store->placement().parameters) {
      if (!holds_slice(slice, first)) return false;
    }
    first += store->placement().flat_count;
  }
  return true;
}

// All ranks of a layout. REQUIRES: HasPlacesOrSkips(layout.world_size()).
class World {
 public:
  explicit World(const Layout& layout, uint64_t seed = kSeed, DType dtype = DType::kFloat32,
                 int64_t bucket_count_min = 1, bool fresh_weights = true, int zero_stage = 1,
                 bool offloads = false, const ModelConfig& model = Small(), bool copies = false,
                 const UpdateRule& rule = AdamWRule())
      : layout_(layout), model_(model), rule_(rule), ranks_(layout.world_size()) {
    auto places = Places::Make(layout);
    REQUIRE_OK(places);
    places_ = *std::move(places);
    // At the same time: ranks allocate the memory of their collectives together.
    RequireAllOk(places_->OnEveryRank([&](int rank) -> absl::Status {
      Place& place = (*places_)[rank];
      CONVENE_ASSIGN_OR_RETURN(
          ranks_[rank].engine,
          Engine::Create({.model = model,
                          .update_rule = &rule,
                          .layout = layout,
                          .rank = rank,
                          .seed = seed,
                          .dtype = dtype,
                          .deterministic = true,
                          .micro_batch_size = 2,
                          .sequence_length = kSequenceLength,
                          .bucket_count_min = bucket_count_min,
                          .zero_stage = zero_stage,
                          .offload_optimizer = offloads,
                          .offload_parameters = offloads && zero_stage == 3,
                          // A GPU has no other way to its state.
                          .copies_for_checkpoints = copies || (OnGpus() && !offloads),
                          .fresh_weights = fresh_weights,
                          .collective_memory = place.collective_memory.get()},
                         place.communicators, *place.device));
      ranks_[rank].world = place.communicators.host.get();
      ranks_[rank].device = place.device.get();
      return absl::OkStatus();
    }));
  }
  ~World() {
    places_->OnEveryRank([&](int rank) {
      ranks_[rank].engine = nullptr;
      return absl::OkStatus();
    });
  }

  // Calls `body` for each rank, each in its own thread.
  std::vector<absl::Status> OnEveryRank(const std::function<absl::Status(Rank&, Stream&)>& body) {
    return places_->OnEveryRank([&](int rank) {
      Stream stream = Stream::Cpu();
      return body(ranks_[rank], stream);
    });
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
            TrainStep(*rank.engine, {inputs.data(), targets.data(), 24},
                      {.learning_rate = 1e-2, .weight_decay = 0.1, .step = step})
                .status());
      }
      return absl::OkStatus();
    });
  }

  CheckpointInfo Info(int64_t step, const std::string& data = kData,
                      const std::string& samples = kSamples) const {
    return {.step = step,
            .samples_consumed = 2 * step,
            .updates = step,
            .seed = kSeed,
            .model = ShapeText(model_),
            .data = data,
            .samples = samples,
            .optimizer = rule_.name(),
            .layout = layout_.ToString(),
            .world_size = layout_.world_size()};
  }

  std::vector<absl::Status> Save(const std::string& directory, int64_t step, int keep = 2,
                                 const std::string& data = kData,
                                 const std::string& samples = kSamples) {
    return Save(directory, Info(step, data, samples), keep);
  }

  // `lock`, of rank 0: SaveCheckpoint's.
  std::vector<absl::Status> Save(const std::string& directory, const CheckpointInfo& info, int keep,
                                 const DirectoryLock* lock = nullptr) {
    return OnEveryRank([&](Rank& rank, Stream& stream) -> absl::Status {
      CONVENE_ASSIGN_OR_RETURN(
          const Agreement saved,
          SaveCheckpoint(directory, info, keep, rank.engine->optimizer().PiecesToWrite(),
                         *rank.world, stream, nullptr, {},
                         rank.world->rank() == 0 ? lock : nullptr));
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

  // The state as it is now, its weights and moments kept as `dtype`.
  MemorySource HandOver(int64_t step, DType dtype = DType::kFloat32, const std::string& base = "") {
    CheckpointInfo info = Info(step);
    info.base = base;
    MemorySource source(info);
    for (const Rank& rank : ranks_) {
      const auto pieces = rank.engine->optimizer().PiecesToWrite();
      REQUIRE_OK(pieces);
      for (const PieceToWrite& item : *pieces) source.Add(item, dtype);
    }
    return source;
  }

  // `source_of` gives a rank its source, or why it has none. The verdicts.
  std::vector<absl::Status> RestoreFrom(
      const std::function<absl::StatusOr<std::unique_ptr<StateSource>>(int rank)>& source_of,
      const TrainOptions& options) {
    return OnEveryRank([&](Rank& rank, Stream& stream) -> absl::Status {
      CONVENE_ASSIGN_OR_RETURN(const Agreement restored,
                               worker::RestoreFrom(source_of(rank.world->rank()), options,
                                                   {.data = kData, .samples = kSamples},
                                                   rank.engine->optimizer(), *rank.world, stream));
      return restored.verdict;
    });
  }

  // Rank 0's lock stays in `lock`.
  std::vector<absl::Status> Claim(const TrainOptions& options, const JobIdentity& job,
                                  std::optional<DirectoryLock>* lock) {
    return OnEveryRank([&](Rank& rank, Stream& stream) -> absl::Status {
      CONVENE_ASSIGN_OR_RETURN(std::optional<DirectoryLock> mine,
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
          tensor[row * columns + column] = item.data.As<float>()[i];
        }
      }
    }
    return state;
  }

  // Whether each rank's parameters are the weights of `state`.
  bool EveryRankHolds(const std::map<std::string, std::vector<float>>& state) {
    std::vector<char> holds(ranks_.size());
    RequireAllOk(OnEveryRank([&](Rank& rank, Stream& /*stream*/) -> absl::Status {
      CONVENE_ASSIGN_OR_RETURN(
          const auto bytes, CopyParameters(*rank.engine, *(*places_)[rank.world->rank()].device));
      holds[rank.world->rank()] = Holds(*rank.engine, bytes, state);
      return absl::OkStatus();
    }));
    return std::find(holds.begin(), holds.end(), false) == holds.end();
  }

 private:
  const Layout layout_;
  const ModelConfig model_;
  const UpdateRule& rule_;
  std::unique_ptr<Places> places_;
  std::vector<Rank> ranks_;
};

inline TrainOptions ResumeFrom(const std::string& directory) {
  TrainOptions options;
  options.model = Small();
  options.seed = kSeed;
  options.checkpoint_dir = directory;
  return options;
}

}  // namespace convene::worker::testing
