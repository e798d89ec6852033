#include "worker_runtime/tokenizer/json/text_normalizer.h"

#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/normalizer_steps.h"

namespace convene::worker {

absl::StatusOr<TextNormalizer> TextNormalizer::Read(const std::optional<JsonNode>& node) {
  TextNormalizer normalizer;
  if (!node.has_value()) return normalizer;
  CONVENE_RETURN_IF_ERROR(ReadSteps(*node, "normalizers", ReadNormalizerStep, &normalizer.steps_));
  return normalizer;
}

absl::string_view TextNormalizer::Apply(absl::string_view text, size_t* at_start,
                                        Scratch* scratch) const {
  int free = 0;  // the scratch text that `text` is not a view of
  for (const std::unique_ptr<NormalizerStep>& step : steps_) {
    if (step->Leaves(text)) continue;
    std::string* const result = &scratch->texts[free];
    result->clear();
    *at_start = step->Apply(text, *at_start, result);
    text = *result;
    free = 1 - free;
  }
  return text;
}

}  // namespace convene::worker
