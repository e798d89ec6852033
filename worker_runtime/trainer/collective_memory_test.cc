// All buffers of collectives lie in the memory for collectives: a forgotten buffer would work, but
// slowly over NCCL.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/testing/forwarding_collective.h"
#include "worker_runtime/testing/places.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker {
namespace {

// One block of memory, and whether anything else was handed to a collective.
class WatchedMemory final : public Memory {
 public:
  explicit WatchedMemory(Memory& base) : base_(base) {}

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    absl::StatusOr<void*> data = base_.Allocate(bytes);
    if (data.ok()) begin_ = static_cast<char*>(*data);
    if (data.ok()) end_ = begin_ + bytes;
    return data;
  }
  void Free(void* data, size_t bytes) override { base_.Free(data, bytes); }

  void Expect(ConstElements elements, const std::string& where) {
    const auto* const data = static_cast<const char*>(elements.data);
    if (data >= begin_ && data + elements.size_bytes() <= end_) {
      ++inside;
    } else {
      outside = where;
    }
  }

  int inside = 0;
  std::string outside;  // the last that was; "" = none

 private:
  Memory& base_;
  char* begin_ = nullptr;
  char* end_ = nullptr;
};

class WatchedCollective final : public testing::ForwardingCollective {
 public:
  WatchedCollective(std::unique_ptr<Collective> base, WatchedMemory& memory)
      : ForwardingCollective(std::move(base)), memory_(memory) {}

  absl::Status Call(const CollectiveCall& call, Stream& stream) override {
    const std::string where = name() + " " + CollectiveName(call.kind);
    memory_.Expect(call.input, where);
    memory_.Expect(call.output, where);
    return ForwardingCollective::Call(call, stream);
  }
  absl::StatusOr<PendingMessage> Send(ConstElements data, int peer, Stream& stream) override {
    memory_.Expect(data, name() + " send");
    return ForwardingCollective::Send(data, peer, stream);
  }
  absl::StatusOr<PendingMessage> StartRecv(Elements data, int peer, Stream& stream) override {
    memory_.Expect(data, name() + " recv");
    return ForwardingCollective::StartRecv(data, peer, stream);
  }

 private:
  WatchedMemory& memory_;
};

// The buffers that one rank's collectives were given.
struct Given {
  int inside = 0;       // WatchedMemory's
  std::string outside;  // likewise
};

// A training step and a validation of one rank.
absl::Status Run(EngineOptions options, testing::Place& place, Given& given) {
  WatchedMemory memory(place.collective_memory != nullptr ? *place.collective_memory
                                                          : place.device->memory());
  CommunicatorSet& set = place.communicators;
  for (auto* const group : {&set.world, &set.tp, &set.cp, &set.dp, &set.dp_gather,
                            &set.dp_replicate, &set.pp, &set.embedding}) {
    // In a group of one nothing moves.
    if (*group == nullptr || (*group)->size() == 1) continue;
    *group = std::make_unique<WatchedCollective>(std::move(*group), memory);
  }
  options.collective_memory = &memory;
  auto engine = Engine::Create(options, set, *place.device);
  if (!engine.ok()) return engine.status();
  const int64_t tokens =
      int64_t{options.microbatches} * options.micro_batch_size * options.sequence_length;
  const std::vector<int32_t> text(tokens, 65);
  const TokenBatch batch{text.data(), text.data(), tokens};
  const auto step = TrainStep(**engine, batch, {.learning_rate = 1e-3, .step = 1});
  if (!step.ok()) return step.status();
  const auto validation = (*engine)->ForwardLoss(batch, options.microbatches);
  given = {.inside = memory.inside, .outside = memory.outside};
  return validation.status();
}

TEST_CASE("collectives are given nothing but the memory that is there for them", "[once]") {
  const Layout layout = GENERATE(Layout{.pp = 2, .dp = 2, .tp = 2},
                                 Layout{.pp = 3, .dp = 1, .tp = 1}, Layout{.tp = 2, .cp = 2});
  const ContextMethod method =
      layout.cp == 1
          ? ContextMethod::kRing
          : GENERATE(ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses);
  const Recompute recompute = GENERATE(Recompute::kNone, Recompute::kFull);
  const char* const schedule = GENERATE("1f1b", "zb-h1");
  INFO(layout.ToString());
  // On GPUs each value with one of the other's.
  if (testing::OnGpus() && (recompute == Recompute::kFull) == (schedule[0] == 'z')) return;
  if (!testing::HasPlacesOrSkips(layout.world_size())) return;
  const ModelConfig model = {.layers = 6,
                             .hidden_size = 16,
                             .ffn_size = 16,
                             .heads = 4,
                             .kv_heads = 4,
                             .head_size = 4,
                             .vocabulary_size = 66,
                             .tied_embeddings = true};
  const auto places = testing::Places::Make(layout);
  REQUIRE_OK(places);
  std::vector<Given> given(layout.world_size());
  const std::vector<absl::Status> ends = (*places)->OnEveryRank([&](int rank) {
    return Run({.model = model,
                .layout = layout,
                .rank = rank,
                .dtype = DType::kBFloat16,
                .reduce_dtype = DType::kBFloat16,
                .recompute = recompute,
                .sequence_parallel = layout.tp > 1,
                .micro_batch_size = 1,
                .sequence_length = 16,
                .context_method = method,
                .microbatches = 3,
                .schedule = *MakeSchedule(schedule, layout.pp, 0, 3)},
               (**places)[rank], given[rank]);
  });
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    CHECK_OK(ends[rank]);
    CHECK(given[rank].outside == "");
    CHECK(given[rank].inside > 0);
  }
}

}  // namespace
}  // namespace convene::worker
