// Attention in bfloat16 by cuDNN: its graphs, one per shape and pass (and rounded number of packed
// documents), built once.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/cuda/attention/plan_key.h"
#include "worker_runtime/ops/cuda/attention/workspace_bytes.h"

namespace convene::worker::cuda {

// Belongs to a queue: queue.plans<AttentionPlans>(). Contracts of the passes in ops/attention.h.
class AttentionPlans {
 public:
  explicit AttentionPlans(Queue& queue);
  ~AttentionPlans();
  AttentionPlans(const AttentionPlans&) = delete;
  AttentionPlans& operator=(const AttentionPlans&) = delete;

  // Whether cuDNN can do it here; else Unimplemented, with its reason, which is also logged once.
  // `document_count`: Documents::count. The first question about a shape builds the graph, which
  // takes up to seconds: before a step is captured.
  absl::Status Support(const AttentionShape& shape, const HeadStrides& strides, int document_count,
                       AttentionPass pass);
  // Scratch that cuDNN takes. REQUIRES: Support() of the same is OK.
  size_t WorkspaceBytes(const AttentionShape& shape, const HeadStrides& strides, int document_count,
                        AttentionPass pass);

  // REQUIRES: Support() of the same is OK, all pointers are multiples of 16 bytes. Errors are
  // reported to the queue. Where `workspace` is too small, scratch of the queue's own is taken at
  // the first call and kept. `gradients` have the strides of `qkv`, of a part PartGradientStrides.
  void Forward(const AttentionShape& shape, const Documents& documents,
               const QueriesKeysValues<const BFloat16>& qkv, BFloat16* out, float* log_sum_exp,
               const Workspace& workspace);
  void Backward(const AttentionShape& shape, const Documents& documents,
                const QueriesKeysValues<const BFloat16>& qkv, const BFloat16* out,
                const float* log_sum_exp, const BFloat16* dout,
                const QueriesKeysValues<BFloat16>& gradients, const Workspace& workspace);

  // From now on Support() is never OK: for tests and benchmarks of our own kernels.
  void ForbidCudnn() { forbidden_ = true; }
  // From now on one call keeps no more than `bytes` of scores: for tests of several calls.
  void LimitScores(size_t bytes) { scores_bytes_max_ = bytes; }

 private:
  struct Plan;  // the only place that knows cudnn-frontend
  struct Tensor;

  Plan& Find(const AttentionShape& shape, const HeadStrides& strides, int document_count,
             AttentionPass pass);
  absl::Status Build(Plan& plan);
  void Warn(const Plan& refused) const;
  void Execute(Plan& plan, const Documents& documents, const std::vector<Tensor>& tensors,
               const Workspace& workspace);
  void* Place(const Workspace& workspace, size_t bytes);

  Queue& queue_;
  bool forbidden_ = false;
  size_t scores_bytes_max_ = kLargestScoresBytes;
  // The list stays short: two plans for each shape of a training, and for each power of two of
  // packed documents.
  std::vector<std::unique_ptr<Plan>> plans_;
  void* own_scratch_ = nullptr;
  size_t own_scratch_bytes_ = 0;
};

}  // namespace convene::worker::cuda
