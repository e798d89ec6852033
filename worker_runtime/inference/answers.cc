#include "worker_runtime/inference/answers.h"

#include "tools/base/status_macros.h"
#include "worker_runtime/inference/text_stream.h"

namespace convene::worker {

const char* NameOf(AnswerEnd end) {
  if (end == AnswerEnd::kEndToken) return "end_token";
  return end == AnswerEnd::kStopText ? "stop_text" : "length";
}

absl::Status Answer(LanguageModel& model, const Tokenizer& tokenizer,
                    absl::Span<const std::vector<int32_t>> prompts, const GenerateOptions& options,
                    const std::vector<std::string>& stop_texts, ShowAnswer show) {
  std::vector<TextStream> streams;
  streams.reserve(prompts.size());
  for (const auto& prompt : prompts) streams.emplace_back(tokenizer, stop_texts, prompt);
  return Generate(model, prompts, options,
                  [&](int prompt, int32_t token, SequenceEnd why) -> absl::StatusOr<bool> {
                    TextStream& stream = streams[prompt];
                    std::string text = why == SequenceEnd::kEndToken ? "" : stream.Add(token);
                    if (why != SequenceEnd::kNotYet) text += stream.Finish();
                    AnswerEnd end = AnswerEnd::kNotYet;
                    if (why == SequenceEnd::kEndToken) end = AnswerEnd::kEndToken;
                    if (why == SequenceEnd::kLength) end = AnswerEnd::kLength;
                    if (stream.is_stopped()) end = AnswerEnd::kStopText;
                    CONVENE_RETURN_IF_ERROR(show(prompt, text, end));
                    return end == AnswerEnd::kNotYet;
                  });
}

}  // namespace convene::worker
