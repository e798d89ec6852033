#include "worker_runtime/shard/sharded_optimizer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "tools/base/check.h"
#include "tools/base/rounding.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/host_queue.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/model/testing/chunks.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/optimizer/update_rule.h"
#include "worker_runtime/testing/device_array.h"
#include "worker_runtime/testing/forwarding_device.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::DeviceArray;

ModelConfig Tiny() { return NamedModel("llama-tiny").value(); }

void MakeOnes(const ParameterSlice& /*slice*/, int64_t /*first*/, absl::Span<float> values) {
  std::fill(values.begin(), values.end(), 1.0f);
}

// All gradients of a step are there, and summed.
absl::Status FinishStep(BucketStore& store) {
  for (int unit = static_cast<int>(store.placement().units.size()) - 1; unit >= 0; --unit) {
    CONVENE_RETURN_IF_ERROR(store.GradientsDone(unit, /*is_last=*/true));
  }
  return store.FinishReducing();
}

// The store and the optimizer of one rank, and their memory.
struct Sharded {
  // Buckets of at least `bucket_count_min` elements.
  Sharded(const Layout& layout, const Coordinate& coordinate, Device& rank_device,
          CommunicatorSet& set, const BucketStore::Options& store_options = {},
          const ShardedOptimizer::Options& optimizer_options = {}, int64_t bucket_count_min = 1)
      : device(rank_device),
        store(PlaceUnits(UnitsOf(Tiny(), testing::EvenChunk(Tiny(), layout.pp, coordinate.pp),
                                 layout.tp, coordinate.tp),
                         layout.dp, bucket_count_min),
              store_options,
              {.dp = *set.dp,
               .dp_gather = *set.dp_gather,
               .dp_replicate = *set.dp_replicate,
               .tp = *set.tp},
              device, arena, arena),
        optimizer(store, optimizer_options, device, arena, staging) {
    CONVENE_CHECK(arena.Build().ok() && staging.Build().ok());
    CONVENE_CHECK(optimizer.Bind().ok());
    CONVENE_CHECK(optimizer.FillWeights(MakeOnes).ok() && optimizer.PublishMasters().ok());
  }

  std::vector<float> parameters() {
    return testing::Fetch(store.parameters().As<const float>(), device);
  }
  // One step, whose gradients are neither scaled nor skipped.
  absl::Status Update(const UpdateParameters& parameters) {
    const DeviceArray<UpdateRule::Factors> factors({AdamWRule().FactorsOf(parameters)}, device);
    const DeviceArray<StepControl> control({{1.0f, SkipReason::kNone}}, device);
    CONVENE_RETURN_IF_ERROR(optimizer.Update(factors.data(), control.data()));
    return device.Synchronize(absl::Seconds(60));
  }

  Device& device;
  Arena arena{"test", device.memory()}, staging{"test", device.staging()};
  BucketStore store;
  ShardedOptimizer optimizer;
};

// One rank of a layout with dp 1: its shard is all it holds.
struct OneRank {
  OneRank(const Layout& layout, const Coordinate& coordinate,
          const ShardedOptimizer::Options& options = {},
          std::unique_ptr<Device> its_device = testing::MakeTestDevice())
      : device(std::move(its_device)),
        sharded(layout, coordinate, *device, communicators, {}, options) {}

  const std::unique_ptr<Device> device;
  CommunicatorSet communicators = SoloCommunicators();
  Sharded sharded;
  ShardedOptimizer& optimizer = sharded.optimizer;
  const Placement& placement = sharded.store.placement();
};

TEST_CASE("weight decay shrinks matrices and leaves norms alone") {
  if (!testing::HasPlacesOrSkips(1)) return;
  OneRank rank({}, {});
  REQUIRE_OK(rank.sharded.Update({.learning_rate = 0.5, .weight_decay = 0.5}));
  const std::vector<float> parameters = rank.sharded.parameters();
  for (const PlacedParameter& slice : rank.placement.parameters) {
    INFO(slice.name);
    const bool is_norm = slice.name.find("norm") != std::string::npos;
    CHECK(slice.decayed == !is_norm);
    const auto begin = parameters.begin() + slice.flat_offset;
    const float expected = is_norm ? 1.0f : 0.75f;
    CHECK(std::all_of(begin, begin + slice.count(), [=](float w) { return w == expected; }));
  }
}

