#include "worker_runtime/tokenizer/json/tokenizer_config.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// A token is its text, or an object with the text as "content".
absl::StatusOr<std::string> ReadTokenText(const JsonNode& config, const char* key) {
  const auto node = config.Find(key);
  if (!node.has_value()) return std::string();
  if (node->value().is_object()) return node->GetString("content");
  return node->String();
}

absl::StatusOr<std::optional<bool>> ReadOptionalBool(const JsonNode& config, const char* key) {
  const auto node = config.Find(key);
  if (!node.has_value()) return std::optional<bool>();
  CONVENE_ASSIGN_OR_RETURN(const bool value, node->Bool());
  return std::optional<bool>(value);
}

// Of Llama 3, Llama 2 and Mistral, GPT-2 and Qwen, Gemma, DeepSeek.
constexpr const char* kEndNames[] = {
    "<|end_of_text|>", "</s>", "<|endoftext|>", "<eos>", "<｜end▁of▁sentence｜>",
};

}  // namespace

absl::StatusOr<TokenizerConfig> ReadTokenizerConfig(const JsonNode& config) {
  if (!config.value().is_object()) return config.Error("should be an object");
  TokenizerConfig result;
  CONVENE_ASSIGN_OR_RETURN(result.bos, ReadTokenText(config, "bos_token"));
  CONVENE_ASSIGN_OR_RETURN(result.eos, ReadTokenText(config, "eos_token"));
  CONVENE_ASSIGN_OR_RETURN(result.pad, ReadTokenText(config, "pad_token"));
  CONVENE_ASSIGN_OR_RETURN(result.adds_bos, ReadOptionalBool(config, "add_bos_token"));
  CONVENE_ASSIGN_OR_RETURN(result.adds_eos, ReadOptionalBool(config, "add_eos_token"));
  return result;
}

absl::Status ApplyTokenizerConfig(const TokenizerConfig& config, std::optional<int32_t> bos,
                                  std::optional<int32_t> eos, DocumentFrame* frame) {
  const auto unknown = [](const char* setting, const char* token, const std::string& text) {
    return absl::InvalidArgumentError(
        absl::StrCat(setting, " is true, but the tokenizer has no ", token, " \"", text, "\""));
  };
  if (config.adds_bos.has_value()) {
    std::vector<int32_t>& prefix = frame->prefix;
    const bool has_bos = bos.has_value() && !prefix.empty() && prefix.front() == *bos;
    if (*config.adds_bos && !bos.has_value())
      return unknown("add_bos_token", "bos_token", config.bos);
    if (*config.adds_bos && !has_bos) prefix.insert(prefix.begin(), *bos);
    if (!*config.adds_bos && has_bos) prefix.erase(prefix.begin());
  }
  if (config.adds_eos.has_value()) {
    std::vector<int32_t>& suffix = frame->suffix;
    const bool has_eos = eos.has_value() && !suffix.empty() && suffix.back() == *eos;
    if (*config.adds_eos && !eos.has_value())
      return unknown("add_eos_token", "eos_token", config.eos);
    if (*config.adds_eos && !has_eos) suffix.push_back(*eos);
    if (!*config.adds_eos && has_eos) suffix.pop_back();
  }
  return absl::OkStatus();
}

std::optional<int32_t> FindEndOfDocument(std::optional<int32_t> eos, const DocumentFrame& frame,
                                         const AddedTokens& added) {
  if (eos.has_value()) return eos;
  if (frame.suffix.size() == 1) return frame.suffix.front();
  std::optional<int32_t> end;
  for (const char* name : kEndNames) {
    if (!added.IsSpecial(name)) continue;
    if (end.has_value()) return std::nullopt;
    end = added.Find(absl::string_view(name));
  }
  return end;
}

}  // namespace convene::worker
