#include "worker_runtime/trainer/samples.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/inference/answers.h"
#include "worker_runtime/inference/prompts.h"

namespace convene::worker {

Samples::Samples(const TrainOptions& options, const Tokenizer& tokenizer)
    : options_(options), tokenizer_(tokenizer), end_tokens_(EndTokensOf(tokenizer)) {}

absl::Status Samples::Run(int64_t step, Engine& engine, Reporter* reporter) const {
  const SampleOptions& samples = options_.samples;
  std::vector<SampleMetrics> texts;
  for (const std::string& prompt : samples.prompts) {
    texts.push_back({.step = step, .sample_prompt = prompt});
  }
  const absl::Status made =
      Answer(*engine.generation(), tokenizer_, samples.ids,
             {.sampling = {.temperature = samples.temperature,
                           .seed = static_cast<uint64_t>(options_.seed)},
              .max_new_tokens = samples.tokens,
              .end_tokens = end_tokens_},
             /*stop_texts=*/{}, [&](int prompt, const std::string& text, AnswerEnd end) {
               SampleMetrics& sample = texts[prompt];
               sample.sample_text += text;
               ++sample.sample_tokens;
               if (end != AnswerEnd::kNotYet) sample.sample_end = NameOf(end);
               return absl::OkStatus();
             });
  // The same on all ranks, as they have the same logits.
  if (absl::IsDataLoss(made)) {
    if (reporter != nullptr) {
      reporter->Say(absl::StrCat("no sample after step ", step, ": ", made.message()));
    }
    return absl::OkStatus();
  }
  CONVENE_RETURN_IF_ERROR(made);
  if (reporter == nullptr) return absl::OkStatus();
  for (const SampleMetrics& text : texts) CONVENE_RETURN_IF_ERROR(reporter->Sample(text));
  return absl::OkStatus();
}

}  // namespace convene::worker