TEST_CASE("the ranks' sums of squares count every parameter once") {
  if (!testing::HasPlacesOrSkips(1)) return;
  for (const Layout layout : {Layout{1, 1, 1}, Layout{1, 1, 4}, Layout{4, 1, 2}}) {
    INFO(layout.ToString());
    double sum = 0;
    for (int r = 0; r < layout.world_size(); ++r) {
      OneRank rank(layout, CoordinateOf(layout, r));
      const absl::Span<float> gradients = rank.sharded.store.gradients();
      testing::Put(std::vector<float>(gradients.size(), 2.0f), gradients.data(), *rank.device);
      REQUIRE_OK(FinishStep(rank.sharded.store));
      const DeviceArray<double> squares({0.0}, *rank.device);
      rank.optimizer.SumOwnedSquares(squares.data());
      sum += squares.Fetch()[0];
    }
    CHECK(sum == 4.0 * static_cast<double>(ParameterCount(Tiny())));
  }
}

// Gradients whose sum over two ranks is exact in bf16 too.
float GradientAt(int64_t place, int rank) { return static_cast<float>(place % 7 * (rank + 1)); }

// One of two data-parallel ranks, with a bucket for each unit.
struct OneOfTwo {
  OneOfTwo(const BucketStore::Options& options, testing::Place& place)
      : sharded({.dp = 2}, {.dp = place.communicators.dp->rank()}, *place.device,
                place.communicators, options) {
    std::vector<float> own;
    for (size_t i = 0; i < sharded.store.gradients().size(); ++i) {
      own.push_back(GradientAt(i, place.communicators.dp->rank()));
    }
    testing::Put(own, sharded.store.gradients().data(), sharded.device);
  }

  std::vector<float> gradients() {
    return testing::Fetch(sharded.store.gradients(), sharded.device);
  }

  // Returns its errors: Catch2's assertions belong to the test's own thread.
  absl::Status Step(int first_done) {
    BucketStore& store = sharded.store;
    const int units = static_cast<int>(store.placement().units.size());
    for (int unit = units - 1; unit >= 0; --unit) {
      CONVENE_RETURN_IF_ERROR(store.GradientsDone(unit, /*is_last=*/false));
    }
    before = gradients();
    for (int unit = units - 1; unit >= first_done; --unit) {
      CONVENE_RETURN_IF_ERROR(store.GradientsDone(unit, /*is_last=*/true));
    }
    CONVENE_RETURN_IF_ERROR(sharded.device.Synchronize(absl::Seconds(60)));
    after_first = gradients();
    CONVENE_RETURN_IF_ERROR(store.FinishReducing());
    after_all = gradients();
    const DeviceArray<double> sum({0.0}, sharded.device);
    sharded.optimizer.SumOwnedSquares(sum.data());
    squares = sum.Fetch()[0];
    return sharded.Update({.learning_rate = 0.5});
  }

  Sharded sharded;
  std::vector<float> before;       // when a pass was done, but not the last one
  std::vector<float> after_first;  // when the first units' reductions had been queued
  std::vector<float> after_all;
  double squares = 0;  // of this rank's parts, after all
};

// The parts' sums, one after the other: what SumOwnedSquares gives, whenever each was made.
double SquaresInOrder(const BucketStore& store, const std::vector<float>& gradients) {
  const std::vector<uint8_t> flags =
      MakeParameterFlags(store.placement(), store.shard(), /*speaks_for_shard=*/true);
  double squares = 0;
  for (const ShardPart& part : store.shard().parts) {
    Stream stream = Stream::Cpu();
    SumOfSquares(part.count, gradients.data() + part.flat_begin,
                 flags.data() + part.shard_begin / kFlagBlock, &squares, {}, stream);
  }
  return squares;
}

