#include "worker_runtime/tokenizer/sentencepiece/normalizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {

Normalizer::Normalizer(const NormalizerSpec& spec, Charsmap charsmap,
                       bool treat_whitespace_as_suffix, const ByteTrie* user_symbols)
    : charsmap_(std::move(charsmap)),
      user_symbols_(user_symbols),
      add_dummy_prefix_(spec.add_dummy_prefix),
      remove_extra_whitespaces_(spec.remove_extra_whitespaces),
      treat_whitespace_as_suffix_(treat_whitespace_as_suffix),
      space_(spec.escape_whitespaces ? kSpaceSymbol : " ") {
  for (int byte = 0; byte < 128; ++byte) {
    uint32_t node = ByteTrie::kRoot;
    is_plain_[byte] =
        byte != ' ' &&
        (user_symbols_ == nullptr || !user_symbols_->Step(&node, static_cast<unsigned char>(byte)));
  }
}

Normalizer::Step Normalizer::Next(absl::string_view text) const {
  if (user_symbols_ != nullptr) {
    const size_t length = user_symbols_->Longest(text).length;
    if (length > 0) return {length, text.substr(0, length)};
  }
  const Charsmap::Rule rule = charsmap_.Longest(text);
  if (rule.length > 0) return {rule.length, rule.replacement};
  const Utf8Character first = FirstCharacter(text);
  if (!first.is_valid) return {1, kReplacementCharacter};
  return {first.length, text.substr(0, first.length)};
}

size_t Normalizer::PlainEnd(absl::string_view text, size_t begin) const {
  size_t end = begin;
  while (end + 1 < text.size()) {
    const auto byte = static_cast<unsigned char>(text[end]);
    if (!is_plain_[byte] || charsmap_.MayBegin(byte, static_cast<unsigned char>(text[end + 1]))) {
      break;
    }
    ++end;
  }
  return end;
}

void Normalizer::AppendSpacesReplaced(absl::string_view text, std::string* normalized) const {
  for (const char byte : text) {
    if (byte == ' ') {
      normalized->append(space_.data(), space_.size());
    } else {
      normalized->push_back(byte);
    }
  }
}

void Normalizer::Normalize(absl::string_view text, std::string* normalized) const {
  normalized->clear();
  if (remove_extra_whitespaces_) {
    while (!text.empty()) {
      const Step step = Next(text);
      if (step.result != " ") break;
      text.remove_prefix(step.length);
    }
  }
  if (text.empty()) return;
  normalized->reserve(text.size() + text.size() / 2 + 8);
  if (add_dummy_prefix_ && !treat_whitespace_as_suffix_) {
    normalized->append(space_.data(), space_.size());
  }
  bool after_space = remove_extra_whitespaces_;
  for (size_t at = 0; at < text.size();) {
    const size_t plain_end = PlainEnd(text, at);
    if (plain_end > at) {
      normalized->append(text.data() + at, plain_end - at);
      at = plain_end;
      after_space = false;
    }
    const Step step = Next(text.substr(at));
    at += step.length;
    absl::string_view result = step.result;
    while (after_space && absl::ConsumePrefix(&result, " ")) {
    }
    if (result.empty()) continue;
    AppendSpacesReplaced(result, normalized);
    after_space = remove_extra_whitespaces_ && result.back() == ' ';
  }
  if (remove_extra_whitespaces_) {
    while (absl::EndsWith(*normalized, space_)) {
      normalized->resize(normalized->size() - space_.size());
    }
  }
  if (add_dummy_prefix_ && treat_whitespace_as_suffix_) {
    normalized->append(space_.data(), space_.size());
  }
}

}  // namespace convene::worker
