#include "worker_runtime/tokenizer/known_vocabularies.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "worker_runtime/tokenizer/fingerprint.h"
#include "worker_runtime/tokenizer/scanners.h"

namespace convene::worker {
namespace {

using Token = SpecialTokens::Token;

// Appends "<|NAME_i|>" for i in [first, last].
void AddNumbered(absl::string_view name, int first, int last, std::vector<std::string>* texts) {
  for (int i = first; i <= last; ++i) texts->push_back(absl::StrCat("<|", name, "_", i, "|>"));
}

std::vector<Token> Numbered(const std::vector<std::string>& texts, int32_t first_id) {
  std::vector<Token> tokens;
  for (const std::string& text : texts) tokens.push_back({text, first_id++});
  return tokens;
}

// llama-models, models/llama3/tokenizer.py.
std::vector<Token> Llama3Tokens() {
  std::vector<std::string> texts = {"<|begin_of_text|>", "<|end_of_text|>"};
  AddNumbered("reserved_special_token", 0, 1, &texts);
  for (const char* const text :
       {"<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>",
        "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>"}) {
    texts.emplace_back(text);
  }
  AddNumbered("reserved_special_token", 2, 245, &texts);
  return Numbered(texts, 128'000);
}

// llama-models, models/llama4/tokenizer.py.
std::vector<Token> Llama4Tokens() {
  std::vector<std::string> texts = {
      "<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
      "<|header_start|>",  "<|header_end|>",  "<|eom|>",        "<|eot|>",        "<|step|>"};
  AddNumbered("text_post_train_reserved_special_token", 0, 5, &texts);
  for (const char* const text : {"<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"}) {
    texts.emplace_back(text);
  }
  AddNumbered("text_post_train_reserved_special_token", 8, 68, &texts);
  texts.insert(texts.end(), {"<|image_start|>", "<|image_end|>"});
  AddNumbered("vision_reserved_special_token", 0, 1, &texts);
  texts.insert(texts.end(), {"<|tile_x_separator|>", "<|tile_y_separator|>"});
  AddNumbered("vision_reserved_special_token", 2, 5, &texts);
  texts.emplace_back("<|image|>");
  AddNumbered("vision_reserved_special_token", 6, 6, &texts);
  texts.emplace_back("<|patch|>");
  AddNumbered("vision_reserved_special_token", 7, 1047, &texts);
  AddNumbered("reasoning_reserved_special_token", 0, 7, &texts);
  texts.insert(texts.end(), {"<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"});
  AddNumbered("reserved_special_token", 0, 2047 - static_cast<int>(texts.size()), &texts);
  return Numbered(texts, 200'000);
}

// QwenLM, tokenization_qwen.py.
std::vector<Token> QwenTokens() {
  std::vector<std::string> texts = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
  AddNumbered("extra", 0, 204, &texts);
  return Numbered(texts, 151'643);
}

// The digests are those of the files in the packages that tools/tokenizer_environment fetches. The
// special tokens of GPT-2, cl100k and o200k: tiktoken, tiktoken_ext/openai_public.py.
const std::vector<KnownVocabulary>& Table() {
  static const auto* const table = new std::vector<KnownVocabulary>{
      {.name = "GPT-2",
       .tokens = 50'256,
       .digest = 0xa817f8fa8fb37e35,
       .pattern = kGpt2Pattern,
       .special_tokens = {{"<|endoftext|>", 50'256}},
       .end_of_document = "<|endoftext|>"},
      {.name = "cl100k",
       .tokens = 100'256,
       .digest = 0x3372e48a11c10760,
       .pattern = kCl100kPattern,
       .special_tokens = {{"<|endoftext|>", 100'257},
                          {"<|fim_prefix|>", 100'258},
                          {"<|fim_middle|>", 100'259},
                          {"<|fim_suffix|>", 100'260},
                          {"<|endofprompt|>", 100'276}},
       .end_of_document = "<|endoftext|>"},
      {.name = "o200k",
       .tokens = 199'998,
       .digest = 0xad3dd0f4233e6ebe,
       .pattern = kO200kPattern,
       .special_tokens = {{"<|endoftext|>", 199'999}, {"<|endofprompt|>", 200'018}},
       .end_of_document = "<|endoftext|>"},
      {.name = "Llama 3",
       .tokens = 128'000,
       .digest = 0x30f04ad2575fb929,
       .pattern = kLlama3Pattern,
       .special_tokens = Llama3Tokens(),
       .begin_of_document = "<|begin_of_text|>",
       .end_of_document = "<|end_of_text|>"},
      {.name = "Llama 4",
       .tokens = 200'000,
       .digest = 0x5d973349bd55bc74,
       .pattern = kO200kPattern,
       .special_tokens = Llama4Tokens(),
       .begin_of_document = "<|begin_of_text|>",
       .end_of_document = "<|end_of_text|>"},
      {.name = "Qwen",
       .tokens = 151'643,
       .digest = 0xc59612ae2b6a1540,
       .pattern = kQwen2Pattern,
       .special_tokens = QwenTokens(),
       .end_of_document = "<|endoftext|>",
       .is_normalized_to_nfc = true}};
  return *table;
}

}  // namespace

uint64_t TokensDigest(const std::vector<std::string>& tokens) {
  Fingerprint digest;
  for (const std::string& token : tokens) digest.Add(token);
  return digest.value();
}

const KnownVocabulary* FindKnownVocabulary(size_t tokens, uint64_t digest) {
  for (const KnownVocabulary& known : Table()) {
    if (static_cast<size_t>(known.tokens) == tokens && known.digest == digest) return &known;
  }
  return nullptr;
}

std::vector<std::string> KnownVocabularyNames() {
  std::vector<std::string> names;
  for (const KnownVocabulary& known : Table()) names.emplace_back(known.name);
  return names;
}

}  // namespace convene::worker
