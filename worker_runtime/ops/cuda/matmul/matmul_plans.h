// The chosen algorithm of every product that a queue has seen.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "worker_runtime/device/cuda/queue.h"
#include "worker_runtime/ops/cuda/matmul/plan_choice.h"
#include "worker_runtime/ops/cuda/matmul/problem.h"
#include "worker_runtime/ops/matmul_choices.h"

namespace convene::worker::cuda {

// How all queues of this process choose; kTimed unless set. Products already seen in another mode
// are chosen anew. Thread-safe.
void SetMatMulMode(MatMulMode mode);
MatMulMode CurrentMatMulMode();
// From now on `choices`, which outlive the products, remember the algorithms that kTimed chooses;
// null: nobody does. Thread-safe.
void SetMatMulChoices(MatMulChoices* choices);
// "cuBLASLt 130101".
std::string CublasLtVersion();

struct MatMulOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const float* inverse_a = nullptr;  // of 8-bit operands: Float8Operand::inverse
  const float* inverse_b = nullptr;
};

// Belongs to a queue: queue.plans<MatMulPlans>().
class MatMulPlans {
 public:
  explicit MatMulPlans(Queue& queue) : queue_(queue) {}

  // Queues c = op(a) op(b) + beta * c. Errors are reported to the queue. The first product of a
  // kind asks cuBLASLt for candidates and, in the mode kTimed, takes the one that the process's
  // MatMulChoices know, or else runs each several times in the queue and waits for it: before a
  // step is captured. In a stream that is being captured nothing can be timed: the first candidate.
  // `key.mode` is ignored: the process's mode counts.
  void Run(MatMulKey key, const MatMulOperands& operands);
  // The same for a product of which one size, key.*rows, is another one at each call: by the
  // library's first candidate for the largest power of two up to that size, or, where this
  // algorithm does not take the product, for the product itself. So the choice follows from the
  // product alone, and the memory of choices stays small.
  void RunRows(MatMulKey key, int MatMulKey::*rows, const MatMulOperands& operands);
  // How often the library was asked for candidates, which takes longer than to queue a product.
  int asked() const { return asked_; }

 private:
  struct Plan {
    explicit Plan(const MatMulKey& key) : problem(key) {}
    MatMulProblem problem;
    cublasLtMatmulAlgo_t algorithm = {};
  };

  // Null after an error, which is reported (once: the kind is then known to have none).
  Plan* Find(MatMulKey key, const MatMulOperands& operands);
  std::unique_ptr<Plan> Make(const MatMulKey& key, const MatMulOperands& operands);
  cublasStatus_t Launch(const Plan& plan, const MatMulOperands& operands);
  bool IsBeingCaptured();

  Queue& queue_;
  absl::flat_hash_map<MatMulKey, std::unique_ptr<Plan>> plans_;
  int asked_ = 0;
};

}  // namespace convene::worker::cuda