template <typename T>
void CheckStepOfTwo(DType reduce_dtype) {
  const auto places = testing::Places::Make({.dp = 2});
  REQUIRE_OK(places);
  constexpr int kFirstDone = 4;
  std::vector<std::unique_ptr<OneOfTwo>> ranks(2);
  const std::vector<absl::Status> statuses = (*places)->OnEveryRank([&](int rank) {
    ranks[rank] = std::make_unique<OneOfTwo>(
        BucketStore::Options{.dtype = kDTypeOf<T>, .reduce_dtype = reduce_dtype}, (**places)[rank]);
    return ranks[rank]->Step(kFirstDone);
  });
  const Placement& placement = ranks[0]->sharded.store.placement();
  REQUIRE(placement.buckets.size() == placement.units.size());
  int64_t wrong_before = 0, wrong_first = 0, wrong_sums = 0, wrong_parameters = 0;
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE_OK(statuses[rank]);
    OneOfTwo& held = *ranks[rank];
    for (const ShardPart& part : held.sharded.store.shard().parts) {
      const bool is_early = part.bucket.begin >= placement.buckets[kFirstDone].begin;
      for (int64_t i = part.flat_begin; i < part.flat_begin + part.count; ++i) {
        const float sum = GradientAt(i, 0) + GradientAt(i, 1);
        wrong_before += held.before[i] != GradientAt(i, rank);
        wrong_first += held.after_first[i] != (is_early ? sum : GradientAt(i, rank));
        wrong_sums += held.after_all[i] != sum;
      }
    }
    const double squares = SquaresInOrder(held.sharded.store, held.after_all);
    if (held.sharded.device.kind() == DeviceKind::kCpu) {
      CHECK(held.squares == squares);
    } else {
      CHECK(held.squares == Approx(squares).epsilon(1e-12));
    }
    // Adam's first step moves by the learning rate what has a gradient, whoever updated it.
    const std::vector<T> parameters =
        testing::Fetch(held.sharded.store.parameters().template As<const T>(), held.sharded.device);
    for (const Placement::Tensor& tensor : placement.tensors) {
      for (int64_t i = tensor.begin; i < tensor.begin + tensor.count; ++i) {
        const float expected = i % 7 == 0 ? 1.0f : 0.5f;
        wrong_parameters += std::abs(static_cast<float>(parameters[i]) - expected) > 1e-2f;
      }
    }
  }
  CHECK(wrong_before == 0);
  CHECK(wrong_first == 0);
  CHECK(wrong_sums == 0);
  CHECK(wrong_parameters == 0);
}

TEST_CASE("buckets are reduced when all of their gradients are final, and gathered when updated") {
  if (!testing::HasPlacesOrSkips(2)) return;
  CheckStepOfTwo<float>(DType::kFloat32);
  CheckStepOfTwo<BFloat16>(DType::kFloat32);
  CheckStepOfTwo<BFloat16>(DType::kBFloat16);
}

TEST_CASE("the first gradient of a step overwrites, the later ones add, also where units share") {
  ModelConfig tied = Tiny();
  tied.tied_embeddings = true;
  const std::unique_ptr<Device> device = Device::Cpu();
  const CommunicatorSet set = SoloCommunicators();
  Arena arena{"test"};
  BucketStore store(PlaceUnits(UnitsOf(tied, testing::WholeModel(tied), 1, 0), 1, 1), {},
                    {.dp = *set.dp,
                     .dp_gather = *set.dp_gather,
                     .dp_replicate = *set.dp_replicate,
                     .tp = *set.tp},
                    *device, arena, arena);
  REQUIRE_OK(arena.Build());
  const int head = static_cast<int>(store.placement().units.size()) - 1;
  // A captured pass asks once for all steps: no answer depends on an earlier call.
  for (int call = 0; call < 2; ++call) {
    for (const bool is_first : {true, false}) {
      CHECK(store.Gradient(1, kQkv, is_first).adds == !is_first);
      CHECK(store.Gradient(2, kDown, is_first).adds == !is_first);
      CHECK(store.Gradient(head, kHead, is_first).adds == !is_first);
      CHECK(store.Gradient(0, kEmbeddingTable, is_first).adds);
    }
  }
  CHECK(store.Gradient(0, kEmbeddingTable, true).data == store.Gradient(head, kHead, true).data);
}

