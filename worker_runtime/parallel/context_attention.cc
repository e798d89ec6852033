#include "worker_runtime/parallel/context_attention.h"

#include <algorithm>

#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/attention_sink.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {
namespace {

// Keys and values side by side: (batch, tokens, width).
template <typename E>
void SetKeys(E* data, int tokens, int width, QueriesKeysValues<E>& all) {
  const int64_t row = int64_t{tokens} * width;
  all.keys = {data, row, width};
  all.values = {data + width / 2, row, width};
}

// Of all ranks; empty where no op is told positions.
std::vector<int32_t> AllPositions(const ContextCut& cut) {
  std::vector<int32_t> all;
  if (cut.splits_heads()) return all;
  for (int rank = 0; rank < cut.size; ++rank) {
    const std::vector<int32_t> own =
        ContextPositions(cut.method, cut.sequence_length, cut.size, rank);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

}  // namespace

AttentionShape ContextAttentionShape(const ContextCut& cut, AttentionShape local) {
  if (cut.size == 1) return local;
  switch (cut.method) {
    case ContextMethod::kRing:
      local.keys = cut.local_length();
      break;
    case ContextMethod::kAllGather:
      local.keys = cut.sequence_length;
      break;
    case ContextMethod::kUlysses:
      local.sequence_length = cut.sequence_length;
      local.heads /= cut.size;
      local.kv_heads /= cut.size;
      break;
  }
  return local;
}

template <typename T>
ContextAttention<T>::ContextAttention(const Options& options, Collective& cp, Device& device,
                                      Arena& arena)
    : local_(options.local),
      cut_(options.cut),
      op_(ContextAttentionShape(options.cut, options.local)),
      options_(options),
      cp_(cp),
      device_(device),
      positions_(AllPositions(options.cut)) {
  const auto ropes = static_cast<int64_t>(options.ropes.size());
  cosines_ = arena.Declare<float>("tables/rope cosines", ropes * angles());
  sines_ = arena.Declare<float>("tables/rope sines", ropes * angles());
  device_positions_ = arena.Declare<int32_t>("tables/positions", positions_.size());
  const auto declare = [&]<typename E>(ContextMethod method, ArenaBlock<E>& block, const char* name,
                                       int64_t count, ArenaPart part = ArenaPart::kLocal) {
    if (uses(method)) block = arena.Declare<E>(name, count, part);
  };
  const int64_t queries = rows() * query_width();
  declare(ContextMethod::kUlysses, sent_, "scratch/heads to send", rows() * local_.qkv_width(),
          ArenaPart::kCollective);
  declare(ContextMethod::kUlysses, arrived_, "scratch/heads arrived", rows() * local_.qkv_width(),
          ArenaPart::kCollective);
  declare(ContextMethod::kUlysses, heads_, "scratch/attention by heads", queries);
  declare(ContextMethod::kAllGather, gathered_, "scratch/keys by rank", cut_.size * key_count(),
          ArenaPart::kCollective);
  declare(ContextMethod::kAllGather, keys_, "scratch/keys", cut_.size * key_count());
  declare(ContextMethod::kAllGather, key_gradients_, "scratch/keys' gradients",
          cut_.size * key_count());
  for (int i = 0; i < 2; ++i) {
    declare(ContextMethod::kRing, ring_keys_[i], "scratch/keys going round", key_count(),
            ArenaPart::kCollective);
    declare(ContextMethod::kRing, ring_sums_[i], "scratch/keys' gradients going round", key_count(),
            ArenaPart::kCollective);
  }
  declare(ContextMethod::kRing, part_out_, "scratch/part of attention", queries);
  declare(ContextMethod::kRing, part_sums_, "scratch/part of keys' gradients", key_count());
  declare(ContextMethod::kRing, query_sums_, "scratch/sum of attention", queries);
  declare(ContextMethod::kRing, part_log_sum_exp_, "scratch/part of log-sum-exp",
          rows() * local_.heads);
}

template <typename T>
size_t ContextAttention<T>::workspace_bytes() const {
  if (options_.cache != nullptr) {
    return AttentionWorkspaceBytes<T>(
        CachedOp({}, local_.sequence_length, options_.cache->shape().context), device_.kind());
  }
  size_t bytes = AttentionWorkspaceBytes<T>(op_, device_.kind());
  if (options_.has_sinks) {
    bytes = std::max(bytes, AttentionSinkWorkspaceBytes(op_, device_.kind()));
  }
  for (int owner = 0; uses(ContextMethod::kRing) && owner < cut_.size; ++owner) {
    bytes =
        std::max(bytes, AttentionWorkspaceBytes<T>(MeetingWith({}, owner).shape, device_.kind()));
  }
  return bytes;
}

// The tables are computed on the host, once.
template <typename T>
void ContextAttention<T>::Bind() {
  for (size_t i = 0; i < options_.ropes.size(); ++i) {
    const RopeKind& rope = options_.ropes[i];
    std::vector<float> host_cosines(angles());
    std::vector<float> host_sines(angles());
    RopeTable(table_length(), options_.rotary_size, rope.theta, host_cosines.data(),
              host_sines.data(), rope.scaling);
    const size_t bytes = host_cosines.size() * sizeof(float);
    device_.Copy(host_cosines.data(), At(cosines_) + i * angles(), bytes, device_.compute());
    device_.Copy(host_sines.data(), At(sines_) + i * angles(), bytes, device_.compute());
  }
  if (positions_.empty()) return;
  device_.Copy(positions_.data(), At(device_positions_), positions_.size() * sizeof(int32_t),
               device_.compute());
  side_.emplace(device_, options_.overlaps);
}

template <typename T>
const int32_t* ContextAttention<T>::Positions(int owner) const {
  if (positions_.empty()) return nullptr;
  return At(device_positions_) + int64_t{owner} * cut_.local_length();
}

template <typename T>
void ContextAttention<T>::Rotate(const LayerAttention& layer, const Documents& documents,
                                 bool inverse, T* qkv, Stream& stream) const {
  if (layer.rope == LayerAttention::kNoRope) return;
  const int64_t table = layer.rope * angles();
  RopeApply(op_.batch, op_.sequence_length, op_.heads + op_.kv_heads, op_.head_size,
            options_.rotary_size, op_.qkv_width(), At(cosines_) + table, At(sines_) + table,
            Positions(cut_.rank), documents.begin, inverse, qkv, stream);
}

template <typename T>
AttentionShape ContextAttention<T>::CachedOp(const LayerAttention& layer, int count,
                                             int keys) const {
  AttentionShape op = OpOf(layer);
  op.batch = 1;
  op.sequence_length = count;
  op.keys = keys;
  return op;
}

// Run by run, since each has as many tokens before it as its own sequence.
template <typename T>
void ContextAttention<T>::CachedForward(const LayerAttention& layer, const T* sinks, T* qkv, T* out,
                                        float* log_sum_exp, const Workspace& workspace,
                                        Stream& stream) const {
  const KeyValueCache& cache = *options_.cache;
  const int64_t table = layer.rope * angles();
  for (const CachedRun& run : cache.runs()) {
    const int64_t first = run.first;
    T* const tokens = qkv + first * local_.qkv_width();
    const int32_t* const positions = cache.positions() + run.begin;
    if (layer.rope != LayerAttention::kNoRope) {
      RopeApply(/*batch=*/1, run.count, local_.heads + local_.kv_heads, local_.head_size,
                options_.rotary_size, local_.qkv_width(), At(cosines_) + table, At(sines_) + table,
                positions, /*document_begin=*/nullptr, /*inverse=*/false, tokens, stream);
    }
    T* const keys = cache.Tokens<T>(layer.cached, run.sequence);
    CopyRows(run.count, key_width(), tokens + query_width(), local_.qkv_width(),
             keys + int64_t{run.begin} * key_width(), key_width(), stream);
    QueriesKeysValues<const T> in = {.queries = {tokens, 0, local_.qkv_width()}};
    SetKeys<const T>(keys, cache.shape().context, key_width(), in);
    const AttentionShape op = CachedOp(layer, run.count, run.begin + run.count);
    T* const run_out = out + first * query_width();
    float* const run_sums = log_sum_exp + first * local_.heads;
    AttentionForward(op, Documents(), {.queries = positions, .keys = cache.positions()}, in,
                     run_out, run_sums, workspace, stream);
    if (sinks != nullptr) AttentionSinkForward(op, sinks, run_out, run_sums, stream);
  }
}

template <typename T>
void ContextAttention<T>::PackKeys(const T* qkv, T* keys, Stream& stream) const {
  CopyRows(rows(), key_width(), qkv + query_width(), local_.qkv_width(), keys, key_width(), stream);
}

template <typename T>
absl::Status ContextAttention<T>::Forward(const LayerAttention& layer, const Documents& documents,
                                          const T* sinks, T* qkv, T* out, float* log_sum_exp,
                                          const Workspace& workspace, Stream& stream) {
  if (options_.cache != nullptr) {
    CachedForward(layer, sinks, qkv, out, log_sum_exp, workspace, stream);
    return absl::OkStatus();
  }
  const bool exchanges = uses(ContextMethod::kUlysses);
  if (exchanges) CONVENE_RETURN_IF_ERROR(ToHeads(/*with_keys=*/true, qkv, qkv, stream));
  Rotate(layer, documents, /*inverse=*/false, qkv, stream);
  T* const op_out = exchanges ? At(heads_) : out;
  if (uses(ContextMethod::kRing)) {
    CONVENE_RETURN_IF_ERROR(
        RingForward(layer, documents, qkv, out, log_sum_exp, workspace, stream));
  } else {
    QueriesKeysValues<const T> in = Fused<const T>(op_, qkv);
    if (uses(ContextMethod::kAllGather)) {
      CONVENE_RETURN_IF_ERROR(GatherKeys(qkv, stream));
      SetKeys<const T>(At(keys_), op_.keys, key_width(), in);
    }
    AttentionForward(OpOf(layer), documents, {.queries = Positions(cut_.rank)}, in, op_out,
                     log_sum_exp, workspace, stream);
  }
  if (sinks != nullptr) {
    AttentionSinkForward(op_, sinks + first_head(), op_out, log_sum_exp, stream);
  }
  return exchanges ? ToTokens(/*with_keys=*/false, op_out, out, stream) : absl::OkStatus();
}

// Of heads that are not the op's this rank makes no part of the gradient.
template <typename T>
void ContextAttention<T>::SinkBackward(const T* sinks, const T* out, const float* log_sum_exp,
                                       const T* dout, const WeightGradient& dsinks,
                                       const Workspace& workspace, Stream& stream) const {
  if (sinks == nullptr || dsinks.data == nullptr) return;
  if (!dsinks.adds) device_.Zero(dsinks.data, local_.heads * sizeof(float), stream);
  AttentionSinkBackward(op_, sinks + first_head(), out, log_sum_exp, dout, /*adds=*/true,
                        dsinks.data + first_head(), workspace, stream);
}

template <typename T>
absl::Status ContextAttention<T>::Backward(const LayerAttention& layer, const Documents& documents,
                                           const T* sinks, const T* qkv, const T* out,
                                           const float* log_sum_exp, T* dout, T* dqkv,
                                           const WeightGradient& dsinks, const Workspace& workspace,
                                           Stream& stream) {
  if (uses(ContextMethod::kRing)) {
    SinkBackward(sinks, out, log_sum_exp, dout, dsinks, workspace, stream);
    CONVENE_RETURN_IF_ERROR(
        RingBackward(layer, documents, qkv, out, log_sum_exp, dout, dqkv, workspace, stream));
    Rotate(layer, documents, /*inverse=*/true, dqkv, stream);
    return absl::OkStatus();
  }
  const bool exchanges = uses(ContextMethod::kUlysses);
  const bool gathers = uses(ContextMethod::kAllGather);
  QueriesKeysValues<const T> in = Fused<const T>(op_, qkv);
  QueriesKeysValues<T> gradients = Fused(op_, dqkv);
  if (exchanges) {
    CONVENE_RETURN_IF_ERROR(ToHeads(/*with_keys=*/false, out, At(heads_), stream));
    CONVENE_RETURN_IF_ERROR(ToHeads(/*with_keys=*/false, dout, dout, stream));
  }
  if (gathers) {
    CONVENE_RETURN_IF_ERROR(GatherKeys(qkv, stream));
    SetKeys<const T>(At(keys_), op_.keys, key_width(), in);
    SetKeys(At(key_gradients_), op_.keys, key_width(), gradients);
  }
  const T* const op_out = exchanges ? At(heads_) : out;
  SinkBackward(sinks, op_out, log_sum_exp, dout, dsinks, workspace, stream);
  AttentionBackward(OpOf(layer), documents, {.queries = Positions(cut_.rank)}, in, op_out,
                    log_sum_exp, dout, /*adds=*/false, gradients, workspace, stream);
  if (gathers) CONVENE_RETURN_IF_ERROR(ReduceKeys(dqkv, stream));
  Rotate(layer, documents, /*inverse=*/true, dqkv, stream);
  return exchanges ? ToTokens(/*with_keys=*/true, dqkv, dqkv, stream) : absl::OkStatus();
}

template <typename T>
template <typename Visit>
void ContextAttention<T>::ForHeads(bool with_keys, const Visit& visit) const {
  for (int rank = 0; rank < cut_.size; ++rank) {
    int begin = 0;
    for (int tensor = 0; tensor < (with_keys ? 3 : 1); ++tensor) {
      const int width = tensor == 0 ? query_width() : key_width() / 2;
      const int share = width / cut_.size;
      visit(rank, begin + rank * share, begin / cut_.size, share);
      begin += width;
    }
  }
}

template <typename T>
absl::Status ContextAttention<T>::ToHeads(bool with_keys, const T* tokens, T* heads,
                                          Stream& stream) const {
  const int width = with_keys ? local_.qkv_width() : query_width();
  const int share = width / cut_.size;
  const int64_t message = rows() * share;
  const absl::Span<T> sent(At(sent_), message * cut_.size);
  const absl::Span<T> arrived(At(arrived_), sent.size());
  ForHeads(with_keys, [&](int rank, int begin, int share_begin, int columns) {
    CopyRows(rows(), columns, tokens + begin, width, &sent[rank * message + share_begin], share,
             stream);
  });
  CONVENE_RETURN_IF_ERROR(cp_.AllToAll(sent, arrived, stream));
  const int part = local_.sequence_length * share;
  for (int rank = 0; rank < cut_.size; ++rank) {
    CopyRows(local_.batch, part, &arrived[rank * message], part, heads + int64_t{rank} * part,
             int64_t{part} * cut_.size, stream);
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ContextAttention<T>::ToTokens(bool with_keys, const T* heads, T* tokens,
                                           Stream& stream) const {
  const int width = with_keys ? local_.qkv_width() : query_width();
  const int share = width / cut_.size;
  const int64_t message = rows() * share;
  const absl::Span<T> sent(At(sent_), message * cut_.size);
  const absl::Span<T> arrived(At(arrived_), sent.size());
  const int part = local_.sequence_length * share;
  for (int rank = 0; rank < cut_.size; ++rank) {
    CopyRows(local_.batch, part, heads + int64_t{rank} * part, int64_t{part} * cut_.size,
             &sent[rank * message], part, stream);
  }
  CONVENE_RETURN_IF_ERROR(cp_.AllToAll(sent, arrived, stream));
  ForHeads(with_keys, [&](int rank, int begin, int share_begin, int columns) {
    CopyRows(rows(), columns, &arrived[rank * message + share_begin], share, tokens + begin, width,
             stream);
  });
  return absl::OkStatus();
}

template <typename T>
template <typename Visit>
void ContextAttention<T>::ForChunks(const Visit& visit) const {
  const int chunks = ContextChunks(cut_.method);
  for (int rank = 0; rank < cut_.size; ++rank) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = (int64_t{rank} * chunks + chunk) * cut_.local_length() / chunks;
      visit(rank * key_count() + int64_t{chunk} * chunk_keys(),
            int64_t{positions_[first]} * key_width());
    }
  }
}

template <typename T>
absl::Status ContextAttention<T>::GatherKeys(const T* qkv, Stream& stream) const {
  const absl::Span<T> gathered = gathered_.span();
  PackKeys(qkv, &gathered[cut_.rank * key_count()], stream);
  CONVENE_RETURN_IF_ERROR(cp_.AllGather(gathered, stream));
  ForChunks([&](int64_t by_rank, int64_t by_position) {
    CopyRows(local_.batch, chunk_keys(), &gathered[by_rank], row_keys(), At(keys_) + by_position,
             row_keys() * cut_.size, stream);
  });
  return absl::OkStatus();
}

template <typename T>
absl::Status ContextAttention<T>::ReduceKeys(T* dqkv, Stream& stream) const {
  const absl::Span<T> gathered = gathered_.span();
  ForChunks([&](int64_t by_rank, int64_t by_position) {
    CopyRows(local_.batch, chunk_keys(), At(key_gradients_) + by_position, row_keys() * cut_.size,
             &gathered[by_rank], row_keys(), stream);
  });
  CONVENE_RETURN_IF_ERROR(cp_.ReduceScatter(gathered, ReduceOp::kSum, stream));
  CopyRows(rows(), key_width(), &gathered[cut_.rank * key_count()], key_width(),
           dqkv + query_width(), local_.qkv_width(), stream);
  return absl::OkStatus();
}

template <typename T>
template <typename E>
absl::Status ContextAttention<T>::Shift(E* from, E* to, Stream& stream) const {
  const auto count = static_cast<size_t>(key_count());
  return cp_.Shift(absl::MakeSpan(from, count), absl::MakeSpan(to, count), stream);
}

template <typename T>
typename ContextAttention<T>::Meeting ContextAttention<T>::MeetingWith(const LayerAttention& layer,
                                                                       int owner) const {
  const int length = cut_.local_length();
  const AttentionShape op = OpOf(layer);
  if (op.packed) return {{.queries = length, .keys = length}, op};
  Meeting meeting = {RingPartOf(cut_, owner), op};
  meeting.shape.sequence_length = meeting.part.queries;
  meeting.shape.keys = meeting.part.keys;
  meeting.shape.keys_seen = meeting.part.is_in_order ? KeysSeen::kInOrder : KeysSeen::kAll;
  return meeting;
}

template <typename T>
typename ContextAttention<T>::QueryResults ContextAttention<T>::Gathered(const RingPart& part,
                                                                         const QueryResults& all,
                                                                         Stream& stream) const {
  const int length = local_.sequence_length;
  if (part.queries == length) return all;
  const int row = part.queries * query_width();
  const int64_t first = int64_t{part.first_query} * query_width();
  const int64_t stride = int64_t{length} * query_width();
  T* const out = At(part_out_);  // room for all queries' out, and so for half of them twice
  T* const dout = out + int64_t{local_.batch} * row;
  CopyRows(local_.batch, row, all.out + first, stride, out, row, stream);
  CopyRows(local_.batch, row, all.dout + first, stride, dout, row, stream);
  CopyRows(int64_t{local_.batch} * local_.heads, part.queries, all.log_sum_exp + part.first_query,
           length, At(part_log_sum_exp_), part.queries, stream);
  return {out, At(part_log_sum_exp_), dout};
}

// No part is hidden as a whole: the later chunk of the queries sees every rank's earlier one.
template <typename T>
absl::Status ContextAttention<T>::RingForward(const LayerAttention& layer,
                                              const Documents& documents, const T* qkv, T* out,
                                              float* log_sum_exp, const Workspace& workspace,
                                              Stream& stream) {
  PackKeys(qkv, Keys(0), stream);
  QueriesKeysValues<const T> in = Fused<const T>(local_, qkv);
  for (int step = 0; step < cut_.size; ++step) {
    const bool goes_on = step + 1 < cut_.size;
    if (goes_on) CONVENE_RETURN_IF_ERROR(Shift(Keys(step), Keys(step + 1), side_->Fork(stream)));
    const auto [part, shape] = MeetingWith(layer, Owner(step));
    in.queries.data = qkv + int64_t{part.first_query} * local_.qkv_width();
    SetRingKeys<const T>(Keys(step), part.first_key, in);
    AttentionForward(
        shape, documents,
        {Positions(cut_.rank) + part.first_query, Positions(Owner(step)) + part.first_key}, in,
        At(part_out_), At(part_log_sum_exp_), workspace, stream);
    AttentionMerge(shape, At(part_out_), At(part_log_sum_exp_),
                   {part.first_query, local_.sequence_length}, /*is_first=*/step == 0,
                   At(query_sums_), log_sum_exp, stream);
    if (goes_on) CONVENE_RETURN_IF_ERROR(Join(stream));
  }
  RoundRows(rows(), query_width(), At(query_sums_), query_width(), out, query_width(), stream);
  return absl::OkStatus();
}

// The sum of the gradients of a rank's keys arrives while this rank makes its part of it, and goes
// one step further than the keys: home.
template <typename T>
absl::Status ContextAttention<T>::RingBackward(const LayerAttention& layer,
                                               const Documents& documents, const T* qkv,
                                               const T* out, const float* log_sum_exp,
                                               const T* dout, T* dqkv, const Workspace& workspace,
                                               Stream& stream) {
  PackKeys(qkv, Keys(0), stream);
  QueriesKeysValues<const T> in = Fused<const T>(local_, qkv);
  const int64_t query_row = int64_t{local_.sequence_length} * query_width();
  QueriesKeysValues<float> sums = {.queries = {At(query_sums_), query_row, query_width()}};
  device_.Zero(At(query_sums_), sizeof(float) * query_row * local_.batch, stream);
  for (int step = 0; step < cut_.size; ++step) {
    float* const key_sums = step == 0 ? KeySums(0) : At(part_sums_);
    device_.Zero(key_sums, sizeof(float) * key_count(), stream);
    Stream& side = side_->Fork(stream);
    if (step > 0) CONVENE_RETURN_IF_ERROR(Shift(KeySums(step - 1), KeySums(step), side));
    if (step + 1 < cut_.size) CONVENE_RETURN_IF_ERROR(Shift(Keys(step), Keys(step + 1), side));
    const auto [part, shape] = MeetingWith(layer, Owner(step));
    in.queries.data = qkv + int64_t{part.first_query} * local_.qkv_width();
    sums.queries.data = At(query_sums_) + int64_t{part.first_query} * query_width();
    SetRingKeys<const T>(Keys(step), part.first_key, in);
    SetRingKeys(key_sums, part.first_key, sums);
    const QueryResults results = Gathered(part, {out, log_sum_exp, dout}, stream);
    AttentionBackward(
        shape, documents,
        {Positions(cut_.rank) + part.first_query, Positions(Owner(step)) + part.first_key}, in,
        results.out, results.log_sum_exp, results.dout, /*adds=*/true, sums, workspace, stream);
    CONVENE_RETURN_IF_ERROR(Join(stream));
    if (step > 0) AddInPlace(key_count(), key_sums, KeySums(step), stream);
  }
  CONVENE_RETURN_IF_ERROR(Shift(KeySums(cut_.size - 1), KeySums(cut_.size), side_->Fork(stream)));
  CONVENE_RETURN_IF_ERROR(Join(stream));
  RoundRows(rows(), query_width(), At(query_sums_), query_width(), dqkv, local_.qkv_width(),
            stream);
  RoundRows(rows(), key_width(), KeySums(cut_.size), key_width(), dqkv + query_width(),
            local_.qkv_width(), stream);
  return absl::OkStatus();
}

template class ContextAttention<float>;
template class ContextAttention<BFloat16>;

}  // namespace convene::worker
