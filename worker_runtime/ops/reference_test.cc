// The judge is judged: the reference's backward passes are the slopes of its forward passes.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "worker_runtime/ops/testing/ops_testing.h"
#include "worker_runtime/ops/testing/reference/activation.h"
#include "worker_runtime/ops/testing/reference/attention.h"
#include "worker_runtime/ops/testing/reference/attention_sink.h"
#include "worker_runtime/ops/testing/reference/cross_entropy.h"
#include "worker_runtime/ops/testing/reference/embedding.h"
#include "worker_runtime/ops/testing/reference/layer_norm.h"
#include "worker_runtime/ops/testing/reference/rms_norm.h"
#include "worker_runtime/ops/testing/reference/rope.h"
#include "worker_runtime/ops/testing/reference/router.h"

namespace convene::worker {
namespace {

using testing::CheckGradient;
using Vector = std::vector<double>;

Vector Doubles(size_t count, uint64_t seed) {
  return testing::As<double>(testing::Numbers(count, seed, 1.5f));
}

TEST_CASE("RMSNorm's backward pass is its slope") {
  const int rows = 3;
  const int columns = 5;
  const Vector x = Doubles(rows * columns, 1);
  const Vector weight = Doubles(columns, 2);
  const double epsilon = 0.01;
  const auto run = [&](const Vector& x, const Vector& weight, Vector* inverse_rms) {
    Vector y(rows * columns);
    inverse_rms->resize(rows);
    reference::RmsNormForward(rows, columns, x.data(), weight.data(), epsilon, y.data(),
                              inverse_rms->data());
    return y;
  };
  const auto backward = [&](const Vector& dy, bool of_weight) {
    Vector inverse_rms;
    run(x, weight, &inverse_rms);
    Vector dx(rows * columns), dweight(columns);
    reference::RmsNormBackward(rows, columns, x.data(), weight.data(), inverse_rms.data(),
                               dy.data(), dx.data(), dweight.data());
    return of_weight ? dweight : dx;
  };
  Vector unused;
  CheckGradient(
      x, [&](const Vector& x) { return run(x, weight, &unused); },
      [&](const Vector& dy) { return backward(dy, false); });
  CheckGradient(
      weight, [&](const Vector& weight) { return run(x, weight, &unused); },
      [&](const Vector& dy) { return backward(dy, true); });
}

TEST_CASE("a router's backward pass is the slope of its weights and of its penalty") {
  const int rows_per_sequence = 2;
  const int32_t targets[] = {1, -1, 0, 2};
  for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    for (const bool normalizes : {false, true}) {
      const RouterShape shape = {.rows = 4,
                                 .experts = 5,
                                 .chosen = 2,
                                 .score = score,
                                 .normalizes = normalizes,
                                 .scale = 2.5f};
      const Vector logits = Doubles(4 * 5, 1);
      const Vector balance = Doubles(2 * 5, 2);
      std::vector<int32_t> experts(4 * 2);
      // The weights, and one number more: the penalty.
      const auto forward = [&](const Vector& logits) {
        Vector results(experts.size() + 1);
        reference::RouterForward(shape, logits.data(), nullptr, nullptr, experts.data(),
                                 results.data());
        Vector statistics(2 * 11);
        reference::RouterStatistics(shape, rows_per_sequence, logits.data(), experts.data(),
                                    targets, statistics.data());
        for (int sequence = 0; sequence < 2; ++sequence) {
          for (int i = 0; i < 5; ++i) {
            results.back() += balance[sequence * 5 + i] * statistics[sequence * 11 + 5 + i];
          }
          results.back() += statistics[sequence * 11 + 10];
        }
        return results;
      };
      forward(logits);
      CheckGradient(logits, forward, [&](const Vector& dy) {
        Vector its_balance = balance;
        for (double& slope : its_balance) slope *= dy.back();
        Vector dlogits(logits.size());
        reference::RouterBackward(shape, rows_per_sequence, logits.data(), experts.data(),
                                  dy.data(), its_balance.data(), 1.0f,
                                  static_cast<float>(dy.back()), targets, dlogits.data());
        return dlogits;
      });
    }
  }
}

TEST_CASE("RoPE's inverse is its slope's transpose") {
  const int sequence_length = 4;
  const int head_size = 6;
  const int heads = 2;
  Vector cosines(sequence_length * head_size / 2), sines(cosines.size());
  reference::RopeTable(sequence_length, head_size, 10.0, cosines.data(), sines.data());
  const int32_t begins[] = {0, 0, 2, 2};
  const int32_t* document_begin = nullptr;
  const auto turn = [&](Vector x, bool inverse) {
    reference::RopeApply(1, sequence_length, heads, head_size, head_size, heads * head_size,
                         cosines.data(), sines.data(), nullptr, document_begin, inverse, x.data());
    return x;
  };
  for (const int32_t* const documents : {static_cast<const int32_t*>(nullptr), begins + 0}) {
    document_begin = documents;
    CheckGradient(
        Doubles(sequence_length * heads * head_size, 1),
        [&](const Vector& x) { return turn(x, false); },
        [&](const Vector& dy) { return turn(dy, true); });
  }
}

TEST_CASE("LayerNorm's backward pass is its slope: input, weight and bias") {
  const int rows = 3;
  const int columns = 5;
  const double epsilon = 0.1;
  const Vector x = Doubles(rows * columns, 1);
  const Vector weight = Doubles(columns, 2);
  const Vector bias = Doubles(columns, 3);
  const auto forward = [&](const Vector& x, const Vector& weight, const Vector& bias) {
    Vector y(x.size());
    Vector statistics(2 * rows);
    reference::LayerNormForward(rows, columns, x.data(), weight.data(), bias.data(), epsilon,
                                y.data(), statistics.data());
    return std::pair(y, statistics);
  };
  const auto backward = [&](const Vector& dy) {
    std::vector<Vector> d = {Vector(x.size()), Vector(columns), Vector(columns)};
    reference::LayerNormBackward(rows, columns, x.data(), weight.data(),
                                 forward(x, weight, bias).second.data(), dy.data(), d[0].data(),
                                 d[1].data(), d[2].data());
    return d;
  };
  CheckGradient(
      x, [&](const Vector& x) { return forward(x, weight, bias).first; },
      [&](const Vector& dy) { return backward(dy)[0]; });
  CheckGradient(
      weight, [&](const Vector& weight) { return forward(x, weight, bias).first; },
      [&](const Vector& dy) { return backward(dy)[1]; });
  CheckGradient(
      bias, [&](const Vector& bias) { return forward(x, weight, bias).first; },
      [&](const Vector& dy) { return backward(dy)[2]; });
}

TEST_CASE("each activation's backward pass is its slope") {
  const Activation activation = GENERATE(Activation::kSwiglu, Activation::kGeglu,
                                         Activation::kClampedSwiglu, Activation::kGelu);
  const int rows = 2;
  const int width = 5;
  Vector gate_up = Doubles(rows * ActivationInputs(activation) * width, 1);
  if (activation == Activation::kClampedSwiglu) {
    for (double& value : gate_up) value *= 9;  // some behind the limits, none at one
  }
  CheckGradient(
      gate_up,
      [&](const Vector& gate_up) {
        Vector y(rows * width);
        reference::ActivationForward(activation, rows, width, gate_up.data(), y.data());
        return y;
      },
      [&](const Vector& dy) {
        Vector dgate_up(gate_up.size());
        reference::ActivationBackward(activation, rows, width, gate_up.data(), dy.data(),
                                      dgate_up.data());
        return dgate_up;
      });
}

TEST_CASE("embedding's backward pass is its slope") {
  const std::vector<int32_t> tokens = {3, 9, 4, 3, 0};
  CheckGradient(
      Doubles(4 * 3, 1),
      [&](const Vector& table) {
        Vector y(tokens.size() * 3);
        reference::EmbeddingForward(5, 3, 2, 6, tokens.data(), table.data(), false, y.data());
        return y;
      },
      [&](const Vector& dy) {
        Vector dtable(4 * 3);
        reference::EmbeddingBackward(5, 3, 2, 6, tokens.data(), dy.data(), dtable.data());
        return dtable;
      });
}

TEST_CASE("cross-entropy's gradient is the loss's slope") {
  const int rows = 3;
  const int columns = 7;
  const std::vector<int32_t> targets = {2, -1, 6};
  const auto run = [&](Vector logits, double gradient_scale, double* loss) {
    Vector row_max(rows), sums(2 * rows);
    reference::CrossEntropyStatistics(rows, 0, columns, targets.data(), logits.data(),
                                      row_max.data(), sums.data());
    *loss = reference::CrossEntropyLoss(rows, targets.data(), row_max.data(), sums.data());
    reference::CrossEntropyGradient(rows, 0, columns, targets.data(), row_max.data(), sums.data(),
                                    gradient_scale, logits.data());
    return logits;
  };
  const Vector logits = Doubles(rows * columns, 1);
  double loss = 0;
  CheckGradient(
      logits,
      [&](const Vector& logits) {
        run(logits, 1.0, &loss);
        return Vector{loss};
      },
      [&](const Vector& dy) { return run(logits, dy[0], &loss); });
}

TEST_CASE("attention's backward pass is its slope") {
  const auto begins = testing::DocumentBegins(2, 5, {3, 1});
  for (const int32_t* const documents : {static_cast<const int32_t*>(nullptr), begins.data()}) {
    for (const int keys : {0, 5}) {
      // As a part: the queries 1, 2, 4, 7, 8 of a row, of which it has the keys 2, 3, 4, 8, 9, not
      // the first query's.
      const int32_t query_positions[] = {1, 2, 4, 7, 8};
      const int32_t key_positions[] = {2, 3, 4, 8, 9};
      const AttentionShape shape = {.batch = 2,
                                    .sequence_length = 5,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_size = 4,
                                    .keys = keys};
      const AttentionPositions positions = shape.is_part()
                                               ? AttentionPositions{query_positions, key_positions}
                                               : AttentionPositions{};
      const size_t tokens = 10;
      Vector log_sum_exp(tokens * shape.heads);
      const auto forward = [&](const Vector& qkv) {
        Vector out(tokens * shape.heads * shape.head_size);
        reference::AttentionForward(shape, documents, positions, Fused(shape, qkv.data()),
                                    out.data(), log_sum_exp.data());
        return out;
      };
      const Vector qkv = Doubles(tokens * shape.qkv_width(), 1);
      CheckGradient(qkv, forward, [&](const Vector& dout) {
        const Vector out = forward(qkv);
        Vector dqkv(qkv.size());
        reference::AttentionBackwardAdd(shape, documents, positions, Fused(shape, qkv.data()),
                                        out.data(), log_sum_exp.data(), dout.data(),
                                        Fused(shape, dqkv.data()));
        return dqkv;
      });
      CHECK((log_sum_exp[0] == -INFINITY) == shape.is_part());
    }
  }
}

TEST_CASE("the gradients of attention with sinks are those of softmax with one more logit") {
  const AttentionShape shape = {2, 5, 4, 2, 4};
  const size_t tokens = 10;
  const size_t of_qkv = tokens * shape.qkv_width();
  // Queries, keys and values, and behind them the sinks.
  const Vector inputs = Doubles(of_qkv + shape.heads, 1);
  Vector log_sum_exp(tokens * shape.heads);
  const auto of_keys = [&](const Vector& inputs) {
    Vector out(tokens * shape.heads * shape.head_size);
    reference::AttentionForward(shape, nullptr, {}, Fused(shape, inputs.data()), out.data(),
                                log_sum_exp.data());
    return out;
  };
  const auto forward = [&](const Vector& inputs) {
    Vector out = of_keys(inputs);
    reference::ForQueries(shape, [&](ptrdiff_t head, ptrdiff_t statistic, ptrdiff_t first) {
      const double keys = std::exp(log_sum_exp[statistic]);
      for (int d = 0; d < shape.head_size; ++d) {
        out[first + d] *= keys / (keys + std::exp(inputs[of_qkv + head]));
      }
    });
    return out;
  };
  CheckGradient(inputs, forward, [&](const Vector& dout) {
    Vector out = of_keys(inputs);
    reference::AttentionSinkForward(shape, &inputs[of_qkv], out.data(), log_sum_exp.data());
    Vector gradients(inputs.size());
    reference::AttentionSinkBackwardAdd(shape, &inputs[of_qkv], out.data(), log_sum_exp.data(),
                                        dout.data(), &gradients[of_qkv]);
    reference::AttentionBackwardAdd(shape, nullptr, {}, Fused(shape, inputs.data()), out.data(),
                                    log_sum_exp.data(), dout.data(),
                                    Fused(shape, gradients.data()));
    return gradients;
  });
}

TEST_CASE("a packed document's attention is that of the document alone") {
  const AttentionShape shape = {1, 7, 2, 1, 4};
  const AttentionShape alone = {1, 4, 2, 1, 4};
  const auto begins = testing::DocumentBegins(1, 7, {3, 4});
  const Vector qkv = Doubles(static_cast<size_t>(7) * shape.qkv_width(), 1);
  const ptrdiff_t skipped = ptrdiff_t{3} * shape.qkv_width();
  Vector out(static_cast<size_t>(7) * 2 * 4), alone_out(static_cast<size_t>(4) * 2 * 4);
  Vector log_sum_exp(14), alone_log_sum_exp(8);
  reference::AttentionForward(shape, begins.data(), {}, Fused(shape, qkv.data()), out.data(),
                              log_sum_exp.data());
  reference::AttentionForward(alone, nullptr, {}, Fused(alone, qkv.data() + skipped),
                              alone_out.data(), alone_log_sum_exp.data());
  CHECK(Vector(out.begin() + 3 * 2 * 4, out.end()) == alone_out);
}

}  // namespace
}  // namespace convene::worker
