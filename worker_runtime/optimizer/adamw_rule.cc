#include <cstring>

#include "worker_runtime/ops/adamw.h"
#include "worker_runtime/optimizer/update_rule.h"

namespace convene::worker {
namespace {

class AdamWUpdate final : public UpdateRule {
 public:
  const char* name() const override { return "adamw"; }
  absl::Span<const char* const> states() const override {
    static constexpr const char* kStates[] = {"first_moment", "second_moment"};
    return kStates;
  }
  Factors FactorsOf(const UpdateParameters& parameters) const override {
    const AdamWFactors adamw = MakeAdamWFactors(parameters);
    Factors factors = {};
    static_assert(sizeof(adamw) <= sizeof(factors));
    std::memcpy(factors.bytes, &adamw, sizeof(adamw));
    return factors;
  }
  void Update(const Piece& piece, Stream& stream) const override {
    const auto* const factors = reinterpret_cast<const AdamWFactors*>(piece.factors);
    const auto update = [&](auto* weights) {
      AdamW(piece.count, factors, piece.control, piece.flags, piece.gradients, piece.master,
            weights, piece.states[0], piece.states[1], stream);
    };
    if (piece.weights.dtype == DType::kFloat32) return update(piece.weights.As<float>().data());
    update(piece.weights.As<BFloat16>().data());
  }
};

}  // namespace

const UpdateRule& AdamWRule() {
  static const AdamWUpdate rule;
  return rule;
}

}  // namespace convene::worker
