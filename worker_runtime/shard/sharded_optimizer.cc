#include "worker_runtime/shard/sharded_optimizer.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/router_bias.h"

namespace convene::worker {
namespace {

constexpr char kCopyName[] = "copy for checkpoints";

TensorPiece PieceOf(const ParameterSlice& slice, const ShardSegment& segment,
                    const std::string& prefix) {
  return {.name = prefix + slice.name,
          .global_shape = {slice.global_shape[0], slice.global_shape[1]},
          .local_box = {.offset = {slice.offset[0], slice.offset[1]},
                        .extent = {slice.extent[0], slice.extent[1]}},
          .flat_begin = segment.slice_begin,
          .flat_count = segment.count};
}

size_t LargestWorkspaceBytes(const BucketStore& store, DeviceKind device) {
  size_t largest = 0;
  for (const ShardPart& part : store.shard().parts) {
    largest = std::max(largest, store.is_binned() ? ExactSquaresWorkspaceBytes(part.count, device)
                                                  : SumOfSquaresWorkspaceBytes(part.count, device));
  }
  return largest;
}

// The pieces of routers' biases.
std::vector<ShardSegment> BiasesOf(const Placement& placement, const FlatShard& shard) {
  std::vector<ShardSegment> biases;
  absl::c_copy_if(shard.segments, std::back_inserter(biases), [&](const ShardSegment& segment) {
    return placement.parameters[segment.parameter].balances;
  });
  return biases;
}

// Parameters in bf16 that the host updates, and that lie on the device: what is no shard does.
int64_t HostWeights(const BucketStore& store, const ShardedOptimizer::Options& options) {
  if (!options.offloads || store.dtype() == DType::kFloat32) return 0;
  return options.offloads_parameters ? store.shard().parts.front().count : store.shard().count;
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(BucketStore& store, const Options& options, Device& device,
                                   Arena& arena, Arena& staging)
    : store_(store),
      options_(options),
      device_(device),
      shard_(store.shard()),
      whole_matrices_(store, options.rule->matrices(), device, arena),
      runs_(MatrixRuns(store.placement(), shard_)),
      biases_(BiasesOf(store.placement(), shard_)),
      master_((options.offloads ? staging : arena)
                  .Declare<float>("optimizer/master weights", has_masters() ? shard_.count : 0)),
      states_(DeclareStates(nullptr, options.offloads ? staging : arena)),
      flags_(arena.Declare<uint8_t>("optimizer/flags", shard_.count / kFlagBlock)),
      workspace_(
          arena.Declare<char>("optimizer/workspace", LargestWorkspaceBytes(store, device.kind()))),
      squares_(arena.Declare<double>("optimizer/squares",
                                     store.is_binned() ? kExactDigits : shard_.parts.size())),
      master_copy_(
          staging.Declare<float>(kCopyName, options.copies_for_checkpoints ? shard_.count : 0)),
      state_copies_(options.copies_for_checkpoints ? DeclareStates(kCopyName, staging)
                                                   : std::vector<ArenaBlock<float>>()),
      host_flags_(staging.Declare<uint8_t>("optimizer/flags",
                                           options.offloads ? shard_.count / kFlagBlock : 0)),
      host_gradients_(
          staging.Declare<float>("optimizer/gradients", options.offloads ? shard_.count : 0)),
      host_weights_(
          staging.Declare<BFloat16>("optimizer/new weights", HostWeights(store, options))) {
  store.SetWhenReduced([this](const ShardPart& part, Stream& stream) { SumSquares(part, stream); });
  if (!options.offloads) return;
  for (size_t i = 0; i < shard_.parts.size(); ++i) updated_.push_back(device.MakeEvent());
}

int64_t ShardedOptimizer::PlaceIn(size_t state, int64_t shard_begin) const {
  const MatrixRule* const matrices = options_.rule->matrices();
  const bool is_whole = matrices == nullptr || state < matrices->states();
  return is_whole ? shard_begin : RestBefore(runs_, shard_begin);
}

std::vector<ArenaBlock<float>> ShardedOptimizer::DeclareStates(const char* name,
                                                               Arena& arena) const {
  std::vector<ArenaBlock<float>> states;
  for (const char* const state : options_.rule->states()) {
    states.push_back(
        arena.Declare<float>(name != nullptr ? name : absl::StrCat("optimizer/", state),
                             PlaceIn(states.size(), shard_.count)));
  }
  return states;
}

size_t ShardedOptimizer::StateBytes() const {
  size_t count = shard_.count;
  for (const ArenaBlock<float>& state : states_) count += state.size();
  return count * sizeof(float);
}

absl::Status ShardedOptimizer::Bind() {
  const std::vector<uint8_t> flags =
      MakeParameterFlags(store_.placement(), shard_, store_.speaks_for_shard());
  if (options_.offloads) absl::c_copy(flags, At(host_flags_));
  whole_matrices_.Bind();
  device_.Copy(flags.data(), At(flags_), flags.size(), device_.compute());
  return device_.Synchronize(options_.timeout);
}

float* ShardedOptimizer::MasterOf(const ShardPart& part) const {
  return has_masters() ? At(master_) + part.shard_begin
                       : store_.ParametersOf(part).As<float>().data();
}

absl::Status ShardedOptimizer::FillWeights(MakeWeights make) {
  CONVENE_RETURN_IF_ERROR(store_.FinishUpdate());
  CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
  std::vector<float> values;
  for (const ShardSegment& segment : shard_.segments) {
    const ParameterSlice& slice = store_.placement().parameters[segment.parameter];
    const ShardPart& part = shard_.parts[segment.part];
    float* const master = MasterOf(part) + segment.flat_begin - part.flat_begin;
    for (int64_t first = 0; first < segment.count; first += kPieceOfWeights) {
      const int64_t count = std::min(kPieceOfWeights, segment.count - first);
      if (options_.offloads) {
        make(slice, segment.slice_begin + first, absl::MakeSpan(master + first, count));
        continue;
      }
      values.resize(count);
      make(slice, segment.slice_begin + first, absl::MakeSpan(values));
      device_.Copy(values.data(), master + first, count * sizeof(float), device_.compute());
    }
  }
  return absl::OkStatus();
}

// Exact sums of all parts go into one: they come one after the other, in communication() or behind
// all that it holds.
void ShardedOptimizer::SumSquares(const ShardPart& part, Stream& stream) {
  const float* const gradients = store_.GradientsOf(part).data();
  const uint8_t* const flags = At(flags_) + part.shard_begin / kFlagBlock;
  const Workspace workspace = {At(workspace_), workspace_.size()};
  if (store_.is_binned()) {
    return ExactSquares(part.count, gradients, flags, At(squares_), workspace, stream);
  }
  double* const sum = At(squares_) + (&part - shard_.parts.data());
  device_.Zero(sum, sizeof(double), stream);
  SumOfSquares(part.count, gradients, flags, sum, workspace, stream);
}

void ShardedOptimizer::SumOwnedSquares(double* sum) {
  for (size_t i = 0; i < shard_.parts.size(); ++i) {
    if (!store_.IsFinalWhenReduced(i)) SumSquares(shard_.parts[i], device_.compute());
  }
  if (store_.is_binned()) {
    device_.Copy(At(squares_), sum, squares_.size() * sizeof(double), device_.compute());
    return device_.Zero(At(squares_), squares_.size() * sizeof(double), device_.compute());
  }
  AddInOrder(static_cast<int64_t>(squares_.size()), At(squares_), sum, device_.compute());
}

float* ShardedOptimizer::GradientsOf(const ShardPart& part) const {
  return options_.offloads ? At(host_gradients_) + part.shard_begin
                           : store_.GradientsOf(part).data();
}

// On the host fp32 weights are the masters, as far as the parameters lie elsewhere.
Elements ShardedOptimizer::WeightsOf(const ShardPart& part) const {
  if (!options_.offloads || (options_.offloads_parameters && store_.HoldsShardOf(part))) {
    return store_.ParametersOf(part);
  }
  if (store_.dtype() == DType::kFloat32) return absl::MakeSpan(MasterOf(part), part.count);
  return host_weights_.span().subspan(part.shard_begin, part.count);
}

absl::Status ShardedOptimizer::Publish(size_t part, const Stream& stream) {
  return options_.offloads ? store_.Load(part, WeightsOf(shard_.parts[part]))
                           : store_.Updated(part, stream);
}

void ShardedOptimizer::Round(const ShardPart& part, Stream& stream) {
  float* const master = MasterOf(part);
  const Elements weights = WeightsOf(part);
  if (weights.dtype == DType::kBFloat16) {
    ToBFloat16(part.count, master, weights.As<BFloat16>().data(), stream);
  } else if (weights.data != master) {
    Copy(part.count, master, weights.As<float>().data(), stream);
  }
}

void ShardedOptimizer::WithPiece(const ShardPart& part, int64_t begin, int64_t count,
                                 const UpdateRule::Factors* factors, const StepControl* control,
                                 absl::FunctionRef<void(const UpdateRule::Piece&)> call) {
  const int64_t shard_begin = part.shard_begin + begin;
  absl::InlinedVector<float*, 4> states;
  for (size_t i = 0; i < states_.size(); ++i) {
    states.push_back(At(states_[i]) + PlaceIn(i, shard_begin));
  }
  float* const master = MasterOf(part) + begin;
  const bool is_float = store_.dtype() == DType::kFloat32;
  call({.count = count,
        .factors = factors,
        .control = control,
        .flags = At(options_.offloads ? host_flags_ : flags_) + shard_begin / kFlagBlock,
        .gradients = GradientsOf(part) + begin,
        .master = master,
        .weights = is_float ? Elements(absl::MakeSpan(master, count))
                            : WeightsOf(part).Slice(begin, count),
        .states = states});
}

void ShardedOptimizer::StepBiases(const ShardPart& part, const StepControl* control,
                                  Stream& stream) {
  for (const ShardSegment& segment : biases_) {
    if (&shard_.parts[segment.part] != &part) continue;
    const int64_t begin = segment.flat_begin - part.flat_begin;
    RouterBiasStep(segment.count, options_.router_bias_rate, control, GradientsOf(part) + begin,
                   MasterOf(part) + begin, stream);
  }
}

void ShardedOptimizer::UpdatePart(const ShardPart& part, const UpdateRule::Factors* factors,
                                  const StepControl* control, Stream& stream) {
  StepBiases(part, control, stream);
  WithPiece(part, 0, part.count, factors, control,
            [&](const UpdateRule::Piece& piece) { options_.rule->Update(piece, stream); });
  if (store_.dtype() == DType::kFloat32) Round(part, stream);
}

// The matrices' collectives are in compute(), so no gather may be on its way beside them: two ranks
// could begin the two in different orders, and wait for each other.
absl::Status ShardedOptimizer::UpdateMatrices(const UpdateRule::Factors* factors,
                                              const StepControl* control) {
  const MatrixRule& rule = *options_.rule->matrices();
  Stream& stream = device_.compute();
  const auto for_runs = [&](const auto& call) {
    for (const MatrixRun& run : runs_) {
      const ShardPart& part = shard_.parts[run.part];
      WithPiece(part, run.shard_begin - part.shard_begin, run.count, factors, control,
                [&](const UpdateRule::Piece& piece) { call(run, piece); });
    }
  };
  for (const ShardPart& part : shard_.parts) StepBiases(part, control, stream);
  for_runs([&](const MatrixRun& run, const UpdateRule::Piece& piece) {
    run.of_matrices ? rule.Direct(piece, stream) : options_.rule->Update(piece, stream);
  });
  for (size_t i = 0; i < shard_.parts.size(); ++i) {
    CONVENE_RETURN_IF_ERROR(whole_matrices_.Transform(i));
  }
  for_runs([&](const MatrixRun& run, const UpdateRule::Piece& piece) {
    if (run.of_matrices) rule.Descend(piece, stream);
  });
  return absl::OkStatus();
}

absl::Status ShardedOptimizer::Update(const UpdateRule::Factors* factors,
                                      const StepControl* control) {
  const bool has_matrices = options_.rule->matrices() != nullptr;
  if (has_matrices) CONVENE_RETURN_IF_ERROR(UpdateMatrices(factors, control));
  Stream& stream = has_matrices ? device_.compute() : store_.UpdateStream();
  for (size_t i = 0; i < shard_.parts.size(); ++i) {
    if (!has_matrices) UpdatePart(shard_.parts[i], factors, control, stream);
    CONVENE_RETURN_IF_ERROR(Publish(i, stream));
  }
  return store_.CopyToOtherEnd();
}

absl::Status ShardedOptimizer::CopyGradients() {
  CONVENE_RETURN_IF_ERROR(store_.FinishUpdate());
  for (const ShardPart& part : shard_.parts) {
    device_.Copy(store_.GradientsOf(part).data(), At(host_gradients_) + part.shard_begin,
                 part.count * sizeof(float), device_.compute());
  }
  return absl::OkStatus();
}

absl::Status ShardedOptimizer::UpdateOnHost(const UpdateRule::Factors& factors,
                                            const StepControl& control) {
  CONVENE_RETURN_IF_ERROR(store_.FinishUpdate());
  host_factors_ = factors;
  host_control_ = control;
  for (size_t i = 0; i < shard_.parts.size(); ++i) {
    UpdatePart(shard_.parts[i], &host_factors_, &host_control_, device_.host());
    device_.Record(*updated_[i], device_.host());
  }
  store_.BeginUpdate([this](size_t part) { return PublishUpdated(part); });
  return options_.overlaps ? absl::OkStatus() : store_.FinishUpdate();
}

absl::Status ShardedOptimizer::PublishUpdated(size_t part) {
  CONVENE_RETURN_IF_ERROR(device_.Wait(*updated_[part], options_.timeout));
  CONVENE_RETURN_IF_ERROR(Publish(part, device_.host()));
  return part + 1 < shard_.parts.size() ? absl::OkStatus() : store_.CopyToOtherEnd();
}

// Queues all copies at once, without a wait between them. An offloaded state is copied on return.
void ShardedOptimizer::CopyState(CopyTo direction) {
  const auto copy = [&](float* state, float* copy, int64_t count) {
    if (direction == CopyTo::kDevice) std::swap(state, copy);
    if (options_.offloads) {
      std::copy_n(state, count, copy);
    } else {
      device_.Copy(state, copy, count * sizeof(float), device_.compute());
    }
  };
  for (const ShardPart& part : shard_.parts) {
    copy(MasterOf(part), At(master_copy_) + part.shard_begin, part.count);
  }
  for (size_t i = 0; i < states_.size(); ++i) {
    copy(At(states_[i]), At(state_copies_[i]), static_cast<int64_t>(states_[i].size()));
  }
}

absl::Status ShardedOptimizer::AwaitState(bool fills_it) {
  if (options_.offloads) {
    CONVENE_RETURN_IF_ERROR(device_.Wait(*updated_.back(), options_.timeout));
  }
  // To be read, an offloaded state needs the host's update alone: no gather, so no other rank.
  if (options_.offloads && !fills_it) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(store_.FinishUpdate());
  store_.AwaitCommunication();
  return absl::OkStatus();
}

absl::StatusOr<ShardedOptimizer::HostState> ShardedOptimizer::State(bool copies_it) {
  CONVENE_RETURN_IF_ERROR(AwaitState(/*fills_it=*/!copies_it));
  if (reads_by_copy() || (options_.copies_for_checkpoints && copies_it)) {
    if (copies_it) CopyState(CopyTo::kHost);
    if (!options_.offloads) CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
    return HostState{At(master_copy_), &state_copies_};
  }
  if (device_.kind() != DeviceKind::kCpu && !options_.offloads) {
    return absl::FailedPreconditionError(
        "no host memory was planned for checkpoints (EngineOptions::copies_for_checkpoints)");
  }
  // Copies of an update may still read what the caller is about to fill.
  if (options_.offloads && !copies_it) {
    CONVENE_RETURN_IF_ERROR(device_.Synchronize(options_.timeout));
  }
  return HostState{At(master_), &states_};
}

template <typename Piece>
std::vector<Piece> ShardedOptimizer::Pieces(const HostState& state, bool owned_only) const {
  std::vector<Piece> pieces;
  for (const ShardSegment& segment : shard_.segments) {
    const ParameterSlice& slice = store_.placement().parameters[segment.parameter];
    if (owned_only && !slice.owned) continue;
    const ShardPart& part = shard_.parts[segment.part];
    float* const master = state.master != nullptr
                              ? state.master + segment.shard_begin
                              : MasterOf(part) + segment.flat_begin - part.flat_begin;
    pieces.push_back({PieceOf(slice, segment, ""), absl::MakeSpan(master, segment.count)});
    const MatrixRule* const matrices = slice.is_matrix() ? options_.rule->matrices() : nullptr;
    const size_t kept = matrices != nullptr ? matrices->states() : states_.size();
    for (size_t i = 0; i < kept; ++i) {
      const std::string prefix = absl::StrCat("optimizer.", options_.rule->states()[i], "/");
      float* const data = At((*state.states)[i]) + PlaceIn(i, segment.shard_begin);
      pieces.push_back({PieceOf(slice, segment, prefix), absl::MakeSpan(data, segment.count)});
    }
  }
  return pieces;
}

absl::StatusOr<std::vector<PieceToWrite>> ShardedOptimizer::PiecesToWrite() {
  CONVENE_ASSIGN_OR_RETURN(const HostState state, State(/*copies_it=*/true));
  if (!store_.speaks_for_shard()) return std::vector<PieceToWrite>();
  return Pieces<PieceToWrite>(state, /*owned_only=*/true);
}

absl::StatusOr<std::vector<PieceToWrite>> ShardedOptimizer::PiecesInPlace() {
  CONVENE_RETURN_IF_ERROR(AwaitState(/*fills_it=*/false));
  return Pieces<PieceToWrite>({At(master_), &states_}, /*owned_only=*/true);
}

absl::StatusOr<std::vector<PieceToRead>> ShardedOptimizer::PiecesToRead() {
  CONVENE_ASSIGN_OR_RETURN(const HostState state, State(/*copies_it=*/false));
  return Pieces<PieceToRead>(state, /*owned_only=*/false);
}

absl::Status ShardedOptimizer::FinishRead() {
  store_.AwaitCommunication();
  if (reads_by_copy()) CopyState(CopyTo::kDevice);
  return PublishMasters();
}

absl::Status ShardedOptimizer::PublishMasters() {
  Stream host = Stream::Cpu();
  Stream& stream = options_.offloads ? host : device_.compute();
  for (size_t i = 0; i < shard_.parts.size(); ++i) {
    if (has_masters()) Round(shard_.parts[i], stream);
    CONVENE_RETURN_IF_ERROR(Publish(i, stream));
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
