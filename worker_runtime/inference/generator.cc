#include "worker_runtime/inference/generator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

absl::Status CheckPrompts(absl::Span<const std::vector<int32_t>> prompts, int context) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt ", i + 1, " of ", prompts.size(),
                       " has no token: a model goes on with at least one"));
    }
    if (prompts[i].size() < static_cast<size_t>(context)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("prompt ", i + 1, " of ", prompts.size(), " has ", prompts[i].size(),
                     " tokens, and the context has room for ", context,
                     " with the answer: shorten the prompt, or set a longer --context"));
  }
  return absl::OkStatus();
}

// One prompt that is gone on with.
struct Live {
  int prompt;
  int sequence;
  size_t prompt_tokens;
  std::vector<int32_t> tokens;  // all so far
};

class Generation {
 public:
  Generation(LanguageModel& model, const GenerateOptions& options, TokenSink sink)
      : model_(model), options_(options), sink_(sink) {}

  // Chooses the next token of a sequence. Returns whether it goes on.
  absl::StatusOr<bool> Advance(Live& live, absl::Span<float> logits) const {
    if (absl::c_any_of(logits, [](float x) { return std::isnan(x); })) {
      return absl::InternalError(
          "the model's logits are not numbers: its weights may be damaged, or too large for the "
          "type of its arithmetic (--precision fp32)");
    }
    const size_t made = live.tokens.size() - live.prompt_tokens;
    const double number =
        SamplingNumber(options_.sampling.seed, options_.first_sequence + live.prompt, made);
    const int32_t token = Sample(options_.sampling, live.tokens, number, logits);
    live.tokens.push_back(token);
    SequenceEnd end = SequenceEnd::kNotYet;
    if (absl::c_linear_search(options_.end_tokens, token)) {
      end = SequenceEnd::kEndToken;
    } else if (static_cast<int>(made) + 1 >= options_.max_new_tokens ||
               live.tokens.size() >= static_cast<size_t>(model_.options().context)) {
      end = SequenceEnd::kLength;
    }
    CONVENE_ASSIGN_OR_RETURN(const bool goes_on, sink_(live.prompt, token, end));
    return goes_on && end == SequenceEnd::kNotYet;
  }

 private:
  LanguageModel& model_;
  const GenerateOptions& options_;
  const TokenSink sink_;
};

}  // namespace

absl::Status Generate(LanguageModel& model, absl::Span<const std::vector<int32_t>> prompts,
                      const GenerateOptions& options, TokenSink sink) {
  CONVENE_RETURN_IF_ERROR(ValidateSampling(options.sampling));
  CONVENE_RETURN_IF_ERROR(CheckPrompts(prompts, model.options().context));
  const Generation generation(model, options, sink);
  std::vector<int> free;
  for (int i = model.options().sequences; i-- > 0;) free.push_back(i);
  std::vector<Live> live;
  size_t begun = options.max_new_tokens > 0 ? 0 : prompts.size();
  while (begun < prompts.size() || !live.empty()) {
    if (begun < prompts.size() && !free.empty()) {
      Live next = {static_cast<int>(begun), free.back(), prompts[begun].size(), prompts[begun]};
      ++begun;
      CONVENE_ASSIGN_OR_RETURN(const absl::Span<float> logits,
                               model.Prefill(next.sequence, 0, next.tokens));
      CONVENE_ASSIGN_OR_RETURN(const bool goes_on, generation.Advance(next, logits));
      if (!goes_on) continue;
      free.pop_back();
      live.push_back(std::move(next));
      continue;
    }
    std::vector<NextToken> tokens;
    for (const Live& one : live) {
      tokens.push_back({one.sequence, static_cast<int>(one.tokens.size()) - 1, one.tokens.back()});
    }
    CONVENE_ASSIGN_OR_RETURN(absl::Span<float> logits, model.Decode(tokens));
    const size_t columns = logits.size() / live.size();
    std::vector<Live> left;
    for (Live& one : live) {
      CONVENE_ASSIGN_OR_RETURN(const bool goes_on,
                               generation.Advance(one, logits.subspan(0, columns)));
      logits.remove_prefix(columns);
      if (goes_on) {
        left.push_back(std::move(one));
      } else {
        free.push_back(one.sequence);
      }
    }
    live = std::move(left);
  }
  return absl::OkStatus();
}

}  // namespace convene::worker
