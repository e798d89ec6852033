#include "worker_runtime/model/expert_feed_forward.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/activation.h"
#include "worker_runtime/ops/bias.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/expert_rows.h"
#include "worker_runtime/ops/grouped_matmul.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/matmul.h"
#include "worker_runtime/ops/router.h"
#include "worker_runtime/ops/router_bias.h"

namespace convene::worker {

template <typename T>
void DeclareExperts(const BlockShape& s, const Recompute& recompute, const SetDeclarer& declare,
                    ExpertMemory<T>& memory) {
  const ExpertShape& e = s.experts;
  if (!e.is_on()) return;
  const int64_t rows = s.rows();
  const int64_t choices = rows * e.dispatch.chosen;
  const int64_t bound = e.dispatch.bound;
  declare(memory.logits, false, false, "router logits", rows * e.router.experts);
  declare(memory.chosen, false, false, "router choices", choices * e.dispatch.ranks,
          ArenaPart::kCollective);
  declare(memory.weights, false, false, "router weights", choices);
  declare(memory.balance, false, false, "router balance", int64_t{s.batch} * e.router.experts);
  declare(memory.arrays, false, false, "expert rows", ExpertDispatch::ArraysCount(e.dispatch));
  declare(memory.x, recompute.mlp, false, "expert tokens", bound * s.hidden);
  declare(memory.gate_up, recompute.mlp, false, "expert gate-up",
          bound * ActivationInputs(s.family->activation) * e.ffn);
  declare(memory.product, recompute.swiglu, false, "expert product", bound * e.ffn);
  declare(memory.tokens, false, false, "expert token numbers", e.drops ? bound : 0);
}

template <typename T>
ExpertFeedForward<T>::ExpertFeedForward(const BlockShape& shape, const Recompute& recompute,
                                        std::vector<ExpertMemory<T>> memory,
                                        std::vector<DenseMemory<T>> shared,
                                        std::vector<DenseDeferred<T>> deferred,
                                        const BlockAdapters<T>& adapters, Arena& staging)
    : s_(shape),
      recompute_(recompute),
      memory_(std::move(memory)),
      linears_{.adapters = adapters},
      shared_(shape.ffn > 0
                  ? std::make_unique<DenseFeedForward<T>>(shape, recompute, std::move(shared),
                                                          std::move(deferred), linears_,
                                                          /*chunks=*/1)
                  : nullptr) {
  for (size_t slot = 0; slot < memory_.size(); ++slot) {
    plans_.emplace_back(s_.experts.dispatch, staging);
  }
}

template <typename T>
ScratchSizes ExpertFeedForward<T>::scratch(DeviceKind device, int64_t /*spare*/) const {
  const int64_t bound = dispatch().bound;
  const bool travels = dispatch().ranks > 1;
  ScratchSizes sizes = {.wide = bound * s_.hidden, .narrow = bound * s_.experts.ffn};
  sizes.narrow = std::max(sizes.narrow, int64_t{s_.rows()} * s_.experts.router.experts);
  sizes.sent = travels ? choices() * s_.hidden : 0;
  sizes.arrived = travels ? bound * s_.hidden : 0;
  sizes.floats = 2 * choices() + 3 * bound;
  if (s_.experts.drops) sizes.floats += 2 * (choices() + bound);
  if (s_.family->other_biases) {
    sizes.narrow = std::max(sizes.narrow, bound * s_.hidden);
    sizes.workspace_bytes = BiasWorkspaceBytes(
        static_cast<int>(std::max<int64_t>(bound, s_.rows())),
        std::max({gate_up_width(), s_.hidden, s_.experts.router.experts}), device);
  }
  const int statistics = RouterStatisticsWidth(s_.experts.router.experts);
  sizes.floats = std::max(sizes.floats, int64_t{s_.batch} * statistics);
  sizes.floats = std::max<int64_t>(sizes.floats, s_.experts.router.experts);
  if (has_shared()) sizes.Include(shared_->scratch(device, 0));
  return sizes;
}

// The streams run on while the host waits for this one.
template <typename T>
absl::Status ExpertFeedForward<T>::Await(const Pass<T>& pass) {
  const ExpertSurroundings<T>& around = Around(pass);
  Device& device = *pass.around.device;
  device.Record(*around.routed, pass.stream);
  const absl::Status waited = device.Wait(*around.routed, around.timeout);
  // An error of a peer is the cause of what the device saw.
  CONVENE_RETURN_IF_ERROR(around.ep->Check());
  CONVENE_RETURN_IF_ERROR(pass.around.rows->tp().Check());
  return Annotate(waited, "waiting for the experts that tokens choose");
}

template <typename T>
absl::Status ExpertFeedForward<T>::FetchChosen(const Pass<T>& pass) {
  const absl::Span<int32_t> chosen = MemoryOf(pass).chosen.span();
  if (dispatch().ranks > 1) {
    CONVENE_RETURN_IF_ERROR(Around(pass).ep->AllGather(
        Elements(chosen.data(), chosen.size(), DType::kFloat32), pass.stream));
  }
  pass.around.device->Copy(chosen.data(), Around(pass).chosen, chosen.size() * sizeof(int32_t),
                           pass.stream);
  return Await(pass);
}

template <typename T>
const float* ExpertFeedForward<T>::FloatBias(const Pass<T>& pass, int role) {
  if constexpr (std::is_same_v<T, float>) {
    return pass.Weight(role);
  } else {
    if (!pass.Has(role)) return nullptr;
    ToFloat(s_.experts.router.experts, pass.Weight(role), Around(pass).floats, pass.stream);
    return Around(pass).floats;
  }
}

template <typename T>
absl::Status ExpertFeedForward<T>::Route(const Pass<T>& pass, const T* x) {
  const ExpertMemory<T>& a = MemoryOf(pass);
  const RouterShape& router = s_.experts.router;
  Stream& stream = pass.stream;
  MatMul(Transpose::kNo, Transpose::kYes, s_.rows(), router.experts, s_.hidden, x,
         pass.Weight(kRouter), 0, At(a.logits), stream);
  if (pass.Has(kRouterLogitBias)) {
    AddBias(s_.rows(), router.experts, FloatBias(pass, kRouterLogitBias), At(a.logits), stream);
  }
  RouterForward(router, At(a.logits), FloatBias(pass, kRouterBias), pass.targets,
                At(a.chosen) + dispatch().rank * choices(), At(a.weights), stream);
  if (pass.gradient_scale != nullptr) CONVENE_RETURN_IF_ERROR(Penalize(pass));
  CONVENE_RETURN_IF_ERROR(FetchChosen(pass));
  const ExpertLoad load = plan(pass).Route(
      absl::MakeConstSpan(Around(pass).chosen, static_cast<size_t>(a.chosen.size())));
  // A micro batch of padding alone is no routing.
  if (pass.gradient_scale != nullptr && load.highest > 0) {
    ExpertTotals& totals = *Around(pass).totals;
    ++totals.routings;
    totals.highest_load += load.highest;
    totals.entropy += load.entropy;
    totals.chunked += load.is_chunked ? 1 : 0;
  }
  if (!load.is_chunked) CopyArrays(pass);
  return absl::OkStatus();
}

template <typename T>
absl::Status ExpertFeedForward<T>::Penalize(const Pass<T>& pass) {
  const RouterShape& router = s_.experts.router;
  if (!has_losses() && !pass.Has(kRouterBias)) return absl::OkStatus();
  const ExpertMemory<T>& a = MemoryOf(pass);
  float* const statistics = Around(pass).floats;
  Collective& cp = *pass.around.cp;
  RouterStatistics(router, s_.sequence_length, At(a.logits),
                   At(a.chosen) + dispatch().rank * choices(), pass.targets, statistics,
                   pass.stream);
  if (cp.size() > 1) {
    const size_t count = size_t{1} * s_.batch * RouterStatisticsWidth(router.experts);
    CONVENE_RETURN_IF_ERROR(
        cp.AllReduce(absl::MakeSpan(statistics, count), ReduceOp::kSum, pass.stream));
  }
  if (pass.Has(kRouterBias)) {
    const WeightGradient imbalance = pass.Gradient(kRouterBias);
    if (imbalance.data != nullptr) {
      RouterImbalance(s_.batch, router, statistics, imbalance.adds, imbalance.data, pass.stream);
    }
  }
  RouterPenalty(s_.batch, router, s_.experts.balance_loss, s_.experts.z_loss, pass.gradient_scale,
                statistics, At(a.balance), cp.rank() == 0 ? Around(pass).losses : nullptr,
                pass.stream);
  return absl::OkStatus();
}

template <typename T>
void ExpertFeedForward<T>::CopyArrays(const Pass<T>& pass) {
  const absl::Span<const int32_t> arrays = plan(pass).arrays();
  pass.around.device->Copy(arrays.data(), At(MemoryOf(pass).arrays),
                           arrays.size() * sizeof(int32_t), pass.stream);
}

// Ops of the chunk before may still read its plan.
template <typename T>
absl::Status ExpertFeedForward<T>::PlanChunk(const Pass<T>& pass, int chunk) {
  if (plan(pass).chunks() == 1) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(Await(pass));
  plan(pass).Plan(absl::MakeConstSpan(Around(pass).chosen, MemoryOf(pass).chosen.size()), chunk);
  CopyArrays(pass);
  return absl::OkStatus();
}

template <typename T>
template <typename E, typename Between>
absl::Status ExpertFeedForward<T>::ToExperts(const Pass<T>& pass, const E* x, const int32_t* from,
                                             int columns, E* sent, E* arrived, E* sorted,
                                             const Between& between) {
  const ExpertDispatch& way = plan(pass);
  const int32_t* const arrays = At(MemoryOf(pass).arrays);
  Stream& stream = pass.stream;
  if (dispatch().ranks == 1) {
    GatherRows(way.sent(), columns, from, x, sorted, stream);
    return between();
  }
  const ExpertSurroundings<T>& around = Around(pass);
  GatherRows(way.sent(), columns, from, x, sent, stream);
  Stream& side = around.beside != nullptr ? around.beside->layer_communication() : stream;
  if (around.beside != nullptr) {
    around.beside->Record(*around.fork, stream);
    around.beside->Order(*around.fork, side);
  }
  CONVENE_RETURN_IF_ERROR(around.ep->AllToAllV(
      absl::MakeConstSpan(sent, int64_t{way.sent()} * columns), {way.sent_begin(), columns},
      absl::MakeSpan(arrived, int64_t{way.received()} * columns), {way.arrived_begin(), columns},
      side));
  CONVENE_RETURN_IF_ERROR(between());
  if (around.beside != nullptr) {
    around.beside->Record(*around.join, side);
    around.beside->Order(*around.join, stream);
  }
  GatherRows(way.received(), columns, way.SortedFrom(arrays), arrived, sorted, stream);
  return absl::OkStatus();
}

template <typename T>
template <typename E>
absl::StatusOr<const E*> ExpertFeedForward<T>::FromExperts(const Pass<T>& pass, const E* sorted,
                                                           int columns, E* arrived, E* sent) {
  if (dispatch().ranks == 1) return sorted;
  const ExpertDispatch& way = plan(pass);
  GatherRows(way.received(), columns, way.ArrivedAt(At(MemoryOf(pass).arrays)), sorted, arrived,
             pass.stream);
  CONVENE_RETURN_IF_ERROR(Around(pass).ep->AllToAllV(
      absl::MakeConstSpan(arrived, int64_t{way.received()} * columns),
      {way.arrived_begin(), columns}, absl::MakeSpan(sent, int64_t{way.sent()} * columns),
      {way.sent_begin(), columns}, pass.stream));
  return sent;
}

template <typename T>
template <typename Between>
absl::Status ExpertFeedForward<T>::TokensToExperts(const Pass<T>& pass, const T* x, T* sorted,
                                                   const Between& between) {
  const ExpertDispatch& way = plan(pass);
  return ToExperts(pass, x + int64_t{way.row_begin()} * s_.hidden,
                   way.SentFrom(At(MemoryOf(pass).arrays)), s_.hidden, Around(pass).sent,
                   Around(pass).arrived, sorted, between);
}

template <typename T>
absl::Status ExpertFeedForward<T>::TokenNumbersToExperts(const Pass<T>& pass) {
  if (!s_.experts.drops || pass.token_numbers == nullptr) return absl::OkStatus();
  const ExpertDispatch& way = plan(pass);
  const ExpertMemory<T>& a = MemoryOf(pass);
  static_assert(sizeof(int64_t) == 2 * sizeof(float));
  return ToExperts(pass, reinterpret_cast<const float*>(pass.token_numbers + way.row_begin()),
                   way.SentFrom(At(a.arrays)), /*columns=*/2, SentNumbers(pass),
                   ArrivedNumbers(pass), reinterpret_cast<float*>(At(a.tokens)),
                   [] { return absl::OkStatus(); });
}

template <typename T>
LinearShape ExpertFeedForward<T>::LayerOf(const Pass<T>& pass, BlockTensor tensor) {
  const int rows = plan(pass).received();
  return tensor == kExpertDown ? LinearShape{rows, s_.hidden, s_.experts.ffn}
                               : LinearShape{rows, gate_up_width(), s_.hidden};
}

template <typename T>
LowRank<T> ExpertFeedForward<T>::AdapterOf(const Pass<T>& pass, LowRank<T> adapter) {
  adapter.groups = plan(pass).sorted_begin();
  if (adapter.dropout.is_on()) adapter.dropout.tokens = At(MemoryOf(pass).tokens);
  return adapter;
}

template <typename T>
void ExpertFeedForward<T>::Multiply(const Pass<T>& pass, BlockTensor tensor, const T* x, T* y) {
  const LinearShape layer = LayerOf(pass, tensor);
  GroupedMatMul(Transpose::kYes, plan(pass).sorted_begin(), layer.out, layer.in, x,
                pass.Weight(tensor), 0, y, pass.stream);
  const LowRank<T> adapter = AdapterOf(pass, linears_.adapters.Of(pass, tensor));
  SpreadLowRank(layer, adapter, pass.stream);
  AddLowRank(layer, adapter, /*first_row=*/0, x, y, pass.stream);
}

template <typename T>
void ExpertFeedForward<T>::GateUp(const Pass<T>& pass) {
  const ExpertMemory<T>& a = MemoryOf(pass);
  Multiply(pass, kExpertGateUp, At(a.x), At(a.gate_up));
  AddBiasOfExperts(pass, kExpertGateUpBias, gate_up_width(), At(a.gate_up));
}

template <typename T>
void ExpertFeedForward<T>::AddBiasOfExperts(const Pass<T>& pass, int role, int columns, T* y) {
  if (!pass.Has(role)) return;
  CombineRows<T>(plan(pass).received(), columns, 1, plan(pass).ExpertOf(At(MemoryOf(pass).arrays)),
                 nullptr, pass.Weight(role), /*adds=*/true, y, pass.stream);
}

// Expert after expert, as the weights' gradients go on a GPU.
template <typename T>
void ExpertFeedForward<T>::BiasGradient(const Pass<T>& pass, int role, int columns, bool adds,
                                        const T* dy) {
  if (!pass.Has(role)) return;
  const WeightGradient gradient = pass.Gradient(role);
  if (gradient.data == nullptr) return;
  const absl::Span<const int32_t> begin = plan(pass).sorted_begin();
  adds = adds || gradient.adds;
  for (size_t expert = 0; expert + 1 < begin.size(); ++expert) {
    float* const its_gradient = gradient.data + expert * columns;
    const int rows = begin[expert + 1] - begin[expert];
    if (rows == 0 && !adds) {
      pass.around.device->Zero(its_gradient, columns * sizeof(float), pass.stream);
    }
    BiasBackward(rows, columns, dy + int64_t{begin[expert]} * columns, adds, its_gradient,
                 pass.around.workspace, pass.stream);
  }
}

template <typename T>
void ExpertFeedForward<T>::DownBiasBackward(const Pass<T>& pass, bool adds, T* dy) {
  if (!pass.Has(kExpertDownBias)) return;
  if (!adds_whole(pass)) {
    const WeightGradient gradient = pass.Gradient(kExpertDownBias);
    const size_t count = size_t{1} * dispatch().local_experts() * s_.hidden;
    if (adds || gradient.adds || gradient.data == nullptr) return;
    return pass.around.device->Zero(gradient.data, count * sizeof(float), pass.stream);
  }
  const int received = plan(pass).received();
  T* const biases = pass.around.narrow;
  float* const dweights = ArrivedFloats(pass);
  GatherRows(received, s_.hidden, plan(pass).ExpertOf(At(MemoryOf(pass).arrays)),
             pass.Weight(kExpertDownBias), biases, pass.stream);
  WeighRows(received, s_.hidden, SortedWeights(pass), biases, dy, dweights, pass.stream);
  AddInPlace(received, dweights, SortedDWeights(pass), pass.stream);
  BiasGradient(pass, kExpertDownBias, s_.hidden, adds, dy);
}

template <typename T>
void ExpertFeedForward<T>::Activate(const Pass<T>& pass) {
  const ExpertMemory<T>& a = MemoryOf(pass);
  ActivationForward(s_.family->activation, plan(pass).received(), s_.experts.ffn, At(a.gate_up),
                    At(a.product), pass.stream);
}

template <typename T>
Pass<T> ExpertFeedForward<T>::SharedPass(const Pass<T>& pass, UnitSurroundings<T>& around) const {
  around = pass.around;
  around.rows = Around(pass).summands;
  return {around,
          pass.store,
          pass.unit,
          pass.slot,
          pass.deferred,
          pass.head,
          pass.is_first,
          pass.is_first_weight,
          pass.input,
          pass.inputs,
          pass.targets,
          pass.token_numbers,
          pass.gradient_scale,
          pass.loss_sum,
          pass.references,
          pass.answer_losses,
          pass.rewards,
          pass.documents,
          pass.stream,
          pass.places,
          pass.weights};
}

template <typename T>
absl::Status ExpertFeedForward<T>::Forward(const Pass<T>& pass, const T* x, T* y) {
  const ExpertMemory<T>& a = MemoryOf(pass);
  ChunkedRows& rows = *pass.around.rows;
  CONVENE_RETURN_IF_ERROR(rows.Finish(x, pass.stream));
  CONVENE_RETURN_IF_ERROR(Route(pass, x));
  UnitSurroundings<T> around;
  const Pass<T> shared_pass = SharedPass(pass, around);
  const ExpertDispatch& way = plan(pass);
  for (int chunk = 0; chunk < way.chunks(); ++chunk) {
    CONVENE_RETURN_IF_ERROR(PlanChunk(pass, chunk));
    CONVENE_RETURN_IF_ERROR(TokensToExperts(pass, x, At(a.x), [&]() -> absl::Status {
      return chunk == 0 && has_shared() ? shared_->Forward(shared_pass, x, y) : absl::OkStatus();
    }));
    CONVENE_RETURN_IF_ERROR(TokenNumbersToExperts(pass));
    GateUp(pass);
    Activate(pass);
    T* const out = pass.around.wide;
    Multiply(pass, kExpertDown, At(a.product), out);
    if (adds_whole(pass)) AddBiasOfExperts(pass, kExpertDownBias, s_.hidden, out);
    CONVENE_ASSIGN_OR_RETURN(
        const T* const back,
        FromExperts(pass, out, s_.hidden, Around(pass).arrived, Around(pass).sent));
    const int64_t row = way.row_begin();
    CombineRows(way.rows(), s_.hidden, dispatch().chosen, way.Places(At(a.arrays)),
                At(a.weights) + row * dispatch().chosen, back, has_shared(), y + row * s_.hidden,
                pass.stream);
  }
  for (int c = 0; c < rows.chunks(); ++c) {
    CONVENE_RETURN_IF_ERROR(rows.StartSum(y, c, pass.stream));
  }
  return absl::OkStatus();
}

// The backward pass takes chunk by chunk, and makes each chunk's tensors itself.
template <typename T>
absl::Status ExpertFeedForward<T>::Again(const Pass<T>& pass, const T* x) {
  CONVENE_RETURN_IF_ERROR(pass.around.rows->Finish(x, pass.stream));
  UnitSurroundings<T> around;
  if (has_shared()) CONVENE_RETURN_IF_ERROR(shared_->Again(SharedPass(pass, around), x));
  const ExpertDispatch& way = plan(pass);
  if (way.chunks() > 1) return absl::OkStatus();
  const ExpertMemory<T>& a = MemoryOf(pass);
  CONVENE_RETURN_IF_ERROR(TokensToExperts(pass, x, At(a.x), [] { return absl::OkStatus(); }));
  GateUp(pass);
  return absl::OkStatus();
}

template <typename T>
void ExpertFeedForward<T>::DownBackward(const Pass<T>& pass, bool adds_weights, const T* dy,
                                        T* dproduct) {
  const ExpertMemory<T>& a = MemoryOf(pass);
  const ExpertDispatch& way = plan(pass);
  Stream& stream = pass.stream;
  const LinearShape layer = LayerOf(pass, kExpertDown);
  const LowRank<T> adapter =
      AdapterOf(pass, linears_.adapters.WithGradients(pass, kExpertDown, adds_weights));
  GroupedMatMul(Transpose::kNo, way.sorted_begin(), layer.in, layer.out, dy,
                pass.Weight(kExpertDown), 0, dproduct, stream);
  SpreadLowRank(layer, adapter, stream);
  LowRankInnerGradient(layer, adapter, dy, stream);
  AddLowRankInputGradient(layer, adapter, /*first_row=*/0, dproduct, stream);
  // The output's weight stands before the product with `down` as well as behind it, and there its
  // gradient needs no output. So the gradients of `down` and of its adapters have it in `product`.
  WeighRows(way.received(), layer.in, SortedWeights(pass), At(a.product), dproduct,
            SortedDWeights(pass), stream);
  const WeightGradient down = pass.Gradient(kExpertDown);
  if (down.data != nullptr) {
    GroupedWeightGradient(way.sorted_begin(), layer.out, layer.in, dy, At(a.product),
                          down.adds || adds_weights ? 1 : 0, down.data, stream);
  }
  LowRankGradients(layer, adapter, At(a.product), dy, stream);
}

template <typename T>
void ExpertFeedForward<T>::GateUpBackward(const Pass<T>& pass, bool adds_weights, T* dx) {
  const ExpertMemory<T>& a = MemoryOf(pass);
  const absl::Span<const int32_t> begin = plan(pass).sorted_begin();
  Stream& stream = pass.stream;
  const LinearShape layer = LayerOf(pass, kExpertGateUp);
  const LowRank<T> adapter =
      AdapterOf(pass, linears_.adapters.WithGradients(pass, kExpertGateUp, adds_weights));
  const T* const dy = At(a.gate_up);
  BiasGradient(pass, kExpertGateUpBias, layer.out, adds_weights, dy);
  const WeightGradient gate_up = pass.Gradient(kExpertGateUp);
  if (gate_up.data != nullptr) {
    GroupedWeightGradient(begin, layer.out, layer.in, dy, At(a.x),
                          gate_up.adds || adds_weights ? 1 : 0, gate_up.data, stream);
  }
  GroupedMatMul(Transpose::kNo, begin, layer.in, layer.out, dy, pass.Weight(kExpertGateUp), 0, dx,
                stream);
  SpreadLowRank(layer, adapter, stream);
  LowRankInnerGradient(layer, adapter, dy, stream);
  LowRankGradients(layer, adapter, At(a.x), dy, stream);
  AddLowRankInputGradient(layer, adapter, /*first_row=*/0, dx, stream);
}

template <typename T>
absl::Status ExpertFeedForward<T>::ChunkBackward(const Pass<T>& pass, const T* dy,
                                                 bool adds_weights, bool adds_dx, T* dx) {
  const ExpertMemory<T>& a = MemoryOf(pass);
  const ExpertDispatch& way = plan(pass);
  const int32_t* const arrays = At(a.arrays);
  const int64_t row = way.row_begin();
  const int chosen = dispatch().chosen;
  Stream& stream = pass.stream;
  const auto nothing = [] { return absl::OkStatus(); };
  T* const sorted = pass.around.wide;
  T* const product = pass.around.narrow;
  CONVENE_RETURN_IF_ERROR(ToExperts(pass, At(a.weights) + row * chosen, way.SentChoices(arrays), 1,
                                    SentFloats(pass), ArrivedFloats(pass), SortedWeights(pass),
                                    nothing));
  CONVENE_RETURN_IF_ERROR(TokensToExperts(pass, dy, sorted, nothing));
  DownBackward(pass, adds_weights, sorted, product);
  ActivationBackward(s_.family->activation, way.received(), s_.experts.ffn, At(a.gate_up), product,
                     At(a.gate_up), stream);
  DownBiasBackward(pass, adds_weights, sorted);
  GateUpBackward(pass, adds_weights, sorted);
  CONVENE_ASSIGN_OR_RETURN(
      const T* const back,
      FromExperts(pass, sorted, s_.hidden, Around(pass).arrived, Around(pass).sent));
  CombineRows<T>(way.rows(), s_.hidden, chosen, way.Places(arrays), nullptr, back, adds_dx,
                 dx + row * s_.hidden, stream);
  CONVENE_ASSIGN_OR_RETURN(
      const float* const dweights,
      FromExperts(pass, SortedDWeights(pass), 1, ArrivedFloats(pass), SentFloats(pass)));
  GatherRows(int64_t{way.rows()} * chosen, 1, way.Places(arrays), dweights,
             DWeights(pass) + row * chosen, stream);
  return absl::OkStatus();
}

template <typename T>
absl::Status ExpertFeedForward<T>::RouterBackwards(const Pass<T>& pass, const T* x, T* dx) {
  const ExpertMemory<T>& a = MemoryOf(pass);
  const RouterShape& router = s_.experts.router;
  const bool adds_losses = has_losses() && adds_whole(pass);
  T* const dlogits = pass.around.narrow;
  RouterBackward(router, s_.sequence_length, At(a.logits),
                 At(a.chosen) + dispatch().rank * choices(), DWeights(pass),
                 adds_losses ? At(a.balance) : nullptr, adds_losses ? s_.experts.z_loss : 0,
                 pass.gradient_scale, pass.targets, dlogits, pass.stream);
  LinearWeightGradient({s_.rows(), router.experts, s_.hidden}, x, dlogits, pass.Gradient(kRouter),
                       pass.stream);
  if (pass.Has(kRouterLogitBias)) {
    ColumnBiasBackward({.rows = s_.rows(), .out = router.experts}, dlogits,
                       pass.Gradient(kRouterLogitBias), pass.around.workspace, pass.stream);
  }
  MatMul(Transpose::kNo, Transpose::kNo, s_.rows(), s_.hidden, router.experts, dlogits,
         pass.Weight(kRouter), 1, dx, pass.stream);
  return absl::OkStatus();
}

template <typename T>
absl::Status ExpertFeedForward<T>::Backward(const Pass<T>& pass, const T* x, const T* dy, T* dx,
                                            absl::Span<T> /*spare*/) {
  const ExpertMemory<T>& a = MemoryOf(pass);
  ChunkedRows& rows = *pass.around.rows;
  CONVENE_RETURN_IF_ERROR(rows.Finish(dy, pass.stream));
  CONVENE_RETURN_IF_ERROR(rows.Finish(x, pass.stream));
  UnitSurroundings<T> around;
  if (has_shared()) {
    CONVENE_RETURN_IF_ERROR(shared_->Backward(SharedPass(pass, around), x, dy, dx, {}));
  }
  const ExpertDispatch& way = plan(pass);
  const bool is_chunked = way.chunks() > 1;
  if (is_chunked) CONVENE_RETURN_IF_ERROR(FetchChosen(pass));
  for (int chunk = 0; chunk < way.chunks(); ++chunk) {
    CONVENE_RETURN_IF_ERROR(PlanChunk(pass, chunk));
    if (is_chunked) {
      CONVENE_RETURN_IF_ERROR(TokensToExperts(pass, x, At(a.x), [] { return absl::OkStatus(); }));
      CONVENE_RETURN_IF_ERROR(TokenNumbersToExperts(pass));
      GateUp(pass);
    }
    if (is_chunked || recompute_.swiglu) Activate(pass);
    CONVENE_RETURN_IF_ERROR(ChunkBackward(pass, dy, /*adds_weights=*/chunk > 0,
                                          /*adds_dx=*/has_shared(), dx));
  }
  CONVENE_RETURN_IF_ERROR(RouterBackwards(pass, x, dx));
  for (int c = 0; c < rows.chunks(); ++c) {
    CONVENE_RETURN_IF_ERROR(rows.StartSum(dx, c, pass.stream));
  }
  return absl::OkStatus();
}

template <typename T>
void ExpertFeedForward<T>::BackwardWeight(const Pass<T>& pass, const T* x) {
  UnitSurroundings<T> around;
  if (has_shared()) shared_->BackwardWeight(SharedPass(pass, around), x);
}

CONVENE_INSTANTIATE(DeclareExperts);
template class ExpertFeedForward<float>;
template class ExpertFeedForward<BFloat16>;

}  // namespace convene::worker
