#include "worker_runtime/inference/text_stream.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace convene::worker {
namespace {

// U+FFFD: the text of a character whose last bytes are still to come.
constexpr char kBrokenCharacter[] = "\xEF\xBF\xBD";

// So many tokens of a prompt tell how the next one is decoded: those before them stand too far
// back.
constexpr size_t kPromptTokens = 6;

// The longest end of `text` that is the beginning of `stop`, but not all of it.
size_t BegunLength(absl::string_view text, absl::string_view stop) {
  for (size_t length = std::min(text.size(), stop.size() - 1); length > 0; --length) {
    if (absl::EndsWith(text, stop.substr(0, length))) return length;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop_texts,
                       absl::Span<const int32_t> prompt)
    : tokenizer_(tokenizer), stop_texts_(std::move(stop_texts)) {
  prompt.remove_prefix(prompt.size() - std::min(prompt.size(), kPromptTokens));
  tokens_.assign(prompt.begin(), prompt.end());
  // A prompt that ends within a character has no text that stays as it is.
  if (absl::EndsWith(Decoded(0, tokens_.size()), kBrokenCharacter)) tokens_.clear();
  end_ = tokens_.size();
}

std::string TextStream::Decoded(size_t begin, size_t end) const {
  return tokenizer_.Decode(absl::MakeConstSpan(tokens_).subspan(begin, end - begin),
                           /*show_specials=*/false);
}

std::string TextStream::NewText() const {
  const std::string before = Decoded(begin_, end_);
  std::string text = Decoded(begin_, tokens_.size());
  if (absl::StartsWith(text, before)) return text.substr(before.size());
  return Decoded(end_, tokens_.size());
}

std::string TextStream::Add(int32_t token) {
  if (is_stopped_) return "";
  // Of special tokens no text is shown that could be looked through.
  if (absl::c_linear_search(stop_texts_, tokenizer_.SpecialTextOf(token))) {
    std::string rest = Finish();
    is_stopped_ = true;
    return rest;
  }
  tokens_.push_back(token);
  const std::string text = NewText();
  if (absl::EndsWith(text, kBrokenCharacter)) return "";
  held_ += text;
  begin_ = std::exchange(end_, tokens_.size());
  return Show(/*all=*/false);
}

std::string TextStream::Finish() {
  if (is_stopped_) return "";
  held_ += NewText();
  begin_ = end_ = tokens_.size();
  return Show(/*all=*/true);
}

std::string TextStream::Show(bool all) {
  size_t shown = held_.size();
  for (const std::string& stop : stop_texts_) {
    const size_t found = held_.find(stop);
    if (found == std::string::npos) continue;
    is_stopped_ = true;
    shown = std::min(shown, found);
  }
  if (!is_stopped_ && !all) {
    for (const std::string& stop : stop_texts_) {
      shown = std::min(shown, held_.size() - BegunLength(held_, stop));
    }
  }
  std::string text = held_.substr(0, shown);
  held_.erase(0, shown);
  return text;
}

}  // namespace convene::worker