TEST_CASE("what was written into idle gradients between tensors is no gradient") {
  if (!testing::HasPlacesOrSkips(1)) return;
  ModelConfig odd = Tiny();
  odd.hidden_size = 15;
  odd.ffn_size = 9;
  const std::unique_ptr<Device> device = testing::MakeTestDevice();
  const CommunicatorSet set = SoloCommunicators();
  for (const bool one_pass : {false, true}) {
    Arena arena{"test", device->memory()};
    BucketStore store(PlaceUnits(UnitsOf(odd, testing::WholeModel(odd), 1, 0), 1, 1),
                      {.one_pass = one_pass},
                      {.dp = *set.dp,
                       .dp_gather = *set.dp_gather,
                       .dp_replicate = *set.dp_replicate,
                       .tp = *set.tp},
                      *device, arena, arena);
    REQUIRE_OK(arena.Build());
    const int head = static_cast<int>(store.placement().units.size()) - 1;
    const ArenaBlock<float> idle = store.IdleGradients(head);
    CHECK((idle.size() > 0) == one_pass);
    const absl::Span<float> gradients = store.gradients();
    const float kNan = std::numeric_limits<float>::quiet_NaN();
    testing::Put(std::vector<float>(idle.size(), kNan), idle.span().data(), *device);
    for (const Placement::Tensor& tensor : store.placement().tensors) {
      testing::Put(std::vector<float>(tensor.count, 1.0f), gradients.data() + tensor.begin,
                   *device);
    }
    REQUIRE_OK(FinishStep(store));
    const std::vector<float> all = testing::Fetch(gradients, *device);
    CHECK(std::accumulate(all.begin(), all.end(), 0.0) == static_cast<double>(ParameterCount(odd)));
  }
}

TEST_CASE("gradients on the wire take the memory of one bucket") {
  const Layout layout{.dp = 2};
  const CommunicatorSet set = PlannedCommunicators(layout, 0);
  const std::unique_ptr<Device> device = Device::Cpu();
  const auto bytes = [&](int64_t bucket_count_min, DType reduce_dtype) {
    Arena arena{"test"};
    const BucketStore store(
        PlaceUnits(UnitsOf(Tiny(), testing::EvenChunk(Tiny(), layout.pp, 0), layout.tp, 0), 2,
                   bucket_count_min),
        {.dtype = DType::kBFloat16, .reduce_dtype = reduce_dtype},
        {.dp = *set.dp,
         .dp_gather = *set.dp_gather,
         .dp_replicate = *set.dp_replicate,
         .tp = *set.tp},
        *device, arena, arena);
    return arena.total_bytes();
  };
  const auto wire = [&](int64_t bucket_count_min) {
    return bytes(bucket_count_min, DType::kBFloat16) - bytes(bucket_count_min, DType::kFloat32);
  };
  CHECK(wire(1) * 8 < wire(int64_t{1} << 40));
}

void Fill(const std::vector<PieceToRead>& pieces, float value) {
  for (const PieceToRead& piece : pieces) {
    const absl::Span<float> data = piece.data.As<float>();
    std::fill(data.begin(), data.end(), value);
  }
}

