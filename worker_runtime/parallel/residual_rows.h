// The residual stream's rows on one tensor-parallel rank. Without sequence parallelism every rank
// of the group holds all rows. With it (Korthikanti et al. 2022, "Reducing Activation Recomputation
// in Large Transformer Models", section 4.2.2) each holds 1/tp of them, and so of the norms' work
// and memory; a sum over the group becomes a reduce-scatter, and an all-gather comes before each
// product that wants all rows: the same bytes on the wire.
#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tools/base/check.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/device/stream.h"

namespace convene::worker {

// Works on tensors of (rows, columns) elements of float or BFloat16: all rows of a microbatch, of
// which this rank's lie in their place. Borrows the communicator. A cheap value.
class ResidualRows {
 public:
  // `keeps_summands`: Sum leaves each rank its own summand, and a later Sum of other rows adds
  // these up with more. REQUIRES: where the rows are split, they are divisible by tp.size().
  ResidualRows(int rows, int columns, bool is_split, Collective& tp, bool keeps_summands = false)
      : own_(is_split ? rows / tp.size() : rows),
        count_(static_cast<size_t>(rows) * columns),
        own_begin_(is_split ? count_ / tp.size() * tp.rank() : 0),
        is_split_(is_split),
        keeps_summands_(keeps_summands),
        tp_(&tp) {
    CONVENE_CHECK(!is_split || rows % tp.size() == 0);
  }

  int own() const { return own_; }         // how many rows this rank holds
  size_t count() const { return count_; }  // elements of all rows
  size_t own_count() const { return is_split_ ? count_ / tp_->size() : count_; }
  bool is_split() const { return is_split_; }
  Collective& tp() const { return *tp_; }

  // Where this rank's rows begin.
  template <typename T>
  T* Own(T* all) const {
    return all + own_begin_;
  }
  // Every rank has filled in its own rows: now all have all. Errors: the collective's.
  template <typename T>
  absl::Status Gather(T* all, Stream& stream) const {
    if (!is_split_) return absl::OkStatus();
    return tp_->AllGather(absl::MakeSpan(all, count_), stream);
  }
  // Every rank has a summand for all rows: now each has the sum for its own. Errors: the
  // collective's.
  template <typename T>
  absl::Status Sum(T* all, Stream& stream) const {
    if (keeps_summands_) return absl::OkStatus();
    const absl::Span<T> data = absl::MakeSpan(all, count_);
    return is_split_ ? tp_->ReduceScatter(data, ReduceOp::kSum, stream)
                     : tp_->AllReduce(data, ReduceOp::kSum, stream);
  }

 private:
  int own_;
  size_t count_;      // elements of all rows
  size_t own_begin_;  // elements
  bool is_split_;
  bool keeps_summands_;
  Collective* tp_;
};

}  // namespace convene::worker
