// The attention of one query, as of a token that goes on with a text. It meets each key once, so
// the keys are read where they stand: packing them takes several times as long as all that follows.
#pragma once

#include <cstddef>

namespace convene::worker::cpu {

struct QueryShape {
  int keys = 0;  // all of them seen
  int head_size = 0;
  float cap = 0;  // AttentionShape::score_cap
};

// Of one head: rows of head_size elements, so many elements apart.
template <typename T>
struct KeysInPlace {
  const T* keys = nullptr;
  ptrdiff_t key_stride = 0;
  const T* values = nullptr;
  ptrdiff_t value_stride = 0;
};

// The keys between two steps of the online softmax.
inline constexpr int kScores = 128;

// query: (head_size), already scaled. Overwrites max and sum, of the scores and of their
// exponentials, and out: (head_size), the values' sum by these exponentials. scores: scratch of
// kScores. No key: -infinity, 0 and zeros.
template <typename T>
void QueryAttention(const QueryShape& shape, const float* query, const KeysInPlace<T>& keys,
                    float* scores, float* max, float* sum, float* out);

}  // namespace convene::worker::cpu