TEST_CASE(
    "checkpoints pass through a copy that was planned, and change nothing before they are read") {
  if (!testing::HasPlacesOrSkips(1)) return;
  OneRank rank({}, {}, {.copies_for_checkpoints = true});
  const ConstElements parameters = rank.sharded.store.parameters();
  CHECK(rank.sharded.staging.total_bytes() == sizeof(float) * 3 * parameters.count);
  const auto is_copy = [&](const float* data) {
    const absl::Span<const float> held = parameters.As<const float>();
    return data < held.begin() || data >= held.end();
  };
  const auto written = rank.optimizer.PiecesToWrite();
  REQUIRE_OK(written);
  REQUIRE(written->size() == 3 * rank.placement.parameters.size());
  for (const PieceToWrite& piece : *written) {
    CHECK(is_copy(piece.data.As<float>().data()));
    // Weights are 1, moments 0.
    CHECK(piece.data.As<float>()[0] ==
          (piece.piece.name.find("moment") == std::string::npos ? 1.0f : 0.0f));
  }
  const auto read = rank.optimizer.PiecesToRead();
  REQUIRE_OK(read);
  Fill(*read, 3.0f);
  const PlacedParameter& last = rank.placement.parameters.back();
  CHECK(rank.sharded.parameters()[last.flat_offset] == 1.0f);
  REQUIRE_OK(rank.optimizer.FinishRead());
  CHECK(rank.sharded.parameters()[last.flat_offset] == 3.0f);
  const auto again = rank.optimizer.PiecesToWrite();
  REQUIRE_OK(again);
  for (const PieceToWrite& piece : *again) CHECK(piece.data.As<float>().back() == 3.0f);
}

TEST_CASE("Muon keeps one number of a matrix' element, and two of each other element") {
  if (!testing::HasPlacesOrSkips(1)) return;
  OneRank rank({}, {}, {.rule = &MuonRule(), .copies_for_checkpoints = true});
  int64_t matrices = 0;
  size_t tensors = 0;
  for (const PlacedParameter& slice : rank.placement.parameters) {
    if (slice.is_matrix()) matrices += RoundUp(slice.count(), kParameterAlignment);
    tensors += slice.is_matrix() ? 2 : 3;
  }
  const int64_t all = rank.sharded.store.parameters().count;
  CHECK(rank.sharded.staging.total_bytes() == sizeof(float) * (3 * all - matrices));
  auto read = rank.optimizer.PiecesToRead();
  REQUIRE_OK(read);
  CHECK(read->size() == tensors);
  for (size_t i = 0; i < read->size(); ++i) {
    Fill({(*read)[i]}, static_cast<float>(i));
  }
  REQUIRE_OK(rank.optimizer.FinishRead());
  // Each piece comes back from the state as it was: no two pieces share a place.
  const auto written = rank.optimizer.PiecesToWrite();
  REQUIRE_OK(written);
  REQUIRE(written->size() == tensors);
  for (size_t i = 0; i < written->size(); ++i) {
    const absl::Span<const float> data = (*written)[i].data.As<float>();
    INFO((*written)[i].piece.name);
    CHECK(std::all_of(data.begin(), data.end(), [&](float x) { return x == i; }));
  }
}

TEST_CASE("SGD without momentum keeps nothing") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const OneRank with({}, {}, {.rule = &SgdRule()});
  OneRank without({}, {}, {.rule = &PlainSgdRule()});
  const size_t bytes = sizeof(float) * without.sharded.store.parameters().count;
  CHECK(with.sharded.arena.total_bytes() - without.sharded.arena.total_bytes() == bytes);
}

TEST_CASE("an offloaded state lies in host memory, where checkpoints are read and written") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const bool copies = GENERATE(false, true);
  OneRank rank({}, {}, {.copies_for_checkpoints = copies, .offloads = true});
  const OneRank kept({}, {});
  const size_t bytes = sizeof(float) * rank.sharded.store.parameters().count;
  // Both moments; masters and gradients too, which a CPU that keeps all has no second time.
  CHECK(kept.sharded.arena.total_bytes() - rank.sharded.arena.total_bytes() == 2 * bytes);
  const size_t staged = rank.sharded.staging.total_bytes();
  const size_t arrays = copies ? 7 : 4;
  CHECK(staged >= arrays * bytes);
  CHECK(staged < arrays * bytes + rank.sharded.store.parameters().count / kFlagBlock + 256);
  const auto written = rank.optimizer.PiecesToWrite();
  REQUIRE_OK(written);
  for (const PieceToWrite& piece : *written) {
    CHECK(piece.data.As<float>()[0] ==
          (piece.piece.name.find("moment") == std::string::npos ? 1.0f : 0.0f));
  }
  const auto read = rank.optimizer.PiecesToRead();
  REQUIRE_OK(read);
  Fill(*read, 3.0f);
  const PlacedParameter& last = rank.placement.parameters.back();
  CHECK(rank.sharded.parameters()[last.flat_offset] == 1.0f);
  // A copy is not what is read into.
  if (copies) CHECK(written->back().data.As<float>()[0] != 3.0f);
  REQUIRE_OK(rank.optimizer.FinishRead());
  CHECK(rank.sharded.parameters()[last.flat_offset] == 3.0f);
}

