// Attention of some tokens of a row to some others, judged on any device: a part alone against the
// reference, and the parts of a row merged against the whole.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/attention.h"

namespace convene::worker::testing {

using Positions = std::vector<int32_t>;

// In host memory. A runner brings it to its device; `Runner<T>` offers
//   Outputs<float> Forward(const AttentionPart&);                     out, log_sum_exp
//   void Merge(const AttentionPart&, const Outputs<float>& of_part, bool is_first,
//              Outputs<float>* merged);                               out, log_sum_exp
//   Outputs<float> Backward(const AttentionPart&, const Outputs<float>& forward,
//                           const std::vector<float>& dout);          of queries, of keys_values
//   void BackwardAdd(..., Outputs<float>* sums);                      the same
struct AttentionPart {
  AttentionShape shape;
  Positions begins;  // Documents::begin; empty: not packed
  Positions query_positions;
  Positions key_positions;
  std::vector<float> queries;      // (batch, sequence_length, heads * head_size)
  std::vector<float> keys_values;  // (batch, keys, 2 * kv_heads * head_size)
};

template <typename T>
QueriesKeysValues<T> PartHeads(const AttentionShape& shape, T* queries, T* keys_values) {
  const int64_t query = int64_t{shape.heads} * shape.head_size;
  const int64_t half = int64_t{shape.kv_heads} * shape.head_size;
  return {{queries, shape.sequence_length * query, query},
          {keys_values, shape.keys * 2 * half, 2 * half},
          {keys_values + half, shape.keys * 2 * half, 2 * half}};
}

// The tokens at `positions` of values (batch, length, width): their columns [first, first + count).
template <typename Value>
std::vector<Value> Take(const std::vector<Value>& values, int batch, int length,
                        const Positions& positions, size_t first, size_t count) {
  const size_t width = values.size() / batch / length;
  std::vector<Value> taken;
  for (int row = 0; row < batch; ++row) {
    for (const int32_t position : positions) {
      const auto begin = values.begin() + (size_t{1} * row * length + position) * width + first;
      taken.insert(taken.end(), begin, begin + count);
    }
  }
  return taken;
}

// A whole row of tokens that parts are taken from. The shape is no part.
template <typename T>
struct WholeAttention {
  WholeAttention(AttentionShape whole, const std::vector<int>& document_lengths) : shape(whole) {
    shape.packed = !document_lengths.empty();
    const size_t tokens = size_t{1} * shape.batch * shape.sequence_length;
    qkv = NumbersOf<T>(tokens * shape.qkv_width(), 1, 2);
    dout = NumbersOf<T>(tokens * out_width(), 2);
    if (shape.packed) begins = DocumentBegins(shape.batch, shape.sequence_length, document_lengths);
  }
  size_t out_width() const { return size_t{1} * shape.heads * shape.head_size; }

