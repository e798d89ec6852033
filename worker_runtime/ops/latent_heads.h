// The heads of multi-head latent attention (DeepSeek-V2, 2024, section 2.1), put together for
// attention and for rotary positions, and their gradients taken apart.
//
//   queries       a head: plain | rotary          becomes  rotary | plain
//   keys, values  a head: plain | value           becomes  rotary | plain, and value | zeros
//   rotary key    one a token, of all heads
//
// The rotary elements come as interleaved pairs (2 i, 2 i + 1), and go as halves (ops/rope.h): a
// dot product of a query and a key is the same. Values get zeros up to the keys' size, so that all
// of attention has one size: at DeepSeek's 192 and 128 that is half as many multiplications again
// in the products with values, and half as much memory again for values and attention's output.
// T: float or BFloat16.
#pragma once

#include <cstdint>

#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// REQUIRES: rotary is even; value is at most head_size().
struct LatentHeads {
  int rows = 0;
  int heads = 0;
  int plain = 0;  // elements of a head
  int rotary = 0;
  int value = 0;

  int head_size() const { return plain + rotary; }
};

// queries: rows `query_stride` elements apart; keys_values: (rows, heads * (plain + value));
// rotary_key: rows `rotary_stride` elements apart. qkv: (rows, 3 heads * head_size), as attention
// takes it (Fused).
template <typename T>
void LatentHeadsForward(const LatentHeads& shape, const T* queries, int query_stride,
                        const T* keys_values, const T* rotary_key, int rotary_stride, T* qkv,
                        Stream& stream);

// The gradients, overwritten; of the rotary key it is the sum over the heads, added in float. The
// same bits for the same input.
template <typename T>
void LatentHeadsBackward(const LatentHeads& shape, const T* dqkv, T* dqueries, int query_stride,
                         T* dkeys_values, T* drotary_key, int rotary_stride, Stream& stream);

}  // namespace convene::worker