// The weight becomes the last gradient, and one number an element is kept: how often.
class Follow final : public UpdateRule {
 public:
  const char* name() const override { return "follow"; }
  absl::Span<const char* const> states() const override {
    static constexpr const char* kStates[] = {"steps"};
    return kStates;
  }
  Factors FactorsOf(const UpdateParameters& /*parameters*/) const override { return {}; }
  void Update(const Piece& piece, Stream& /*stream*/) const override {
    std::copy_n(piece.gradients, piece.count, piece.master);
    for (int64_t i = 0; i < piece.count; ++i) piece.states[0][i] += 1;
  }
};

TEST_CASE("another rule brings its own state, and nothing else changes") {
  const Follow rule;
  OneRank rank({}, {}, {.rule = &rule}, Device::Cpu());
  const absl::Span<float> gradients = rank.sharded.store.gradients();
  std::fill(gradients.begin(), gradients.end(), 3.0f);
  const UpdateRule::Factors factors = {};
  const StepControl control = {1.0f, SkipReason::kNone};
  REQUIRE_OK(rank.optimizer.Update(&factors, &control));
  const auto written = rank.optimizer.PiecesToWrite();
  REQUIRE_OK(written);
  CHECK(written->size() == 2 * rank.placement.parameters.size());
  for (const PieceToWrite& piece : *written) {
    const bool is_state = absl::StartsWith(piece.piece.name, "optimizer.steps/");
    CHECK(piece.data.As<float>()[0] == (is_state ? 1.0f : 3.0f));
  }
}

// The host's queue stands behind the first bucket until the test lets it go on.
class PausedDevice final : public testing::ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  void Record(Event& event, Stream& stream) override {
    ForwardingDevice::Record(event, stream);
    if (stream.host_queue() == nullptr || std::exchange(is_paused_, true)) return;
    RunIn(stream, [this] { goes_on_.wait(false); });
  }
  void GoOn() {
    goes_on_ = true;
    goes_on_.notify_all();
  }

 private:
  bool is_paused_ = false;
  std::atomic<bool> goes_on_ = false;
};