  AttentionPart Part(const Positions& queries, const Positions& keys) const {
    AttentionPart part = {.shape = shape, .query_positions = queries, .key_positions = keys};
    part.shape.sequence_length = static_cast<int>(queries.size());
    part.shape.keys = static_cast<int>(keys.size());
    if (shape.packed) part.begins = TakeTokens(begins, queries, 0, 1);
    if (!shape.packed && queries == keys) part.shape.keys_seen = KeysSeen::kInOrder;
    if (!shape.packed && keys.back() <= queries.front()) part.shape.keys_seen = KeysSeen::kAll;
    part.queries = TakeTokens(qkv, queries, 0, out_width());
    part.keys_values = TakeTokens(qkv, keys, out_width(), shape.qkv_width() - out_width());
    return part;
  }
  Positions All() const {
    Positions all(shape.sequence_length);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  template <typename Value>
  std::vector<Value> TakeTokens(const std::vector<Value>& values, const Positions& positions,
                                size_t first, size_t count) const {
    return Take(values, shape.batch, shape.sequence_length, positions, first, count);
  }

  AttentionShape shape;
  Positions begins;
  std::vector<float> qkv;
  std::vector<float> dout;  // (batch, sequence_length, out_width)
};

// Out and log_sum_exp by the reference.
template <typename Real>
Outputs<Real> ReferenceForward(const AttentionPart& part) {
  const auto queries = As<Real>(part.queries);
  const auto keys_values = As<Real>(part.keys_values);
  Outputs<Real> y = {std::vector<Real>(queries.size()),
                     std::vector<Real>(queries.size() / part.shape.head_size)};
  reference::AttentionForward(part.shape, part.begins.empty() ? nullptr : part.begins.data(),
                              {part.query_positions.data(), part.key_positions.data()},
                              PartHeads(part.shape, queries.data(), keys_values.data()),
                              y[0].data(), y[1].data());
  return y;
}

// The gradients of queries and of keys_values. forward: of the queries' attention to all keys.
template <typename Real>
Outputs<Real> ReferenceBackward(const AttentionPart& part, const Outputs<Real>& forward,
                                const std::vector<float>& dout) {
  const auto queries = As<Real>(part.queries);
  const auto keys_values = As<Real>(part.keys_values);
  Outputs<Real> gradients = {std::vector<Real>(queries.size()),
                             std::vector<Real>(keys_values.size())};
  reference::AttentionBackwardAdd(part.shape, part.begins.empty() ? nullptr : part.begins.data(),
                                  {part.query_positions.data(), part.key_positions.data()},
                                  PartHeads(part.shape, queries.data(), keys_values.data()),
                                  forward[0].data(), forward[1].data(), As<Real>(dout).data(),
                                  PartHeads(part.shape, gradients[0].data(), gradients[1].data()));
  return gradients;
}

// Of a query that sees no key log_sum_exp is -infinity, whose distance to itself is no number.
template <typename Real>
Outputs<Real> WithoutInfinity(Outputs<Real> outputs) {
  std::replace(outputs[1].begin(), outputs[1].end(), -std::numeric_limits<Real>::infinity(),
               Real{-1000});
  return outputs;
}

// Queries against keys of one whole; the backward pass also as if there were no other keys.
template <typename T, typename Runner>
void CheckPart(Runner& runner, const WholeAttention<T>& whole, const Positions& queries,
               const Positions& keys) {
  const AttentionPart part = whole.Part(queries, keys);
  CAPTURE(part.shape.batch, part.shape.heads, part.shape.kv_heads, part.shape.head_size,
          part.begins, queries, keys);
  Compare<T>(
      kForward, [&] { return WithoutInfinity(runner.Forward(part)); },
      [&](auto zero) { return WithoutInfinity(ReferenceForward<decltype(zero)>(part)); }, {1});
  const auto dout = whole.TakeTokens(whole.dout, queries, 0, whole.out_width());
  const auto of_all = ReferenceForward<float>(whole.Part(queries, whole.All()));
  const Outputs<float> forward = {Load(Store<T>(of_all[0])), of_all[1]};
  Compare<T>(
      kBackward, [&] { return runner.Backward(part, forward, dout); },
      [&](auto zero) {
        using Real = decltype(zero);
        return ReferenceBackward<Real>(part, {As<Real>(forward[0]), As<Real>(forward[1])}, dout);
      });
  // -infinity of a query that sees no key at all must not become a NaN.
  for (const auto& gradient : runner.Backward(part, runner.Forward(part), dout)) {
    CHECK(std::none_of(gradient.begin(), gradient.end(), [](float x) { return std::isnan(x); }));
  }
}

// Adds the tokens' values to those at their positions of `all`: the opposite of Take.
inline void AddTokens(const std::vector<float>& values, int batch, int length,
                      const Positions& positions, std::vector<float>* all) {
  const size_t width = all->size() / batch / length;
  size_t i = 0;
  for (int row = 0; row < batch; ++row) {
    for (const int32_t position : positions) {
      float* const to = all->data() + (size_t{1} * row * length + position) * width;
      for (size_t column = 0; column < width; ++column) to[column] += values[i++];
    }
  }
}

// Each rank holds the tokens at its positions, as queries and as keys; it goes round the ring from
// its own keys. Out, log_sum_exp, and the gradients of queries and of keys_values, of the whole
// row.
template <typename T, typename Runner>
Outputs<float> RingAttention(Runner& runner, const WholeAttention<T>& whole,
                             const std::vector<Positions>& ranks) {
  const AttentionShape& shape = whole.shape;
  const size_t tokens = size_t{1} * shape.batch * shape.sequence_length;
  const size_t width = whole.out_width();
  Outputs<float> result = {
      std::vector<float>(tokens * width), std::vector<float>(tokens * shape.heads),
      std::vector<float>(tokens * width), std::vector<float>(tokens * (shape.qkv_width() - width))};
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<AttentionPart> parts;
    for (size_t step = 0; step < ranks.size(); ++step) {
      parts.push_back(whole.Part(ranks[rank], ranks[(rank + ranks.size() - step) % ranks.size()]));
    }
    Outputs<float> merged(2);
    for (const AttentionPart& part : parts) {
      runner.Merge(part, runner.Forward(part), &part == &parts[0], &merged);
    }
    merged[0] = Load(Store<T>(merged[0]));
    const auto dout = whole.TakeTokens(whole.dout, ranks[rank], 0, width);
    Outputs<float> sums = {std::vector<float>(dout.size()), {}};
    for (const AttentionPart& part : parts) {
      sums[1].assign(part.keys_values.size(), 0.0f);
      runner.BackwardAdd(part, merged, dout, &sums);
      AddTokens(sums[1], shape.batch, shape.sequence_length, part.key_positions, &result[3]);
    }
    AddTokens(merged[0], shape.batch, shape.sequence_length, ranks[rank], &result[0]);
    AddTokens(sums[0], shape.batch, shape.sequence_length, ranks[rank], &result[2]);
    // (batch, heads, tokens): a head is a row.
    AddTokens(merged[1], shape.batch * shape.heads, shape.sequence_length, ranks[rank], &result[1]);
  }
  for (const size_t gradients : {2, 3}) result[gradients] = Load(Store<T>(result[gradients]));
  return result;
}

// The terms of a score's gradient, whose difference is 0 where a query sees one key: dout v and
// dout out, times a key, of vectors with elements of about 1.
inline double ScoreGradientTerms(const AttentionShape& shape, const std::vector<float>& dout) {
  double squares = 0;
  for (const float value : dout) squares += double{value} * value;
  return std::sqrt(squares * shape.head_size);
}

template <typename T, typename Runner>
void CheckRing(Runner& runner, const AttentionShape& shape, const std::vector<int>& lengths,
               const std::vector<Positions>& ranks) {
  CAPTURE(shape.batch, shape.sequence_length, shape.heads, shape.kv_heads, shape.head_size, lengths,
          ranks.size(), ranks[0]);
  const WholeAttention<T> whole(shape, lengths);
  const AttentionPart alone = whole.Part(whole.All(), whole.All());
  const auto judge = [&](double factor, size_t first) {
    Compare<T>(
        factor,
        [&] {
          const auto outputs = RingAttention(runner, whole, ranks);
          return Outputs<float>{outputs[first], outputs[first + 1]};
        },
        [&](auto zero) {
          const auto forward = ReferenceForward<decltype(zero)>(alone);
          return first == 0 ? forward : ReferenceBackward(alone, forward, whole.dout);
        },
        first == 0 ? std::vector<size_t>{1} : std::vector<size_t>{},
        first == 0 ? 0 : ScoreGradientTerms(shape, whole.dout));
  };
  judge(kForward, 0);
  judge(kBackward, 2);
}

// Chunk `index` of `count` of a row, as even as it goes.
inline Positions Chunk(int length, int index, int count) {
  Positions positions(length * (index + 1) / count - length * index / count);
  std::iota(positions.begin(), positions.end(), length * index / count);
  return positions;
}
// The ranks' tokens: one chunk each.
inline std::vector<Positions> Contiguous(int length, int ranks) {
  std::vector<Positions> result;
  for (int rank = 0; rank < ranks; ++rank) result.push_back(Chunk(length, rank, ranks));
  return result;
}
// Chunks r and 2n - 1 - r, so that all ranks have as much to do.
inline std::vector<Positions> ZigZag(int length, int ranks) {
  std::vector<Positions> result;
  for (int rank = 0; rank < ranks; ++rank) {
    result.push_back(Chunk(length, rank, 2 * ranks));
    const Positions second = Chunk(length, 2 * ranks - 1 - rank, 2 * ranks);
    result.back().insert(result.back().end(), second.begin(), second.end());
  }
  return result;
}
// Some tokens of a row, each with the given chance, at least one.
inline Positions Some(int length, double chance, uint64_t seed) {
  const auto numbers = Numbers(length, seed);
  Positions positions;
  for (int i = 0; i < length; ++i) {
    if (numbers[i] < 2 * chance - 1) positions.push_back(i);
  }
  if (positions.empty()) positions.push_back(length / 2);
  return positions;
}

}  // namespace convene::worker::testing
