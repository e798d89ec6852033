#include "worker_runtime/model/config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::worker {
namespace {

// Larger sizes are surely typing errors. Within these bounds no product of sizes overflows int64.
constexpr int kMostLayers = 4096;
constexpr int kLargestSize = 1 << 20;

struct NamedShape {
  const char* name;
  ModelConfig config;
};

// Sorted by name. Real shapes: Touvron et al. 2023 (Llama 2), Llama 3 herd 2024, and the Llama 3.2
// model cards. Columns: layers, hidden, ffn, heads, kv heads, head size, vocabulary, rope theta,
// norm epsilon, tied embeddings; initializer range, rope scaling.
constexpr RopeScaling kLlama32Scaling = {.factor = 32};
const NamedShape kNamedShapes[] = {
    // The sizes of GPT-2 small and medium (padded vocabulary), as a Llama.
    {"llama-125m", {12, 768, 2048, 12, 12, 64, 50304, 10000.0, 1e-5, true}},
    {"llama-15m", {8, 384, 1024, 8, 8, 48, 256, 10000.0, 1e-5, false}},
    {"llama-2-70b", {80, 8192, 28672, 64, 8, 128, 32000, 10000.0, 1e-5, false}},
    {"llama-2-7b", {32, 4096, 11008, 32, 32, 128, 32000, 10000.0, 1e-5, false}},
    {"llama-3-405b", {126, 16384, 53248, 128, 8, 128, 128256, 500000.0, 1e-5, false}},
    {"llama-3-70b", {80, 8192, 28672, 64, 8, 128, 128256, 500000.0, 1e-5, false}},
    {"llama-3-8b", {32, 4096, 14336, 32, 8, 128, 128256, 500000.0, 1e-5, false}},
    {"llama-3.2-1b", {16, 2048, 8192, 32, 8, 64, 128256, 5e5, 1e-5, true, 0.02, kLlama32Scaling}},
    {"llama-3.2-3b", {28, 3072, 8192, 24, 8, 128, 128256, 5e5, 1e-5, true, 0.02, kLlama32Scaling}},
    {"llama-350m", {24, 1024, 2816, 16, 16, 64, 50304, 10000.0, 1e-5, true}},
    // The short name that job files use for llama-3-70b.
    {"llama-70b", {80, 8192, 28672, 64, 8, 128, 128256, 500000.0, 1e-5, false}},
    // Byte vocabulary and heads of 4, so that every layout up to tp 8 x pp 8 is legal in a test.
    {"llama-tiny", {8, 64, 192, 16, 8, 4, 256, 10000.0, 1e-5, false}},
};

// "1, 2, 3 or 6": the numbers from 1 to `largest` that are legal, of which 1 is one; of many, the
// eight nearest to `wanted`.
std::string NearestLegal(int largest, int wanted, absl::FunctionRef<bool(int)> is_legal) {
  std::vector<int> legal;
  for (int n = 1; n <= largest; ++n) {
    if (is_legal(n)) legal.push_back(n);
  }
  constexpr size_t kShown = 8;
  if (legal.size() > kShown) {
    std::stable_sort(legal.begin(), legal.end(), [wanted](int a, int b) {
      return std::abs(a - wanted) < std::abs(b - wanted);
    });
    legal.resize(kShown);
    std::sort(legal.begin(), legal.end());
  }
  const int last = legal.back();
  legal.pop_back();
  if (legal.empty()) return absl::StrCat(last);
  return absl::StrCat(absl::StrJoin(legal, ", "), " or ", last);
}

absl::Status CheckSize(const char* name, int value, int largest) {
  if (value >= 1 && value <= largest) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " ", value, " must be a number from 1 to ", largest));
}

absl::Status CheckPositive(const char* name, double value) {
  if (value > 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " ", value, " must be greater than 0"));
}

absl::Status ValidateScaling(const RopeScaling& scaling) {
  CONVENE_RETURN_IF_ERROR(CheckPositive("rope_scaling_factor", scaling.factor));
  CONVENE_RETURN_IF_ERROR(CheckPositive("rope_low_frequency_factor", scaling.low_frequency_factor));
  if (scaling.factor < 1) {
    return absl::InvalidArgumentError(absl::StrCat("rope_scaling_factor ", scaling.factor,
                                                   " must be at least 1 (1 = no scaling)"));
  }
  if (!std::isfinite(scaling.high_frequency_factor) ||
      scaling.high_frequency_factor <= scaling.low_frequency_factor) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope_high_frequency_factor ", scaling.high_frequency_factor,
                     " must be greater than rope_low_frequency_factor, which is ",
                     scaling.low_frequency_factor));
  }
  return CheckSize("rope_original_positions", scaling.original_positions,
                   std::numeric_limits<int>::max());
}

