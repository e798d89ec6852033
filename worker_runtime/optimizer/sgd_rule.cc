#include <cstring>

#include "worker_runtime/ops/sgd.h"
#include "worker_runtime/optimizer/update_rule.h"

namespace convene::worker {
namespace {

struct SgdFactors {
  MomentumFactors momentum;
  DescentFactors descent;
};

class SgdUpdate final : public UpdateRule {
 public:
  explicit SgdUpdate(bool keeps_momentum) : keeps_momentum_(keeps_momentum) {}

  const char* name() const override { return "sgd"; }
  absl::Span<const char* const> states() const override {
    static constexpr const char* kStates[] = {"momentum"};
    return absl::MakeConstSpan(kStates, keeps_momentum_ ? 1 : 0);
  }
  Factors FactorsOf(const UpdateParameters& parameters) const override {
    const SgdFactors sgd = {
        .momentum = {.momentum = static_cast<float>(parameters.momentum),
                     .decay = static_cast<float>(parameters.weight_decay),
                     .nesterov = parameters.nesterov ? 1 : 0},
        .descent = {.step_size = static_cast<float>(parameters.learning_rate), .decay = 0}};
    Factors factors = {};
    static_assert(sizeof(sgd) <= sizeof(factors));
    std::memcpy(factors.bytes, &sgd, sizeof(sgd));
    return factors;
  }
  void Update(const Piece& piece, Stream& stream) const override {
    const auto* const factors = reinterpret_cast<const SgdFactors*>(piece.factors);
    Momentum(piece.count, &factors->momentum, piece.control, piece.flags, piece.master,
             piece.gradients, keeps_momentum_ ? piece.states[0] : nullptr, stream);
    const auto descend = [&](auto* weights) {
      Descend(piece.count, &factors->descent, piece.control, piece.flags, piece.gradients,
              piece.master, weights, stream);
    };
    if (piece.weights.dtype == DType::kFloat32) return descend(piece.weights.As<float>().data());
    descend(piece.weights.As<BFloat16>().data());
  }

 private:
  const bool keeps_momentum_;
};

}  // namespace

const UpdateRule& SgdRule() {
  static const SgdUpdate rule(/*keeps_momentum=*/true);
  return rule;
}

const UpdateRule& PlainSgdRule() {
  static const SgdUpdate rule(/*keeps_momentum=*/false);
  return rule;
}

}  // namespace convene::worker
