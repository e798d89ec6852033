#include "worker_runtime/trainer/samples.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/inference/answers.h"
#include "worker_runtime/inference/prompts.h"

namespace convene::worker {
namespace {

// A pass makes a token of each of at most eight texts.
constexpr int64_t kTokensOfAStop = 16;

}  // namespace

Samples::Samples(const TrainOptions& options, const Tokenizer& tokenizer)
    : options_(options), tokenizer_(tokenizer), end_tokens_(EndTokensOf(tokenizer)) {}

absl::StatusOr<bool> Samples::Run(int64_t step, Engine& engine, Reporter* reporter,
                                  absl::FunctionRef<bool()> stop_wanted, Collective& world,
                                  Stream& stream) const {
  const SampleOptions& samples = options_.samples;
  std::vector<SampleMetrics> texts;
  for (const std::string& prompt : samples.prompts) {
    texts.push_back({.step = step, .sample_prompt = prompt});
  }
  int64_t shown = 0;
  bool stops = false;
  const absl::Status made = Answer(
      *engine.generation(), tokenizer_, samples.ids,
      {.sampling = {.temperature = samples.temperature,
                    .seed = static_cast<uint64_t>(options_.seed)},
       .max_new_tokens = samples.tokens,
       .end_tokens = end_tokens_},
      /*stop_texts=*/{}, [&](int prompt, const std::string& text, AnswerEnd end) {
        SampleMetrics& sample = texts[prompt];
        sample.sample_text += text;
        ++sample.sample_tokens;
        if (end != AnswerEnd::kNotYet) sample.sample_end = NameOf(end);
        // All ranks are shown the same tokens, so all ask at the same one.
        if (++shown % kTokensOfAStop != 0) return absl::OkStatus();
        double wish = stop_wanted() ? 1 : 0;
        CONVENE_RETURN_IF_ERROR(world.AllReduce(absl::MakeSpan(&wish, 1), ReduceOp::kMax, stream));
        stops = wish > 0;
        return stops ? absl::CancelledError("a rank is to stop") : absl::OkStatus();
      });
  if (stops) return true;
  // The same on all ranks, as they have the same logits.
  if (absl::IsDataLoss(made)) {
    if (reporter != nullptr) {
      reporter->Say(absl::StrCat("no sample after step ", step, ": ", made.message()));
    }
    return false;
  }
  CONVENE_RETURN_IF_ERROR(made);
  if (reporter == nullptr) return false;
  for (const SampleMetrics& text : texts) CONVENE_RETURN_IF_ERROR(reporter->Sample(text));
  return false;
}

}  // namespace convene::worker
