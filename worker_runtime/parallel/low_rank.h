// Low-rank adapters of linear layers (Hu et al. 2021, "LoRA", section 4): beside a frozen weight W
// two small matrices learn, and the layer makes y = W x + scale B A x. A layer whose weight holds
// several matrices (query, key and value; gate and up) has an adapter of its own for each of them,
// or for some. All A of a layer lie one behind the other, so that one product makes all A x; their
// B are spread into one matrix of blocks, with zeros between them, for the other products:
//
//                               inner = A x          y += inner spread^T
//   spread =  B of q   0    0
//               0    B of k 0   inner_gradient = dy spread      dA = inner_gradient^T x
//               0      0  B of v                     dx += inner_gradient A      dspread = dy^T
//               inner
//
// Over tp the layer's cut decides. A column-parallel layer's rank has all of A, and of B the rows
// that are its outputs; a row-parallel layer's rank has of A the columns that are its inputs, and
// all of B. So a rank's summand stays a summand, and no pass has a collective more. Of the factor
// that all ranks have, each makes a part of the gradient (ParameterSlice::tp_copies).
//
// Experts have such a layer each, with rows of its own; their factors, and what is spread of them,
// lie expert behind expert.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/ops/dropout.h"
#include "worker_runtime/parallel/linear_shape.h"

namespace convene::worker {

// One adapter: a run of the layer's outputs on this rank, and where its factors begin.
struct LowRankPart {
  int first_out = 0;
  int out = 0;
  int first_b_row = 0;  // of its B in all B
  int first_rank = 0;   // of its A in all A
};

// The adapters of one layer in one pass. Borrowed, in the device's memory; a cheap value. By
// default there are none. All layers share the scratch.
template <typename T>
struct LowRank {
  absl::Span<const LowRankPart> parts;  // in the order of their outputs; empty: no adapter
  int rank = 0;                         // of each adapter
  int ranks = 0;                        // of all of them together
  float scale = 0;
  // Of the experts' layers: GroupedMatMul's rows of each. Then all that is said of factors, and of
  // `parts`, holds of each expert, and calls take all rows. Empty: one layer.
  absl::Span<const int32_t> groups;
  const T* a = nullptr;  // (ranks, in)
  const T* b = nullptr;  // (outputs of all parts, rank)
  WeightGradient da;
  WeightGradient db;
  // Where it is on, A takes x with some numbers 0: y = W x + scale B A dropout(x).
  DropoutMask dropout = {};
  // Scratch.
  T* dropped = nullptr;              // (rows, in), where the mask is on
  T* spread = nullptr;               // (out, ranks), with the scale
  T* inner = nullptr;                // (rows, ranks)
  T* inner_gradient = nullptr;       // (rows, ranks)
  float* spread_gradient = nullptr;  // (out, ranks)
  float* b_gradient = nullptr;       // as `b`
  Device* device = nullptr;

  bool is_on() const { return !parts.empty(); }
  int layers() const { return groups.empty() ? 1 : static_cast<int>(groups.size()) - 1; }
};

// All calls do nothing where there is no adapter. x and dx: (rows, in); y and dy: (rows, out).

// Fills `spread`, which the calls below read: once a pass of the layer.
template <typename T>
void SpreadLowRank(const LinearShape& shape, const LowRank<T>& adapter, Stream& stream);

// y += scale B A x, of shape.rows rows from `first_row` on, which are x's and y's first.
template <typename T>
void AddLowRank(const LinearShape& shape, const LowRank<T>& adapter, int first_row, const T* x,
                T* y, Stream& stream);

// `inner_gradient`, of all rows.
template <typename T>
void LowRankInnerGradient(const LinearShape& shape, const LowRank<T>& adapter, const T* dy,
                          Stream& stream);
// The gradients of A and B, by `inner_gradient`.
template <typename T>
void LowRankGradients(const LinearShape& shape, const LowRank<T>& adapter, const T* x, const T* dy,
                      Stream& stream);
// dx += inner_gradient A, of shape.rows rows from `first_row` on, which is dx's first.
template <typename T>
void AddLowRankInputGradient(const LinearShape& shape, const LowRank<T>& adapter, int first_row,
                             T* dx, Stream& stream);

}  // namespace convene::worker
