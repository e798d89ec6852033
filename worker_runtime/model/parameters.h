// PURE. The parameters that a rank holds: their global names and boxes, and their places in its
// flat buffer.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"

namespace convene::worker {

// Elements. Every matrix of a product starts at a multiple of it in the flat buffer: at a cache
// line in any type, and so that one flag can speak for each block of so many elements
// (ops/elementwise.h, kFlagBlock).
inline constexpr int64_t kParameterAlignment = 64;

enum class Initializer { kOnes, kNormal };

// One rank's slice of one named tensor. Names and the [out, in] orientation are Hugging Face's
// (LlamaForCausalLM).
struct ParameterSlice {
  std::string name;                     // "model.layers.3.self_attn.q_proj.weight"
  std::array<int64_t, 2> global_shape;  // (rows, columns); a vector is (1, columns)
  std::array<int64_t, 2> offset;        // of the slice in the global tensor
  std::array<int64_t, 2> extent;        // of the slice
  int64_t flat_offset = 0;              // first element in the rank's flat buffer
  bool decayed = true;                  // weight decay applies (matrices)
  // Counted in the global gradient norm and written to checkpoints by this rank: false for all but
  // one of the ranks that hold the same slice because of tensor parallelism (norms) or tied
  // embeddings (the last stage's copy).
  bool owned = true;
  Initializer initializer = Initializer::kNormal;
  double standard_deviation = 0;

  int64_t count() const { return extent[0] * extent[1]; }
};

// Offsets into the flat buffer of one transformer block's parameters, fused where the forward pass
// multiplies once.
struct BlockParameters {
  int64_t attention_norm = 0;  // (hidden)
  int64_t qkv =
      0;  // ((heads + 2 kv_heads) / tp * head_size, hidden): query rows, key rows, value rows
  int64_t attention_out = 0;  // (hidden, heads / tp * head_size)
  int64_t mlp_norm = 0;       // (hidden)
  int64_t gate_up = 0;        // (2 ffn / tp, hidden): gate rows, up rows
  int64_t down = 0;           // (hidden, ffn / tp)
};

// Whole neighbouring groups of parameters (the norms with the embedding; a block's matrices; the
// head), which data-parallel ranks reduce and gather by one collective. Elements of the flat
// buffer, both divisible by dp * kParameterAlignment.
struct ParameterBucket {
  int64_t begin = 0;
  int64_t count = 0;

  int64_t end() const { return begin + count; }
};

struct ParameterTable {
  std::vector<ParameterSlice> slices;    // in flat order
  std::vector<ParameterBucket> buckets;  // in flat order: one ends where the next begins
  std::vector<BlockParameters> blocks;
  int64_t embedding = -1;   // (vocabulary / tp, hidden) on the first stage, else -1
  int64_t final_norm = -1;  // (hidden) on the last stage
  int64_t head =
      -1;  // (vocabulary / tp, hidden) on the last stage; equals `embedding` when tied on one stage
  // [0, norms_end) are all norms of this rank, side by side: every tensor-parallel rank holds the
  // same ones at the same places, so that one collective reaches them all.
  int64_t norms_end = 0;
  int64_t flat_count = 0;  // elements, padding included; divisible by dp * 64
  int first_layer = 0;     // global number of blocks[0]

  // First element of block i's matrices; for i = blocks.size(), the element after the last block's.
  // Forward passes use matrices in flat order, but for a tied head; backward passes the other way
  // round.
  int64_t BlockBegin(size_t i) const {
    if (i < blocks.size()) return blocks[i].qkv;
    return head > embedding ? head : flat_count;
  }
};

// The fewest elements of a bucket: few enough that most of a large model's reductions run beside
// its backward pass, enough that a ring of dp ranks has a message worth its latency. Megatron-LM's
// choice (megatron/core/distributed/distributed_data_parallel.py).
constexpr int64_t DefaultBucketCount(int dp) {
  return std::max<int64_t>(40'000'000, int64_t{1'000'000} * dp);
}

// Buckets have at least `bucket_count_min` elements (0: DefaultBucketCount), but the first one has
// the rest; there is one bucket where dp is 1, and on all stages but the first. REQUIRES:
// ValidateModel(config, layout) is OK.
ParameterTable BuildParameterTable(const ModelConfig& config, const Layout& layout,
                                   const Coordinate& coordinate, int64_t bucket_count_min = 0);

}  // namespace convene::worker
