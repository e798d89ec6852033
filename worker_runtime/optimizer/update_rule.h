// How a step changes weights. Another optimizer is a class behind this interface in a file beside
// this one, and the op of its arithmetic (ops/): which rank keeps which part of its state, in whose
// memory, checkpoints, offload and the memory plan are the caller's affair
// (shard/sharded_optimizer.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "worker_runtime/device/elements.h"
#include "worker_runtime/device/stream.h"
#include "worker_runtime/device/workspace.h"
#include "worker_runtime/ops/update.h"

namespace convene::worker {

class MatrixRule;

// Without a state of its own; any thread.
class UpdateRule {
 public:
  // The constants of one step, as the rule's op reads them.
  struct alignas(16) Factors {
    std::byte bytes[64];
  };

  // Elements of a shard, which may begin and end within a tensor: arrays of `count`, a multiple of
  // kFlagBlock, and one each of factors and control, in memory of the stream's device.
  struct Piece {
    int64_t count = 0;
    const Factors* factors = nullptr;
    const StepControl* control = nullptr;
    const uint8_t* flags = nullptr;  // (count / kFlagBlock), see ParameterFlag
    float* gradients = nullptr;      // the rule may overwrite them
    float* master = nullptr;         // the fp32 weights
    // They become the masters, rounded. Of fp32 they are the masters.
    Elements weights;
    // One array for each of states(), of matrices for the first MatrixRule::states() of them. The
    // pointers themselves are gone when Update returns; all other memory stays until the stream has
    // done the update.
    absl::Span<float* const> states;
  };

  virtual ~UpdateRule() = default;

  // As in --optimizer and in checkpoints.
  virtual const char* name() const = 0;

  // The fp32 numbers that the rule keeps for each element, by the names that they have in
  // checkpoints ("first_moment"). They start as zeros.
  virtual absl::Span<const char* const> states() const = 0;
  virtual Factors FactorsOf(const UpdateParameters& parameters) const = 0;
  // How the rule changes the matrices of blocks (ParameterSlice::is_matrix): each as a whole.
  // Update then has all other elements. Null: it makes no difference.
  virtual const MatrixRule* matrices() const { return nullptr; }
  // Updates the piece in place, unless control skips the step.
  virtual void Update(const Piece& piece, Stream& stream) const = 0;
};

// A step of matrices, in three halts: the first and the last see pieces of them, as
// UpdateRule::Update does, the one between sees each matrix whole. Any thread.
class MatrixRule {
 public:
  // In memory of the stream's device.
  struct Matrix {
    int rows = 0;
    int columns = 0;
    Elements values;  // (rows, columns), and more behind it
    // Scratch: the square of the shorter side, of the type of values; rows x columns up to a
    // multiple of kFlagBlock, with zeros behind rows x columns.
    Elements square;
    float* product = nullptr;
    double* sum_of_squares = nullptr;  // 0
    const uint8_t* flags = nullptr;    // kOwned, for all of `product`
    Workspace workspace;               // SumOfSquares' for all of `product`
  };

  virtual ~MatrixRule() = default;

  // Of a matrix' elements the first so many of UpdateRule::states() are kept; the others have no
  // memory.
  virtual size_t states() const = 0;
  // The piece's gradients become the directions, from which Transform makes the steps.
  virtual void Direct(const UpdateRule::Piece& piece, Stream& stream) const = 0;
  virtual void Transform(const Matrix& matrix, Stream& stream) const = 0;
  // The weights follow the piece's gradients, which are what Transform made.
  virtual void Descend(const UpdateRule::Piece& piece, Stream& stream) const = 0;
};

// ops/adamw.h.
const UpdateRule& AdamWRule();
// ops/sgd.h: torch.optim.SGD, whose weight decay is part of the gradient.
const UpdateRule& SgdRule();
// SGD with momentum 0, under the same name: the rule keeps nothing.
const UpdateRule& PlainSgdRule();
// Muon (Jordan et al. 2024) for the matrices of blocks, with five Newton-Schulz iterations in the
// type of the parameters (bf16, or fp32 where they are fp32), as torch.optim.Muon with
// adjust_lr_fn="match_rms_adamw" (Liu et al. 2025, section 2.2): one learning rate serves both.
// AdamW for the rest.
const UpdateRule& MuonRule();

}  // namespace convene::worker
