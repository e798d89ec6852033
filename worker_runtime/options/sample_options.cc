#include "worker_runtime/options/sample_options.h"

#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace convene::worker {
namespace {

constexpr int kMostPrompts = 64;
constexpr int kMostTokens = 1 << 20;
// Activations are planned for a pass of so many tokens: a longer prompt goes in several.
constexpr int kPassTokens = 64;
constexpr int kMostSequences = 8;

absl::Status Refused(const char* key, double value, absl::string_view wish) {
  return absl::InvalidArgumentError(absl::StrCat(key, " ", value, " must be ", wish));
}

}  // namespace

absl::Status ValidateSamples(const SampleOptions& samples) {
  const int prompts = static_cast<int>(samples.prompts.size());
  if (samples.every < 0) {
    return Refused("sample_every", static_cast<double>(samples.every), "at least 0");
  }
  if (samples.tokens < 1 || samples.tokens > kMostTokens) {
    return Refused("sample_tokens", samples.tokens, absl::StrCat("from 1 to ", kMostTokens));
  }
  if (!(samples.temperature >= 0) || !std::isfinite(samples.temperature)) {
    return Refused("sample_temperature", samples.temperature, "0 or more");
  }
  if (prompts > kMostPrompts) {
    return absl::InvalidArgumentError(absl::StrCat("sample_prompt is given ", prompts,
                                                   " times, and can be at most ", kMostPrompts));
  }
  if (absl::c_any_of(samples.prompts, [](const std::string& text) { return text.empty(); })) {
    return absl::InvalidArgumentError(
        "sample_prompt is empty: write the text with which the model goes on");
  }
  if (samples.every > 0 && prompts == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sample_every is ", samples.every,
                     ", but there is no text to go on with: add --sample-prompt TEXT"));
  }
  return absl::OkStatus();
}

SampleRoom RoomOf(const SampleOptions& samples) {
  if (samples.every == 0) return {};
  size_t longest = 0;
  for (const std::vector<int32_t>& prompt : samples.ids) longest = std::max(longest, prompt.size());
  return {.sequences = std::min(kMostSequences, static_cast<int>(samples.ids.size())),
          .context = static_cast<int>(longest) + samples.tokens,
          .pass_tokens = std::min(kPassTokens, static_cast<int>(longest))};
}

}  // namespace convene::worker
