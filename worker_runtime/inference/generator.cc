#include "worker_runtime/inference/generator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// `room`: for a prompt's tokens.
absl::Status CheckPrompts(absl::Span<const std::vector<int32_t>> prompts, size_t room, int context,
                          int vocabulary) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("prompt ", i + 1, " of ", prompts.size(),
                       " has no token: a model goes on with at least one"));
    }
    for (const int32_t id : prompts[i]) {
      if (id >= 0 && id < vocabulary) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "prompt ", i + 1, " of ", prompts.size(), " has the id ", id, ", and the model has ",
          vocabulary, " tokens: leave that token out, or take the model's own tokenizer"));
    }
    if (prompts[i].size() <= room) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("prompt ", i + 1, " of ", prompts.size(), " has ", prompts[i].size(),
                     " tokens, and the context has room for ", context,
                     " with the answer: shorten the prompt, or set a longer --context"));
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(absl::Span<const float> logits) {
  if (absl::c_none_of(logits, [](float x) { return std::isnan(x); })) return absl::OkStatus();
  return absl::DataLossError(
      "the model's logits are not numbers: its weights may be damaged, or too large for the "
      "type of its arithmetic (--precision fp32)");
}

// One prompt that is gone on with.
struct Live {
  int prompt;
  int sequence;
  size_t prompt_tokens;
  std::vector<int32_t> tokens;  // all so far
  size_t cached = 0;            // so many first ones the model has
};

class Generation {
 public:
  Generation(LanguageModel& model, const GenerateOptions& options, TokenSink sink)
      : model_(model), options_(options), sink_(sink) {}

  // Whether prompts have to be seen token by token.
  bool sees_prompts() const { return options_.sees_prompts && options_.see_logits; }

  // The model gets the tokens of each text that it has not. Returns the logits behind each.
  absl::StatusOr<absl::Span<float>> Extend(absl::Span<Live> texts) const {
    std::vector<NewTokens> all;
    for (Live& one : texts) {
      all.push_back({one.sequence, static_cast<int>(one.cached),
                     absl::MakeConstSpan(one.tokens).subspan(one.cached)});
      one.cached = one.tokens.size();
    }
    return model_.Extend(all, options_.goes_on);
  }

  // The same of one prompt whose tokens are seen.
  absl::StatusOr<absl::Span<float>> ExtendSeeing(Live& next) const {
    next.cached = next.tokens.size();
    options_.see_logits(next.prompt, next.tokens[0], {});
    absl::Span<float> last;
    absl::Status status;
    const auto see = [&](size_t i, absl::Span<float> logits) {
      last = logits;
      status.Update(CheckNumbers(logits));
      if (i + 1 == next.tokens.size()) return;
      options_.see_logits(next.prompt, next.tokens[i + 1], logits);
    };
    CONVENE_RETURN_IF_ERROR(
        model_.ExtendSeeingAll(next.sequence, next.tokens, see, options_.goes_on));
    CONVENE_RETURN_IF_ERROR(status);
    return last;
  }

  // Chooses the next token of a sequence. Returns whether it goes on.
  absl::StatusOr<bool> Advance(Live& live, absl::Span<float> logits) const {
    CONVENE_RETURN_IF_ERROR(CheckNumbers(logits));
    const size_t made = live.tokens.size() - live.prompt_tokens;
    const double number =
        SamplingNumber(options_.sampling.seed, options_.first_sequence + live.prompt, made);
    std::vector<float> seen;  // the sampler changes them
    if (options_.see_logits) seen.assign(logits.begin(), logits.end());
    const int32_t token = Sample(options_.sampling, live.tokens, number, logits);
    if (options_.see_logits) options_.see_logits(live.prompt, token, seen);
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
  const int context = model.options().context;
  const int room = options.max_new_tokens > 0 ? context - 1 : context;
  CONVENE_RETURN_IF_ERROR(
      CheckPrompts(prompts, room, context, model.options().config.vocabulary_size));
  const Generation generation(model, options, sink);
  std::vector<int> free;
  for (int i = model.options().sequences; i-- > 0;) free.push_back(i);
  std::vector<Live> live;
  size_t begun = options.max_new_tokens > 0 || options.sees_prompts ? 0 : prompts.size();
  while (begun < prompts.size() || !live.empty()) {
    while (begun < prompts.size() && !free.empty()) {
      Live next = {static_cast<int>(begun), free.back(), prompts[begun].size(), prompts[begun]};
      ++begun;
      if (generation.sees_prompts()) {
        CONVENE_ASSIGN_OR_RETURN(const absl::Span<float> logits, generation.ExtendSeeing(next));
        if (options.max_new_tokens == 0) continue;
        CONVENE_ASSIGN_OR_RETURN(const bool goes_on, generation.Advance(next, logits));
        if (!goes_on) continue;
      }
      free.pop_back();
      live.push_back(std::move(next));
    }
    if (live.empty()) continue;
    CONVENE_ASSIGN_OR_RETURN(absl::Span<float> logits, generation.Extend(absl::MakeSpan(live)));
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
