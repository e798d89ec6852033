// A small tokenizer for tests: known words, else bytes, and special tokens.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "worker_runtime/tokenizer/tokenizer.h"

namespace convene::worker {

struct FakeTokenizerOptions {
  std::vector<std::string> words;
  std::vector<std::string> specials;
  std::vector<std::string> added;   // of the words, those that are added tokens
  std::string end_of_document;      // a special token; empty: none
  std::string before_document;      // a special token; empty: none
  bool puts_space_before = false;   // as SentencePiece: before each text between special tokens
  bool special_eats_space = false;  // behind a special token, white space vanishes
  bool makes_lower_case = false;    // rewrites its input
};

// Ids: the bytes, then the words, then the special tokens.
class FakeTokenizer : public Tokenizer {
 public:
  explicit FakeTokenizer(FakeTokenizerOptions options) : options_(std::move(options)) {
    kind_ = "fake";
    fingerprint_ = 1;
    vocabulary_size_ = static_cast<int>(256 + options_.words.size() + options_.specials.size());
    end_of_document_ = SpecialId(options_.end_of_document);
    if (!options_.before_document.empty()) prefix_ = {*SpecialId(options_.before_document)};
  }

  std::unique_ptr<Encoder> NewEncoder(SpecialText special_text) const override {
    return std::make_unique<FakeEncoder>(*this, special_text);
  }
  std::optional<int32_t> SpecialId(absl::string_view text) const override {
    for (size_t i = 0; i < options_.specials.size(); ++i) {
      if (options_.specials[i] == text) return static_cast<int32_t>(first_special() + i);
    }
    return std::nullopt;
  }
  std::string SpecialTextOf(int32_t id) const override {
    return id < first_special() ? "" : options_.specials[id - first_special()];
  }
  std::string AddedTextOf(int32_t id) const override {
    if (id < 256 || id >= first_special()) return SpecialTextOf(id);
    const std::string& word = options_.words[id - 256];
    return absl::c_linear_search(options_.added, word) ? word : "";
  }
  void AppendTokenBytes(int32_t id, std::string* bytes) const override {
    if (id < 256) {
      bytes->push_back(static_cast<char>(id));
    } else if (id < first_special()) {
      bytes->append(options_.words[id - 256]);
    }
  }
  std::string Decode(absl::Span<const int32_t> ids, bool show_specials) const override {
    std::string text;
    for (const int32_t id : ids) {
      AppendTokenBytes(id, &text);
      if (show_specials) text += SpecialTextOf(id);
    }
    return text;
  }

 private:
  class FakeEncoder : public Encoder {
   public:
    FakeEncoder(const FakeTokenizer& tokenizer, SpecialText special_text)
        : tokenizer_(tokenizer), specials_(special_text == SpecialText::kAsTokens) {}

    void Encode(absl::string_view text, std::vector<int32_t>* ids) override {
      const FakeTokenizerOptions& options = tokenizer_.options_;
      const std::string lower = absl::AsciiStrToLower(text);
      if (options.makes_lower_case) text = lower;
      bool begins = true;
      while (!text.empty()) {
        if (specials_ && TakeSpecial(&text, ids)) {
          begins = true;
          continue;
        }
        if (begins && options.puts_space_before) TakeWord(absl::StrCat(" ", text), &text, 1, ids);
        if (!begins || !options.puts_space_before) TakeWord(text, &text, 0, ids);
        begins = false;
      }
    }

   private:
    bool TakeSpecial(absl::string_view* text, std::vector<int32_t>* ids) {
      for (const std::string& special : tokenizer_.options_.specials) {
        if (!absl::StartsWith(*text, special)) continue;
        ids->push_back(*tokenizer_.SpecialId(special));
        text->remove_prefix(special.size());
        if (tokenizer_.options_.special_eats_space)
          *text = absl::StripLeadingAsciiWhitespace(*text);
        return true;
      }
      return false;
    }
    // The longest word at the begin of `seen`, or a byte; takes it off `text`, of which `seen` has
    // `added` bytes more.
    void TakeWord(absl::string_view seen, absl::string_view* text, size_t added,
                  std::vector<int32_t>* ids) {
      const std::vector<std::string>& words = tokenizer_.options_.words;
      size_t best = 0;
      int32_t id = static_cast<uint8_t>(seen[0]);
      for (size_t i = 0; i < words.size(); ++i) {
        if (words[i].size() <= best || !absl::StartsWith(seen, words[i])) continue;
        best = words[i].size();
        id = static_cast<int32_t>(256 + i);
      }
      ids->push_back(id);
      text->remove_prefix(std::max<size_t>(best, 1) - added);
    }

    const FakeTokenizer& tokenizer_;
    const bool specials_;
  };

  int first_special() const { return static_cast<int>(256 + options_.words.size()); }

  const FakeTokenizerOptions options_;
};

}  // namespace convene::worker
