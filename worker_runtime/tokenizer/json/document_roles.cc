#include "worker_runtime/tokenizer/json/document_roles.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

// Of Llama 3, Llama 2 and Mistral, GPT-2 and Qwen, Gemma, DeepSeek.
constexpr const char* kEndNames[] = {
    "<|end_of_text|>", "</s>", "<|endoftext|>", "<eos>", "<｜end▁of▁sentence｜>",
};

absl::Status CheckKnown(std::optional<int32_t> id, const char* setting, const std::string& text) {
  if (id.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(setting, " is true, but the tokenizer has no token \"", text, "\""));
}

}  // namespace

absl::Status ApplyVocabularyConfig(const VocabularyConfig& config, std::optional<int32_t> bos,
                                   std::optional<int32_t> eos, AddedAround* frame) {
  if (config.adds_begin_of_document.has_value()) {
    const bool is_wanted = *config.adds_begin_of_document;
    if (is_wanted) {
      CONVENE_RETURN_IF_ERROR(CheckKnown(bos, "add_bos_token", config.begin_of_document));
    }
    std::vector<int32_t>& prefix = frame->prefix;
    const bool is_there = bos.has_value() && !prefix.empty() && prefix.front() == *bos;
    if (is_wanted && !is_there) prefix.insert(prefix.begin(), *bos);
    if (!is_wanted && is_there) prefix.erase(prefix.begin());
  }
  if (config.adds_end_of_document.has_value()) {
    const bool is_wanted = *config.adds_end_of_document;
    if (is_wanted) {
      CONVENE_RETURN_IF_ERROR(CheckKnown(eos, "add_eos_token", config.end_of_document));
    }
    std::vector<int32_t>& suffix = frame->suffix;
    const bool is_there = eos.has_value() && !suffix.empty() && suffix.back() == *eos;
    if (is_wanted && !is_there) suffix.push_back(*eos);
    if (!is_wanted && is_there) suffix.pop_back();
  }
  return absl::OkStatus();
}

std::optional<int32_t> FindEndOfDocument(std::optional<int32_t> eos, const AddedAround& frame,
                                         const AddedTokens& added) {
  std::optional<int32_t> end;
  bool is_only = true;
  for (const char* name : kEndNames) {
    if (!added.IsSpecial(name)) continue;
    is_only = !end.has_value();
    end = added.Find(absl::string_view(name));
  }
  if (end.has_value() && is_only) return end;
  if (eos.has_value()) return eos;
  if (frame.suffix.size() == 1) return frame.suffix.front();
  return std::nullopt;
}

}  // namespace convene::worker
