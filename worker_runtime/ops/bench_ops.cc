#include "worker_runtime/ops/bench_ops.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/ops/activation.h"
#include "worker_runtime/ops/attention.h"
#include "worker_runtime/ops/cross_entropy.h"
#include "worker_runtime/ops/elementwise.h"
#include "worker_runtime/ops/embedding.h"
#include "worker_runtime/ops/expert_rows.h"
#include "worker_runtime/ops/grouped_matmul.h"
#include "worker_runtime/ops/instantiate.h"
#include "worker_runtime/ops/matmul.h"
#include "worker_runtime/ops/rms_norm.h"
#include "worker_runtime/ops/rope.h"

namespace convene::worker {
namespace {

uint32_t NextRandom(uint32_t& state) { return state = state * 1664525 + 1013904223; }

// The token at `share` (0 to below 1) of a text, its most frequent tokens first: about Zipf's law.
// Of 128256 tokens the first is one in 17, and half of a text is made of 357. Ops that gather by
// token are at their worst when one token is many.
int32_t SkewedToken(double share, int vocabulary) {
  return static_cast<int32_t>(std::pow(vocabulary + 1.0, share)) - 1;
}

template <typename T>
absl::StatusOr<T*> Upload(const std::vector<T>& values, Device& device) {
  const size_t bytes = values.size() * sizeof(T);
  CONVENE_ASSIGN_OR_RETURN(void* const memory, device.memory().Allocate(bytes));
  device.Copy(values.data(), memory, bytes, device.compute());
  return static_cast<T*>(memory);
}

template <typename T, typename Out>
BenchOp Product(const std::string& name, Transpose transpose_a, Transpose transpose_b, int m, int n,
                int k, Stream& stream) {
  const int64_t a = int64_t{m} * k;
  const int64_t b = int64_t{k} * n;
  const int64_t c = int64_t{m} * n;
  return {.name = name,
          .bytes = static_cast<double>(sizeof(T) * (a + b) + sizeof(Out) * c),
          .run =
              [=, &stream](Pieces& set) {
                MatMul(transpose_a, transpose_b, m, n, k, set.Take<T>(a), set.Take<T>(b), 0.0f,
                       set.Take<Out>(c), stream);
              },
          .flops = 2.0 * m * n * k};
}

// `pairs`: of a query and a key that it sees, in all rows of one head.
template <typename T>
void AddAttention(const BenchInputs& in, const char* suffix, const AttentionShape& shape,
                  const std::shared_ptr<const std::vector<int32_t>>& begins, double pairs,
                  std::vector<BenchOp>& ops) {
  const int rows = in.shape.rows;
  const int64_t qkv_size = int64_t{rows} * shape.qkv_width();
  const int64_t out_size = int64_t{rows} * shape.heads * shape.head_size;
  const int64_t statistics = int64_t{rows} * shape.heads;
  const double product = 2 * pairs * shape.heads * shape.head_size;
  const double bytes = sizeof(T) * static_cast<double>(qkv_size + out_size);
  const auto documents = [begins] {
    return Documents{.begin = begins == nullptr ? nullptr : begins->data()};
  };
  ops.push_back({absl::StrCat("attention_forward", suffix), bytes,
                 [=, &stream = in.stream](Pieces& set) {
                   const auto qkv = Fused(shape, set.Take<const T>(qkv_size));
                   auto* const out = set.Take<T>(out_size);
                   auto* const log_sum_exp = set.Take<float>(statistics);
                   AttentionForward<T>(
                       shape, documents(), {}, qkv, out, log_sum_exp,
                       set.Scratch(AttentionWorkspaceBytes<T>(shape, stream.kind())), stream);
                 },
                 2 * product});
  ops.push_back({absl::StrCat("attention_backward", suffix), 2 * bytes,
                 [=, &stream = in.stream](Pieces& set) {
                   const auto qkv = Fused(shape, set.Take<const T>(qkv_size));
                   const auto* const out = set.Take<T>(out_size);
                   const auto* const log_sum_exp = set.Take<float>(statistics);
                   const auto* const dout = set.Take<T>(out_size);
                   const auto gradients = Fused(shape, set.Take<T>(qkv_size));
                   AttentionBackward<T, T>(
                       shape, documents(), {}, qkv, out, log_sum_exp, dout, /*adds=*/false,
                       gradients, set.Scratch(AttentionWorkspaceBytes<T>(shape, stream.kind())),
                       stream);
                 },
                 5 * product});
}

template <typename T>
void AddNorms(const BenchInputs& in, std::vector<BenchOp>& ops) {
  const int rows = in.shape.rows;
  const int hidden = in.shape.hidden;
  const int64_t size = int64_t{rows} * hidden;
  const double bytes = sizeof(T) * static_cast<double>(size);
  ops.push_back({"rms_norm_forward", 2 * bytes, [=](Pieces& set) {
                   RmsNormForward<T>(rows, hidden, set.Take<T>(size), nullptr, set.Take<T>(hidden),
                                     0, 1e-5f, nullptr, set.Take<T>(size), set.Take<float>(rows),
                                     in.stream);
                 }});
  ops.push_back({"rms_norm_forward (with addition)", 4 * bytes, [=](Pieces& set) {
                   RmsNormForward(rows, hidden, set.Take<T>(size), set.Take<T>(size),
                                  set.Take<T>(hidden), 0, 1e-5f, set.Take<T>(size),
                                  set.Take<T>(size), set.Take<float>(rows), in.stream);
                 }});
  ops.push_back({"rms_norm_again", 2 * bytes, [=](Pieces& set) {
                   RmsNormAgain(rows, hidden, set.Take<T>(size), set.Take<T>(hidden), 0,
                                set.Take<float>(rows), set.Take<T>(size), in.stream);
                 }});
  ops.push_back(
      {"rms_norm_backward (adds to dx)", 4 * bytes, [=](Pieces& set) {
         RmsNormBackward(
             rows, hidden, set.Take<T>(size), set.Take<T>(hidden), 0, set.Take<float>(rows),
             set.Take<T>(size), true, set.Take<T>(size), true, set.Take<float>(hidden),
             set.Scratch(RmsNormWorkspaceBytes(rows, hidden, in.stream.kind())), in.stream);
       }});
}

template <typename T>
void AddTurnsAndActivations(const BenchInputs& in, std::vector<BenchOp>& ops) {
  const BenchShape s = in.shape;
  const int turned = s.heads + s.kv_heads;
  const int stride = (turned + s.kv_heads) * s.head_size;
  const double turned_bytes = sizeof(T) * static_cast<double>(s.rows) * turned * s.head_size;
  ops.push_back({"rope_apply (queries and keys)", 2 * turned_bytes, [=](Pieces& set) {
                   RopeApply(s.rows / s.sequence_length, s.sequence_length, turned, s.head_size,
                             s.head_size, stride, in.cosines, in.sines, nullptr, nullptr, false,
                             set.Take<T>(int64_t{s.rows} * stride), in.stream);
                 }});
  const int64_t size = int64_t{s.rows} * s.ffn;
  const double bytes = sizeof(T) * static_cast<double>(size);
  ops.push_back({"swiglu_forward", 3 * bytes, [=](Pieces& set) {
                   ActivationForward(Activation::kSwiglu, s.rows, s.ffn, set.Take<T>(2 * size),
                                     set.Take<T>(size), in.stream);
                 }});
  ops.push_back({"swiglu_backward", 5 * bytes, [=](Pieces& set) {
                   ActivationBackward(Activation::kSwiglu, s.rows, s.ffn, set.Take<T>(2 * size),
                                      set.Take<T>(size), set.Take<T>(2 * size), in.stream);
                 }});
}

template <typename T>
void AddVocabulary(const BenchInputs& in, std::vector<BenchOp>& ops) {
  const int rows = in.shape.rows;
  const int hidden = in.shape.hidden;
  const int vocabulary = in.shape.vocabulary;
  const int64_t size = int64_t{rows} * hidden;
  const int64_t table = int64_t{vocabulary} * hidden;
  const double bytes = sizeof(T) * static_cast<double>(size);
  ops.push_back({"embedding_forward", 2 * bytes, [=](Pieces& set) {
                   EmbeddingForward(rows, hidden, 0, vocabulary, in.tokens, set.Take<T>(table),
                                    false, set.Take<T>(size), in.stream);
                 }});
  const double table_bytes = 4.0 * static_cast<double>(in.distinct_tokens) * hidden;
  ops.push_back(
      {"embedding_backward (with its sort)", bytes + 2 * table_bytes, [=](Pieces& set) {
         EmbeddingBackward(
             rows, hidden, 0, vocabulary, in.tokens, set.Take<T>(size), set.Take<float>(table),
             set.Scratch(EmbeddingWorkspaceBytes(rows, hidden, in.stream.kind())), in.stream);
       }});
  const int64_t logits = int64_t{rows} * vocabulary;
  const double logit_bytes = sizeof(T) * static_cast<double>(logits);
  ops.push_back({"cross_entropy_statistics", logit_bytes, [=](Pieces& set) {
                   CrossEntropyStatistics(rows, 0, vocabulary, in.tokens, set.Take<T>(logits),
                                          set.Take<float>(rows), set.Take<float>(2 * rows),
                                          in.stream);
                 }});
  ops.push_back({"cross_entropy_gradient (in place)", 2 * logit_bytes, [=](Pieces& set) {
                   CrossEntropyGradient(rows, 0, vocabulary, in.tokens, set.Take<float>(rows),
                                        set.Take<float>(2 * rows), in.scale, set.Take<T>(logits),
                                        in.stream);
                 }});
  ops.push_back({"cross_entropy_at_once (in place)", 2 * logit_bytes, [=](Pieces& set) {
                   CrossEntropyAtOnce(rows, 0, vocabulary, in.tokens, in.scale,
                                      set.Take<float>(rows), set.Take<float>(2 * rows),
                                      set.Take<T>(logits), in.stream);
                 }});
}

}  // namespace

absl::StatusOr<BenchInputs> MakeBenchInputs(Device& device, const BenchShape& shape,
                                            size_t arena_bytes) {
  CONVENE_ASSIGN_OR_RETURN(void* const memory, device.memory().Allocate(arena_bytes));
  auto* const arena = static_cast<char*>(memory);
  std::vector<uint16_t> numbers(size_t{1} << 24);
  uint32_t random = 1;
  for (uint16_t& number : numbers) {
    number = static_cast<uint16_t>(0x3b80 + (NextRandom(random) >> 16) % 0x480);
  }
  const size_t piece_bytes = numbers.size() * sizeof(uint16_t);
  for (size_t begin = 0; begin < arena_bytes; begin += piece_bytes) {
    device.Copy(numbers.data(), arena + begin, std::min(piece_bytes, arena_bytes - begin),
                device.compute());
  }
  std::vector<int32_t> tokens(shape.rows);
  for (int32_t& token : tokens) {
    token = SkewedToken(NextRandom(random) * 0x1p-32, shape.vocabulary);
  }
  std::vector<float> cosines(static_cast<size_t>(shape.sequence_length) * shape.head_size / 2);
  std::vector<float> sines(cosines.size());
  RopeTable(shape.sequence_length, shape.head_size, 10000.0, cosines.data(), sines.data());
  const std::vector<uint8_t> flags(shape.parameters / kFlagBlock, kDecayed | kOwned);
  const std::vector<AdamWFactors> factors = {
      MakeAdamWFactors({.learning_rate = 1e-4, .weight_decay = 0.1})};
  const std::vector<StepControl> control = {{1.0f, SkipReason::kNone}};
  const std::vector<float> scale = {1.0f / static_cast<float>(shape.rows)};
  BenchInputs inputs = {
      .shape = shape, .stream = device.compute(), .arena = arena, .arena_bytes = arena_bytes};
  inputs.distinct_tokens =
      static_cast<int64_t>(std::set<int32_t>(tokens.begin(), tokens.end()).size());
  CONVENE_ASSIGN_OR_RETURN(inputs.tokens, Upload(tokens, device));
  CONVENE_ASSIGN_OR_RETURN(inputs.cosines, Upload(cosines, device));
  CONVENE_ASSIGN_OR_RETURN(inputs.sines, Upload(sines, device));
  CONVENE_ASSIGN_OR_RETURN(inputs.flags, Upload(flags, device));
  CONVENE_ASSIGN_OR_RETURN(inputs.factors, Upload(factors, device));
  CONVENE_ASSIGN_OR_RETURN(inputs.control, Upload(control, device));
  CONVENE_ASSIGN_OR_RETURN(inputs.scale, Upload(scale, device));
  CONVENE_RETURN_IF_ERROR(device.Synchronize(absl::Seconds(60)));
  return inputs;
}

template <typename T>
std::vector<BenchOp> ProductOps(const BenchInputs& in) {
  const BenchShape& s = in.shape;
  struct Weight {
    const char* name;
    int out, in;
  };
  const Weight weights[] = {{"qkv", (s.heads + 2 * s.kv_heads) * s.head_size, s.hidden},
                            {"out", s.hidden, s.heads * s.head_size},
                            {"gate_up", 2 * s.ffn, s.hidden},
                            {"down", s.hidden, s.ffn},
                            {"head", s.vocabulary, s.hidden}};
  constexpr auto kNo = Transpose::kNo;
  constexpr auto kYes = Transpose::kYes;
  std::vector<BenchOp> ops;
  for (const Weight& w : weights) {
    const std::string name = absl::StrCat("matmul ", w.name);
    ops.push_back(Product<T, T>(name + " forward", kNo, kYes, s.rows, w.out, w.in, in.stream));
    ops.push_back(
        Product<T, T>(name + " input gradient", kNo, kNo, s.rows, w.in, w.out, in.stream));
    ops.push_back(
        Product<T, float>(name + " weight gradient", kYes, kNo, w.out, w.in, s.rows, in.stream));
  }
  return ops;
}
CONVENE_INSTANTIATE(ProductOps);

template <typename T>
std::vector<BenchOp> ExpertOps(const BenchInputs& in) {
  constexpr int kExperts = 8;
  const BenchShape& s = in.shape;
  const int rows = s.rows;
  const int hidden = s.hidden;
  const int width = s.ffn;
  const int64_t size = int64_t{rows} * hidden;
  const int64_t out = int64_t{rows} * width;
  const int64_t weights = int64_t{kExperts} * width * hidden;
  const double bytes = sizeof(T) * static_cast<double>(size);
  const double product_bytes = bytes + sizeof(T) * static_cast<double>(out + weights);
  const double flops = 2.0 * static_cast<double>(size) * width;
  std::vector<int32_t> begins;
  for (int i = 0; i <= kExperts; ++i) {
    begins.push_back(rows * i * (i + 1) / (kExperts * (kExperts + 1)));
  }
  const auto begin = std::make_shared<const std::vector<int32_t>>(std::move(begins));
  constexpr auto kNo = Transpose::kNo;
  constexpr auto kYes = Transpose::kYes;
  return {
      Product<T, T>("matmul one expert forward", kNo, kYes, rows, width, hidden, in.stream),
      Product<T, T>("matmul one expert input gradient", kNo, kNo, rows, hidden, width, in.stream),
      Product<T, float>("matmul one expert weight gradient", kYes, kNo, width, hidden, rows,
                        in.stream),
      {"grouped_matmul forward", product_bytes,
       [=, &stream = in.stream](Pieces& set) {
         GroupedMatMul(kYes, *begin, width, hidden, set.Take<T>(size), set.Take<T>(weights), 0.0f,
                       set.Take<T>(out), stream);
       },
       flops},
      {"grouped_matmul input gradient", product_bytes,
       [=, &stream = in.stream](Pieces& set) {
         GroupedMatMul(kNo, *begin, hidden, width, set.Take<T>(out), set.Take<T>(weights), 0.0f,
                       set.Take<T>(size), stream);
       },
       flops},
      {"grouped_weight_gradient", product_bytes,
       [=, &stream = in.stream](Pieces& set) {
         GroupedWeightGradient(*begin, width, hidden, set.Take<T>(out), set.Take<T>(size), 0.0f,
                               set.Take<float>(weights), stream);
       },
       flops},
      {"gather_rows", 2 * bytes,
       [=, &stream = in.stream, tokens = in.tokens](Pieces& set) {
         GatherRows(rows, hidden, tokens, set.Take<T>(int64_t{s.vocabulary} * hidden),
                    set.Take<T>(size), stream);
       }},
      {"combine_rows (2 terms)", 1.5 * bytes,
       [=, &stream = in.stream, tokens = in.tokens](Pieces& set) {
         CombineRows(rows / 2, hidden, 2, tokens, set.Take<float>(rows),
                     set.Take<T>(int64_t{s.vocabulary} * hidden), false, set.Take<T>(size), stream);
       }}};
}
CONVENE_INSTANTIATE(ExpertOps);

template <typename T>
std::vector<BenchOp> AttentionOps(const BenchInputs& in) {
  constexpr int kDocument = 32;
  const BenchShape& s = in.shape;
  AttentionShape shape = {.batch = s.rows / s.sequence_length,
                          .sequence_length = s.sequence_length,
                          .heads = s.heads,
                          .kv_heads = s.kv_heads,
                          .head_size = s.head_size};
  std::vector<BenchOp> ops;
  AddAttention<T>(in, "", shape, nullptr, s.rows * (s.sequence_length + 1) / 2.0, ops);
  std::vector<int32_t> begins(s.rows);
  for (int row = 0; row < s.rows; ++row) {
    begins[row] = row % s.sequence_length / kDocument * kDocument;
  }
  shape.packed = true;
  AddAttention<T>(in, " (packed)", shape,
                  std::make_shared<const std::vector<int32_t>>(std::move(begins)),
                  s.rows * (kDocument + 1) / 2.0, ops);
  return ops;
}
CONVENE_INSTANTIATE(AttentionOps);

template <typename T>
std::vector<BenchOp> RowOps(const BenchInputs& inputs) {
  std::vector<BenchOp> ops;
  AddNorms<T>(inputs, ops);
  AddTurnsAndActivations<T>(inputs, ops);
  AddVocabulary<T>(inputs, ops);
  return ops;
}
CONVENE_INSTANTIATE(RowOps);

std::vector<BenchOp> FlatOps(const BenchInputs& in) {
  const int64_t small = in.shape.activations;
  const int64_t large = in.shape.parameters;
  const auto small_count = static_cast<double>(small);
  const auto large_count = static_cast<double>(large);
  return {{"add_in_place (bf16)", 6 * small_count,
           [=](Pieces& set) {
             AddInPlace(small, set.Take<BFloat16>(small), set.Take<BFloat16>(small), in.stream);
           }},
          {"to_bfloat16", 6 * small_count,
           [=](Pieces& set) {
             ToBFloat16(small, set.Take<float>(small), set.Take<BFloat16>(small), in.stream);
           }},
          {"to_float", 6 * small_count,
           [=](Pieces& set) {
             ToFloat(small, set.Take<BFloat16>(small), set.Take<float>(small), in.stream);
           }},
          {"sum_of_squares", 4 * large_count,
           [=](Pieces& set) {
             SumOfSquares(large, set.Take<float>(large), in.flags, set.Take<double>(1),
                          set.Scratch(SumOfSquaresWorkspaceBytes(large, in.stream.kind())),
                          in.stream);
           }},
          {"adamw (bf16 weights)", 30 * large_count, [=](Pieces& set) {
             AdamW(large, in.factors, in.control, in.flags, set.Take<float>(large),
                   set.Take<float>(large), set.Take<BFloat16>(large), set.Take<float>(large),
                   set.Take<float>(large), in.stream);
           }}};
}

}  // namespace convene::worker
