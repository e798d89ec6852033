#include "worker_runtime/data/chat/special_texts.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/characters.h"

namespace convene::worker {
namespace {

using jinja::Value;

constexpr absl::string_view kBreak = "\xEE\x83\xB2";  // U+E0F2
// What tojson with ensure_ascii makes of it.
constexpr absl::string_view kEscapedBreak = "\\ue0f2";

}  // namespace

SpecialTexts::SpecialTexts(const Tokenizer& tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    std::string text = tokenizer.SpecialTextOf(id);
    if (text.empty() || !set_.insert(text).second) continue;
    std::vector<size_t>& lengths = lengths_[static_cast<uint8_t>(text[0])];
    if (std::find(lengths.begin(), lengths.end(), text.size()) == lengths.end()) {
      lengths.push_back(text.size());
    }
    for (size_t size = 1; size < text.size(); ++size) begins_.insert(text.substr(0, size));
    longest_ = std::max(longest_, text.size());
    texts_.push_back(std::move(text));
  }
  for (std::vector<size_t>& lengths : lengths_) {
    std::sort(lengths.begin(), lengths.end(), std::greater<>());
  }
}

size_t SpecialTexts::SpecialAt(absl::string_view text) const {
  for (const size_t length : lengths_[static_cast<uint8_t>(text[0])]) {
    if (length <= text.size() && set_.contains(text.substr(0, length))) return length;
  }
  return 0;
}

bool SpecialTexts::EndsLikeBegin(absl::string_view text) const {
  for (size_t size = 1; size < longest_ && size <= text.size(); ++size) {
    if (begins_.contains(text.substr(text.size() - size))) return true;
  }
  return false;
}

absl::StatusOr<Value> SpecialTexts::BreakValue(const Value& value, bool is_part,
                                               Found* found) const {
  if (value.is_list()) {
    std::vector<Value> items;
    for (const Value& item : value.as_list().items) {
      CONVENE_ASSIGN_OR_RETURN(Value broken, BreakValue(item, is_part, found));
      items.push_back(std::move(broken));
    }
    return jinja::NewList(std::move(items), value.as_list().kind);
  }
  if (value.is_dict()) {
    jinja::Dict dict;
    for (const auto& [key, item] : value.as_dict().entries()) {
      const Value broken_key = BreakString(Value::OfString(key), /*is_part=*/false, found);
      const bool has_parts = is_part || (*key == "content" && item.is_list());
      CONVENE_ASSIGN_OR_RETURN(Value broken, BreakValue(item, has_parts, found));
      dict.Set(broken_key.string_ptr(), std::move(broken));
    }
    return jinja::NewDict(std::move(dict));
  }
  return value.is_string() ? BreakString(value, is_part, found) : value;
}

Value SpecialTexts::BreakString(const Value& value, bool is_part, Found* found) const {
  const std::string& text = value.as_string();
  found->mark = found->mark || absl::StrContains(text, kBreak);
  std::string broken;
  size_t done = 0;
  const auto add_break = [&](size_t at) {
    broken.append(text, done, at - done);
    broken.append(kBreak.data(), kBreak.size());
    done = at;
    found->special = true;
  };
  for (size_t i = 0; i < text.size(); ++i) {
    if (SpecialAt(absl::string_view(text).substr(i)) == 0) continue;
    add_break(i + jinja::CharacterBytes(text[i]));
  }
  if (is_part && EndsLikeBegin(text)) add_break(text.size());
  if (broken.empty()) return value;
  broken.append(text, done, text.size() - done);
  return Value::OfString(std::move(broken));
}

absl::StatusOr<bool> SpecialTexts::Break(Conversation* conversation) const {
  Found found;
  for (Value& message : conversation->messages) {
    CONVENE_ASSIGN_OR_RETURN(message, BreakValue(message, /*is_part=*/false, &found));
  }
  const jinja::Dict::Entries variables = conversation->variables.entries();
  for (const auto& [key, value] : variables) {
    CONVENE_ASSIGN_OR_RETURN(Value broken, BreakValue(value, /*is_part=*/false, &found));
    conversation->variables.Set(key, std::move(broken));
  }
  if (found.special && found.mark) {
    return absl::InvalidArgumentError(
        "the conversation has the text of a special token, and also the character U+E0F2, which is "
        "used here to keep the two apart");
  }
  return found.special;
}

absl::StatusOr<std::vector<size_t>> SpecialTexts::Mend(std::string* text,
                                                       std::vector<jinja::TextSpan>* spans) {
  std::vector<size_t> places;
  if (absl::StrContains(*text, kEscapedBreak)) {
    return absl::InvalidArgumentError(
        "a message has the text of a special token, and the chat template writes it with escapes");
  }
  if (!absl::StrContains(*text, kBreak)) return places;
  std::string mended;
  size_t done = 0;
  const std::vector<jinja::TextSpan> before = *spans;
  // Moves the ends of spans that lie behind `found` to the front.
  const auto move = [&](size_t found) {
    for (size_t i = 0; i < before.size(); ++i) {
      if (before[i].begin > found) (*spans)[i].begin -= kBreak.size();
      if (before[i].end > found) (*spans)[i].end -= kBreak.size();
    }
  };
  for (size_t found = text->find(kBreak.data(), 0, kBreak.size()); found != std::string::npos;
       found = text->find(kBreak.data(), done, kBreak.size())) {
    mended.append(*text, done, found - done);
    places.push_back(mended.size());
    move(found);
    done = found + kBreak.size();
  }
  mended.append(*text, done, text->size() - done);
  *text = std::move(mended);
  return places;
}

}  // namespace convene::worker
