#include <algorithm>
#include <cmath>
#include <cstring>

#include "tools/base/rounding.h"
#include "worker_runtime/ops/adamw.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/matmul.h"
#include "worker_runtime/ops/muon.h"
#include "worker_runtime/ops/sgd.h"
#include "worker_runtime/optimizer/update_rule.h"

namespace convene::worker {
namespace {

constexpr int kIterations = 5;
constexpr float kCoefficients[] = {3.4445f, -4.7750f, 2.0315f};

struct MuonFactors {
  AdamWFactors adamw;  // first: AdamW reads its factors where a rule's begin
  MomentumFactors momentum;
  DescentFactors descent;
};

const MuonFactors* FactorsOfPiece(const UpdateRule::Piece& piece) {
  return reinterpret_cast<const MuonFactors*>(piece.factors);
}

// Quintic Newton-Schulz, which brings all singular values near to 1; times `scale`. A tall matrix
// is multiplied from the right, so that the square is of the shorter side.
template <typename T>
void Iterate(const MatrixRule::Matrix& matrix, float scale, Stream& stream) {
  const auto [a, b, c] = kCoefficients;
  const int rows = matrix.rows;
  const int columns = matrix.columns;
  const bool is_tall = rows > columns;
  const int side = std::min(rows, columns);
  const int64_t count = int64_t{rows} * columns;
  T* const x = matrix.values.As<T>().data();
  T* const square = matrix.square.As<T>().data();
  float* const product = matrix.product;
  for (int i = 0; i < kIterations; ++i) {
    const float factor = i + 1 == kIterations ? scale : 1.0f;
    MatMul(is_tall ? Transpose::kYes : Transpose::kNo, is_tall ? Transpose::kNo : Transpose::kYes,
           side, side, is_tall ? rows : columns, x, x, 0, square, stream);
    MatMul(Transpose::kNo, Transpose::kNo, side, side, side, square, square, 0, product, stream);
    Combine(int64_t{side} * side, b, c, product, square, stream);
    MatMul(Transpose::kNo, Transpose::kNo, rows, columns, side, is_tall ? x : square,
           is_tall ? square : x, 0, product, stream);
    Combine(count, factor * a, factor, product, x, stream);
  }
}

class MuonMatrices final : public MatrixRule {
 public:
  size_t states() const override { return 1; }
  void Direct(const UpdateRule::Piece& piece, Stream& stream) const override {
    Momentum(piece.count, &FactorsOfPiece(piece)->momentum, piece.control, piece.flags,
             piece.master, piece.gradients, piece.states[0], stream);
  }
  void Transform(const Matrix& matrix, Stream& stream) const override {
    // As large as AdamW's usual steps (Liu et al. 2025, section 2.2).
    const auto scale = static_cast<float>(0.2 * std::sqrt(std::max(matrix.rows, matrix.columns)));
    const int64_t count = int64_t{matrix.rows} * matrix.columns;
    const bool is_float = matrix.values.dtype == DType::kFloat32;
    if (is_float) {
      Copy(count, matrix.values.As<float>().data(), matrix.product, stream);
    } else {
      ToFloat(count, matrix.values.As<BFloat16>().data(), matrix.product, stream);
    }
    SumOfSquares(RoundUp(count, kFlagBlock), matrix.product, matrix.flags, matrix.sum_of_squares,
                 matrix.workspace, stream);
    const auto finish = [&](auto* x) {
      ScaleToUnit(count, matrix.product, matrix.sum_of_squares, x, stream);
      Iterate<std::remove_pointer_t<decltype(x)>>(matrix, scale, stream);
    };
    if (is_float) return finish(matrix.values.As<float>().data());
    finish(matrix.values.As<BFloat16>().data());
  }
  void Descend(const UpdateRule::Piece& piece, Stream& stream) const override {
    const auto descend = [&](auto* weights) {
      worker::Descend(piece.count, &FactorsOfPiece(piece)->descent, piece.control, piece.flags,
                      piece.gradients, piece.master, weights, stream);
    };
    if (piece.weights.dtype == DType::kFloat32) return descend(piece.weights.As<float>().data());
    descend(piece.weights.As<BFloat16>().data());
  }
};

class MuonUpdate final : public UpdateRule {
 public:
  const char* name() const override { return "muon"; }
  // Of a matrix the first one is the momentum.
  absl::Span<const char* const> states() const override { return AdamWRule().states(); }
  const MatrixRule* matrices() const override {
    static const MuonMatrices matrices;
    return &matrices;
  }
  Factors FactorsOf(const UpdateParameters& parameters) const override {
    const MuonFactors muon = {.adamw = MakeAdamWFactors(parameters),
                              .momentum = {.momentum = static_cast<float>(parameters.momentum),
                                           .decay = 0,
                                           .nesterov = parameters.nesterov ? 1 : 0},
                              .descent = {.step_size = static_cast<float>(parameters.learning_rate),
                                          .decay = static_cast<float>(parameters.weight_decay)}};
    Factors factors = {};
    static_assert(sizeof(muon) <= sizeof(factors));
    std::memcpy(factors.bytes, &muon, sizeof(muon));
    return factors;
  }
  void Update(const Piece& piece, Stream& stream) const override {
    AdamWRule().Update(piece, stream);
  }
};

}  // namespace

const UpdateRule& MuonRule() {
  static const MuonUpdate rule;
  return rule;
}

}  // namespace convene::worker