absl::Status ValidateShape(const ModelConfig& config) {
  CONVENE_RETURN_IF_ERROR(CheckSize("layers", config.layers, kMostLayers));
  CONVENE_RETURN_IF_ERROR(CheckSize("hidden_size", config.hidden_size, kLargestSize));
  CONVENE_RETURN_IF_ERROR(CheckSize("ffn_size", config.ffn_size, kLargestSize));
  CONVENE_RETURN_IF_ERROR(CheckSize("heads", config.heads, kLargestSize));
  CONVENE_RETURN_IF_ERROR(CheckSize("kv_heads", config.kv_heads, kLargestSize));
  CONVENE_RETURN_IF_ERROR(CheckSize("head_size", config.head_size, kLargestSize / config.heads));
  CONVENE_RETURN_IF_ERROR(CheckSize("vocabulary_size", config.vocabulary_size, kLargestSize));
  CONVENE_RETURN_IF_ERROR(CheckPositive("rope_theta", config.rope_theta));
  CONVENE_RETURN_IF_ERROR(CheckPositive("norm_epsilon", config.norm_epsilon));
  CONVENE_RETURN_IF_ERROR(CheckPositive("initializer_range", config.initializer_range));
  CONVENE_RETURN_IF_ERROR(ValidateScaling(config.rope_scaling));
  if (config.heads % config.kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "heads ", config.heads, " cannot share kv_heads ", config.kv_heads,
        " evenly; kv_heads can be ",
        NearestLegal(config.heads, config.kv_heads, [&](int n) { return config.heads % n == 0; })));
  }
  if (config.head_size % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("head_size ", config.head_size,
                     " is odd, but rotary positions turn pairs of values; head_size can be ",
                     config.head_size == 1 ? "" : absl::StrCat(config.head_size - 1, " or "),
                     config.head_size + 1));
  }
  return absl::OkStatus();
}

// Why so many ranks cannot split the model, or share its key and value heads; empty: they can.
std::string WhyNotOver(const ModelConfig& config, int tp) {
  const std::pair<const char*, int> split[] = {{"heads", config.heads},
                                               {"ffn_size", config.ffn_size},
                                               {"vocabulary_size", config.vocabulary_size}};
  for (const auto& [name, value] : split) {
    if (value % tp != 0) return absl::StrCat(name, " ", value, " cannot be split over");
  }
  if (config.kv_heads % tp == 0) return "";
  if (tp % config.kv_heads != 0) {
    return absl::StrCat("kv_heads ", config.kv_heads, " can neither be split nor copied over");
  }
  const int64_t query = int64_t{config.heads / tp} * config.head_size * config.hidden_size;
  if (query % kParameterAlignment == 0) return "";
  return absl::StrCat("kv_heads ", config.kv_heads, " cannot be copied behind heads / tp_size x ",
                      "head_size x hidden_size = ", query, " values, which is no multiple of ",
                      kParameterAlignment, ", over");
}

absl::Status ValidateSplit(const ModelConfig& config, const Layout& layout) {
  const std::string why_not = WhyNotOver(config, layout.tp);
  if (why_not.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(why_not, " tp_size ", layout.tp, "; tp_size can be ",
                   NearestLegal(config.heads, layout.tp,
                                [&](int tp) { return WhyNotOver(config, tp).empty(); })));
}

}  // namespace

int64_t ModelConfig::ParameterCount() const {
  const int64_t hidden = hidden_size;
  const int64_t query_and_output = 2 * hidden * heads * head_size;
  const int64_t key_and_value = 2 * hidden * kv_heads * head_size;
  const int64_t gate_up_and_down = 3 * hidden * ffn_size;
  const int64_t norms = 2 * hidden;
  const int64_t embedding = hidden * vocabulary_size;
  return layers * (query_and_output + key_and_value + gate_up_and_down + norms) + hidden +
         (tied_embeddings ? embedding : 2 * embedding);
}

std::vector<std::string> ModelNames() {
  std::vector<std::string> names;
  for (const NamedShape& shape : kNamedShapes) names.emplace_back(shape.name);
  return names;
}

absl::StatusOr<ModelConfig> NamedModel(absl::string_view name) {
  for (const NamedShape& shape : kNamedShapes) {
    if (name == shape.name) return shape.config;
  }
  const std::vector<std::string> names = ModelNames();
  const std::string closest = ClosestMatch(name, names);
  return absl::NotFoundError(
      absl::StrCat("unknown model \"", name, "\"",
                   closest.empty() ? "" : absl::StrCat("; did you mean \"", closest, "\"?"),
                   closest.empty() ? "; known: " : " Known: ", absl::StrJoin(names, ", ")));
}

absl::Status ValidateModel(const ModelConfig& config, const Layout& layout) {
  CONVENE_RETURN_IF_ERROR(ValidateShape(config));
  return ValidateSplit(config, layout);
}

}  // namespace convene::worker
