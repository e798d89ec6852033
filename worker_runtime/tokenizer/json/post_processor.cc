#include "worker_runtime/tokenizer/json/post_processor.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/base/status_macros.h"

namespace convene::worker {
namespace {

absl::StatusOr<std::vector<int32_t>> ReadIds(const JsonNode& node, int vocabulary_size) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements, node.Elements());
  std::vector<int32_t> ids;
  for (const JsonNode& element : elements) {
    CONVENE_ASSIGN_OR_RETURN(const int64_t id, element.Number(vocabulary_size - 1));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

absl::StatusOr<AddedAround> ReadTemplate(const JsonNode& node, int vocabulary_size) {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode single, node.Get("single"));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> parts, single.Elements());
  AddedAround frame;
  int texts = 0;
  for (const JsonNode& part : parts) {
    if (part.Find("Sequence").has_value()) {
      CONVENE_ASSIGN_OR_RETURN(const std::string id, part.Find("Sequence")->GetString("id"));
      if (id != "A") return LacksFeature(part.place(), "\"single\" without the text A alone");
      ++texts;
      continue;
    }
    CONVENE_ASSIGN_OR_RETURN(const JsonNode special, part.Get("SpecialToken"));
    CONVENE_ASSIGN_OR_RETURN(const std::string id, special.GetString("id"));
    CONVENE_ASSIGN_OR_RETURN(const JsonNode tokens, node.Get("special_tokens"));
    CONVENE_ASSIGN_OR_RETURN(const JsonNode token, tokens.Get(id));
    CONVENE_ASSIGN_OR_RETURN(const JsonNode ids_node, token.Get("ids"));
    CONVENE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ReadIds(ids_node, vocabulary_size));
    std::vector<int32_t>& side = texts == 0 ? frame.prefix : frame.suffix;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (texts != 1) return LacksFeature(single.place(), "\"single\" without the text A alone");
  return frame;
}

// BertProcessing and RobertaProcessing: "cls" before and "sep" behind, each [text, id].
absl::StatusOr<int32_t> ReadNamedToken(const JsonNode& node, const char* key, int vocabulary_size) {
  CONVENE_ASSIGN_OR_RETURN(const JsonNode token, node.Get(key));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<JsonNode> parts, token.Elements());
  if (parts.size() != 2) return token.Error("should be [text, id]");
  CONVENE_ASSIGN_OR_RETURN(const int64_t id, parts[1].Number(vocabulary_size - 1));
  return static_cast<int32_t>(id);
}

absl::StatusOr<AddedAround> ReadNamedTokens(const JsonNode& node, int vocabulary_size) {
  CONVENE_ASSIGN_OR_RETURN(const int32_t first, ReadNamedToken(node, "cls", vocabulary_size));
  CONVENE_ASSIGN_OR_RETURN(const int32_t last, ReadNamedToken(node, "sep", vocabulary_size));
  return AddedAround{{first}, {last}};
}

// The tokens that the part `type`, which is no Sequence, adds.
absl::StatusOr<AddedAround> ReadProcessor(const std::string& type, const JsonNode& node,
                                          int vocabulary_size) {
  if (type == "TemplateProcessing") return ReadTemplate(node, vocabulary_size);
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    return ReadNamedTokens(node, vocabulary_size);
  }
  if (type == "ByteLevel") return AddedAround();  // which only corrects offsets
  return LacksFeature(node.place(), absl::StrCat("\"", type, "\""));
}

// Of Llama 3, Llama 2 and Mistral, GPT-2 and Qwen, Gemma, DeepSeek.
constexpr const char* kEndNames[] = {
    "<|end_of_text|>", "</s>", "<|endoftext|>", "<eos>", "<｜end▁of▁sentence｜>",
};

// The beginnings of the classes whose add_bos_token and add_eos_token transformers 4 heeds:
// "LlamaTokenizerFast". The others, and all of version 5, have what the post-processor says. A file
// without a class may be one of llama.cpp's, which says it by these settings alone.
constexpr absl::string_view kHeeding[] = {"Llama", "CodeLlama", "Gemma", "Cohere", "GPTNeoX"};

bool IsHeeding(absl::string_view tokenizer_class) {
  return tokenizer_class.empty() ||
         std::any_of(std::begin(kHeeding), std::end(kHeeding), [&](absl::string_view name) {
           return absl::StartsWith(tokenizer_class, name);
         });
}

// Makes the token `id` the first or last of `side`, where `setting` says so, or takes it away.
absl::Status Apply(std::optional<bool> is_wanted, const char* setting, const std::string& text,
                   std::optional<int32_t> id, bool is_first, std::vector<int32_t>* side) {
  if (!is_wanted.has_value()) return absl::OkStatus();
  if (*is_wanted && !id.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(setting, " is true, but the tokenizer has no token \"", text, "\""));
  }
  const bool is_there =
      id.has_value() && !side->empty() && (is_first ? side->front() : side->back()) == *id;
  if (*is_wanted && !is_there) side->insert(is_first ? side->begin() : side->end(), *id);
  if (!*is_wanted && is_there) side->erase(is_first ? side->begin() : side->end() - 1);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<AddedAround> ReadPostProcessor(const std::optional<JsonNode>& node,
                                              int vocabulary_size) {
  AddedAround frame;
  if (!node.has_value()) return frame;
  const auto add = [&](const std::string& type, const JsonNode& part) -> absl::Status {
    CONVENE_ASSIGN_OR_RETURN(const AddedAround outer, ReadProcessor(type, part, vocabulary_size));
    frame.prefix.insert(frame.prefix.begin(), outer.prefix.begin(), outer.prefix.end());
    frame.suffix.insert(frame.suffix.end(), outer.suffix.begin(), outer.suffix.end());
    return absl::OkStatus();
  };
  CONVENE_RETURN_IF_ERROR(ForEachPart(*node, "processors", add));
  return frame;
}

absl::Status ApplyVocabularyConfig(const VocabularyConfig& config, std::optional<int32_t> bos,
                                   std::optional<int32_t> eos, AddedAround* frame) {
  if (!IsHeeding(config.tokenizer_class)) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(Apply(config.adds_begin_of_document, "add_bos_token",
                                config.begin_of_document, bos, /*is_first=*/true, &frame->prefix));
  return Apply(config.adds_end_of_document, "add_eos_token", config.end_of_document, eos,
               /*is_first=*/false, &frame->suffix);
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
