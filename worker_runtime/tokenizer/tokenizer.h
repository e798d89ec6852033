// Text to token ids and back. Implementations give the same ids as the program that the file came
// from (tiktoken, Hugging Face's tokenizers, SentencePiece, mistral-common).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace convene::worker {

// Turns texts into ids. Not thread-safe: each thread makes its own, which keeps that thread's
// buffers and its cache of words. Must not outlive its tokenizer.
class Encoder {
 public:
  virtual ~Encoder() = default;

  // Appends the ids of `text`, any bytes. Bytes that are no UTF-8 count as U+FFFD, as many as the
  // original program makes of them, except where the tokenizer has bytes as tokens and the original
  // takes them. Adds no token around the text (Tokenizer::prefix, suffix). Time is n log n at most
  // in the text's length, whatever the text.
  virtual void Encode(absl::string_view text, std::vector<int32_t>* ids) = 0;
};

// The meaning of a text such as "<|eot_id|>" within a document.
enum class SpecialText {
  kAsText,    // its letters: a document cannot forge the end of a document
  kAsTokens,  // the special token: for texts that a chat template made, and for prompts
};

// A special token by the name that transformers has for it: {"bos_token", "<s>"}. A name that is of
// several tokens ("additional_special_tokens") stands once for each.
struct NamedToken {
  std::string name, text;
  friend bool operator==(const NamedToken&, const NamedToken&) = default;
};

// Read-only and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // For people: "byte", "tiktoken", "tekken", "tokenizer.json (BPE)", "SentencePiece (unigram)".
  const std::string& kind() const { return kind_; }
  // XXH3-64 of all that decides about ids: equal fingerprints give equal ids for every text.
  uint64_t fingerprint() const { return fingerprint_; }
  // One more than the largest id, special tokens included.
  int vocabulary_size() const { return vocabulary_size_; }
  // One more than the largest id that a document has: of the tokens that stand for bytes, of
  // prefix(), suffix() and end_of_document(). A model of so many tokens may lack the special ones
  // behind them, which only a chat template can write (Gemma 3 1B lacks "<image_soft_token>").
  int document_vocabulary_size() const;

  virtual std::unique_ptr<Encoder> NewEncoder(SpecialText special_text) const = 0;

  // The id of the special token with exactly this text, such as "<|eot_id|>".
  virtual std::optional<int32_t> SpecialId(absl::string_view text) const = 0;
  // Its text; empty for an ordinary token.
  virtual std::string SpecialTextOf(int32_t id) const = 0;
  // The same, and the text of the tokens that are found in every text before it is cut into words,
  // with SpecialText::kAsText too: tokenizer.json's added tokens that are not "special",
  // SentencePiece's USER_DEFINED pieces.
  virtual std::string AddedTextOf(int32_t id) const { return SpecialTextOf(id); }

  // The ids that the original puts before and after a document when it is to add special tokens
  // (BOS by TemplateProcessing or add_bos_token, EOS). Often empty.
  absl::Span<const int32_t> prefix() const { return prefix_; }
  absl::Span<const int32_t> suffix() const { return suffix_; }
  // The token that ends a document in training data: "<|end_of_text|>", "</s>", "<|endoftext|>";
  // byte 0 of the byte tokenizer. Absent where the file names none.
  std::optional<int32_t> end_of_document() const { return end_of_document_; }

  // The tokens that a chat template may print by name: those that the tokenizer's files name, and
  // where the files name none, prefix() as "bos_token" and end_of_document() as "eos_token".
  absl::Span<const NamedToken> named_tokens() const { return named_tokens_; }
  // For its maker, before others see the tokenizer.
  void SetNamedTokens(std::vector<NamedToken> named) { named_tokens_ = std::move(named); }

  // Appends the bytes that one token stands for, without regard to its neighbours: what
  // the count of bytes for bits per byte needs. Special tokens stand for no bytes. An id that the
  // tokenizer does not have, negative ones too, stands for no bytes.
  virtual void AppendTokenBytes(int32_t id, std::string* bytes) const = 0;

  // The text of whole `ids`, as the original decodes it (its rules for leading spaces and broken
  // UTF-8). Special tokens are left out, or stand as their text with `show_specials`.
  virtual std::string Decode(absl::Span<const int32_t> ids, bool show_specials) const = 0;

 protected:
  // Constant once the tokenizer is made.
  std::string kind_;
  uint64_t fingerprint_ = 0;
  int vocabulary_size_ = 0;
  std::vector<int32_t> prefix_, suffix_;
  std::optional<int32_t> end_of_document_;
  std::vector<NamedToken> named_tokens_;
};

}  // namespace convene::worker
