#include "worker_runtime/tokenizer/json/text_normalizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/byte_level.h"
#include "worker_runtime/tokenizer/json/normalizer_steps.h"
#include "worker_runtime/tokenizer/json/precompiled_normalizer.h"
#include "worker_runtime/tokenizer/json/text_pattern.h"
#include "worker_runtime/tokenizer/json/unicode_forms.h"

namespace convene::worker {
namespace {

constexpr size_t kLargestGrowth = 4096;

using Step = std::unique_ptr<NormalizerStep>;

absl::StatusOr<Step> ReadStrip(const JsonNode& node) {
  CONVENE_ASSIGN_OR_RETURN(const bool left, node.GetBool("strip_left", true));
  CONVENE_ASSIGN_OR_RETURN(const bool right, node.GetBool("strip_right", true));
  return MakeStrip(left, right);
}

absl::StatusOr<Step> ReadBert(const JsonNode& node) {
  BertOptions options;
  CONVENE_ASSIGN_OR_RETURN(options.clean_text, node.GetBool("clean_text", true));
  CONVENE_ASSIGN_OR_RETURN(options.handle_chinese_chars,
                           node.GetBool("handle_chinese_chars", true));
  CONVENE_ASSIGN_OR_RETURN(options.lowercase, node.GetBool("lowercase", true));
  CONVENE_ASSIGN_OR_RETURN(options.strip_accents, node.GetBool("strip_accents", options.lowercase));
  return MakeBert(options);
}

absl::StatusOr<Step> ReadStep(const std::string& type, const JsonNode& node) {
  if (type == "NFC") return MakeUnicodeForm(UnicodeForm::kNfc);
  if (type == "NFD") return MakeUnicodeForm(UnicodeForm::kNfd);
  if (type == "NFKC") return MakeUnicodeForm(UnicodeForm::kNfkc);
  if (type == "NFKD") return MakeUnicodeForm(UnicodeForm::kNfkd);
  if (type == "Lowercase") return MakeLowercase();
  if (type == "Strip") return ReadStrip(node);
  if (type == "StripAccents") return MakeStripAccents();
  if (type == "Nmt") return MakeNmt();
  if (type == "Replace") return ReadReplace(node);
  if (type == "BertNormalizer") return ReadBert(node);
  if (type == "ByteLevel") return MakeByteLevelNormalizer();
  if (type == "Prepend") {
    CONVENE_ASSIGN_OR_RETURN(std::string text, node.GetString("prepend"));
    return MakePrepend(std::move(text));
  }
  if (type == "Precompiled") {
    CONVENE_ASSIGN_OR_RETURN(const JsonNode charsmap, node.Get("precompiled_charsmap"));
    return ReadPrecompiled(charsmap);
  }
  return LacksFeature(node.place(), absl::StrCat("\"", type, "\""));
}

}  // namespace

absl::StatusOr<TextNormalizer> TextNormalizer::Read(const std::optional<JsonNode>& node) {
  TextNormalizer normalizer;
  if (!node.has_value()) return normalizer;
  size_t growth = 1;
  const auto add = [&](const std::string& type, const JsonNode& part) -> absl::Status {
    CONVENE_ASSIGN_OR_RETURN(Step step, ReadStep(type, part));
    CONVENE_RETURN_IF_ERROR(AddGrowth(step->growth(), part, &growth));
    normalizer.steps_.push_back(std::move(step));
    return absl::OkStatus();
  };
  CONVENE_RETURN_IF_ERROR(ForEachPart(*node, "normalizers", add));
  return normalizer;
}

absl::Status AddGrowth(size_t step_growth, const JsonNode& node, size_t* growth) {
  *growth *= step_growth;
  if (*growth <= kLargestGrowth) return absl::OkStatus();
  return LacksFeature(node.place(), "\"Replace\" that makes a text more than 4,096 times as long");
}

absl::StatusOr<std::unique_ptr<NormalizerStep>> ReadReplace(const JsonNode& node) {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Get("pattern"));
  CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<SplitPattern> pattern, ReadPattern(pattern_node));
  CONVENE_ASSIGN_OR_RETURN(std::string content, node.GetString("content"));
  // Newer versions put groups in place of $1, older ones do not.
  if (pattern_node.Find("Regex").has_value() && content.find('$') != std::string::npos) {
    return LacksFeature(node.place(), "\"Replace\" with $ in its \"content\"");
  }
  return MakeReplace(std::move(pattern), std::move(content));
}

absl::string_view TextNormalizer::Apply(absl::string_view text, size_t* at_start,
                                        Scratch* scratch) const {
  int free = 0;  // the scratch text that `text` is not a view of
  for (const Step& step : steps_) {
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