TEST_CASE("while the host updates, a unit waits for its own bucket alone") {
  if (!testing::HasPlacesOrSkips(1)) return;
  const std::unique_ptr<Device> plain = testing::MakeTestDevice();
  PausedDevice device(*plain);
  const CommunicatorSet set = SoloCommunicators();
  Arena arena{"test", device.memory()}, staging{"test", device.staging()};
  BucketStore store(PlaceUnits(UnitsOf(Tiny(), testing::WholeModel(Tiny()), 1, 0), 1, 1), {},
                    {.dp = *set.dp,
                     .dp_gather = *set.dp_gather,
                     .dp_replicate = *set.dp_replicate,
                     .tp = *set.tp},
                    device, arena, arena);
  ShardedOptimizer optimizer(store, {.offloads = true, .timeout = absl::Seconds(20)}, device, arena,
                             staging);
  REQUIRE_OK(arena.Build());
  REQUIRE_OK(staging.Build());
  REQUIRE_OK(optimizer.Bind());
  REQUIRE_OK(optimizer.FillWeights(MakeOnes));
  REQUIRE_OK(optimizer.PublishMasters());
  const auto end = absl::MakeCleanup([&] {
    device.GoOn();
    store.FinishUpdate().IgnoreError();
  });
  const auto has_moved = [&](const ShardPart& part) {
    const std::vector<float> values = testing::Fetch(store.ParametersOf(part).As<float>(), device);
    return std::all_of(values.begin(), values.end(), [](float w) { return w < 0.6f; });
  };
  const std::vector<ShardPart>& parts = store.shard().parts;
  REQUIRE(parts.size() > 2);
  testing::Put(std::vector<float>(store.gradients().size(), 2.0f), store.gradients().data(),
               device);
  REQUIRE_OK(optimizer.CopyGradients());
  REQUIRE_OK(device.Synchronize(absl::Seconds(60)));
  REQUIRE_OK(optimizer.UpdateOnHost(AdamWRule().FactorsOf({.learning_rate = 0.5}),
                                    {1.0f, SkipReason::kNone}));
  REQUIRE_OK(store.Acquire(0));
  CHECK(has_moved(parts[0]));
  CHECK(!has_moved(parts[1]));
  REQUIRE_OK(store.Prefetch(1));
  CHECK(!has_moved(parts[1]));
  device.GoOn();
  REQUIRE_OK(store.Acquire(1));
  CHECK(has_moved(parts[1]));
  CHECK(!has_moved(parts.back()));
  REQUIRE_OK(store.FinishUpdate());
  CHECK(has_moved(parts.back()));
}

TEST_CASE("a GPU's state cannot be saved without the copy") {
  class PlayedGpu final : public testing::ForwardingDevice {
   public:
    using ForwardingDevice::ForwardingDevice;
    DeviceKind kind() const override { return kind_; }
    DeviceKind kind_ = DeviceKind::kCpu;
  };
  const std::unique_ptr<Device> cpu = Device::Cpu();
  PlayedGpu device(*cpu);
  const CommunicatorSet set = PlannedCommunicators({}, 0);
  Arena arena{"test"};
  BucketStore store(PlaceUnits(UnitsOf(Tiny(), testing::WholeModel(Tiny()), 1, 0), 1, 1), {},
                    {.dp = *set.dp,
                     .dp_gather = *set.dp_gather,
                     .dp_replicate = *set.dp_replicate,
                     .tp = *set.tp},
                    device, arena, arena);
  ShardedOptimizer optimizer(store, {}, device, arena, arena);
  device.kind_ = DeviceKind::kCuda;
  CHECK_STATUS(optimizer.PiecesToWrite(), absl::StatusCode::kFailedPrecondition, "was planned");
  CHECK_STATUS(optimizer.PiecesToRead(), absl::StatusCode::kFailedPrecondition, "was planned");
}

TEST_CASE("owners of whole matrices have about the same to do, and each matrix one owner") {
  // Taken in turn, the first owner would have 8 + 1 + 1 + 1 + 1.
  std::vector<double> loads(2);
  std::vector<int> seen(9);
  const std::vector<double> costs = {1, 1, 8, 1, 1, 1, 1, 1, 1};
  for (const MatrixWave& wave : WavesOf(costs, 1, 2)) {
    REQUIRE(wave.matrices.size() == 1);
    loads[wave.owner] += costs[wave.matrices[0]];
    ++seen[wave.matrices[0]];
  }
  CHECK(loads == std::vector<double>{8, 8});
  CHECK(seen == std::vector<int>(9, 1));
  const std::vector<MatrixWave> waves = WavesOf({3, 9, 4, 9, 2}, 2, 3);
  REQUIRE(waves.size() == 3);
  CHECK(waves[0].matrices == std::vector<int>{1, 3});
  CHECK(waves[1].matrices == std::vector<int>{2, 0});
  CHECK(waves[2].matrices == std::vector<int>{4});
  CHECK((waves[0].owner != waves[1].owner && waves[1].owner != waves[2].owner));
  CHECK(WavesOf({}, 2, 3).empty());
}

}  // namespace
}  // namespace convene::worker
