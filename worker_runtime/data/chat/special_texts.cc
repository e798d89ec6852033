#include "worker_runtime/data/chat/special_texts.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/characters.h"
#include "worker_runtime/data/chat/named_template.h"

namespace convene::worker {
namespace {

using jinja::Value;

constexpr absl::string_view kBreak = "\xEE\x83\xB2";  // U+E0F2
// What tojson with ensure_ascii makes of it.
constexpr absl::string_view kEscapedBreak = "\\ue0f2";

// Whether a template may write this added token, and a user forge it.
bool CanFrame(absl::string_view text, absl::string_view template_source) {
  // A word such as "user" would change roles and keys too.
  if (jinja::Strip(text).empty() || absl::c_all_of(text, absl::ascii_isalnum)) return false;
  return absl::StrContains(text, "|") || absl::StrContains(text, "\uFF5C") ||
         absl::StrContains(template_source, text);
}

// Whether `text` ends with the begin of one of `texts`, but not with a whole one.
bool EndsLikeBegin(const ByteTrie& texts, absl::string_view text) {
  for (size_t begin = 0; begin < text.size(); ++begin) {
    uint32_t node = ByteTrie::kRoot;
    size_t at = begin;
    while (at < text.size() && texts.Step(&node, static_cast<unsigned char>(text[at]))) ++at;
    if (at == text.size() && texts.GoesOn(node)) return true;
  }
  return false;
}

ByteTrie TrieOf(const std::vector<std::string>& texts) {
  std::vector<ByteTrie::Entry> entries;
  for (const std::string& text : texts) entries.push_back({text, 0});
  return ByteTrie(std::move(entries));
}

}  // namespace

SpecialTexts::SpecialTexts(const Tokenizer& tokenizer, absl::string_view template_source) {
  std::vector<std::string> turns, all;
  for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const std::string text = tokenizer.AddedTextOf(id);
    if (text.empty()) continue;
    const bool is_special = !tokenizer.SpecialTextOf(id).empty();
    const bool is_turn = !is_special && IsSpecialOfAFormat(text);
    if (is_turn && turn_ids_.emplace(text, id).second) turns.push_back(text);
    if (is_special || is_turn) texts_.push_back(text);
    if (is_special || is_turn || CanFrame(text, template_source)) all.push_back(text);
  }
  turns_ = TrieOf(turns);
  specials_ = TrieOf(texts_);
  all_ = TrieOf(all);
}

std::vector<size_t> SpecialTexts::CutsOf(const ByteTrie& texts, absl::string_view text) {
  std::vector<size_t> cuts;
  for (size_t i = 0; i < text.size(); ++i) {
    if (texts.Longest(text.substr(i)).length > 0) cuts.push_back(i + CharacterLength(text[i]));
  }
  return cuts;
}

std::optional<int32_t> SpecialTexts::TurnTokenId(absl::string_view text) const {
  const auto found = turn_ids_.find(text);
  if (found == turn_ids_.end()) return std::nullopt;
  return found->second;
}

absl::StatusOr<Value> SpecialTexts::BreakValue(const Value& value, bool is_part, Pass* pass) {
  if (value.is_list()) {
    std::vector<Value> items;
    for (const Value& item : value.as_list().items) {
      CONVENE_ASSIGN_OR_RETURN(Value broken, BreakValue(item, is_part, pass));
      items.push_back(std::move(broken));
    }
    return jinja::NewList(std::move(items), value.as_list().kind);
  }
  if (value.is_dict()) {
    jinja::Dict dict;
    for (const auto& [key, item] : value.as_dict().entries()) {
      const Value broken_key = BreakString(Value::OfString(key), /*is_part=*/false, pass);
      const bool has_parts = is_part || (*key == "content" && item.is_list());
      CONVENE_ASSIGN_OR_RETURN(Value broken, BreakValue(item, has_parts, pass));
      dict.Set(broken_key.string_ptr(), std::move(broken));
    }
    return jinja::NewDict(std::move(dict));
  }
  return value.is_string() ? BreakString(value, is_part, pass) : value;
}

Value SpecialTexts::BreakString(const Value& value, bool is_part, Pass* pass) {
  const std::string& text = value.as_string();
  pass->mark = pass->mark || absl::StrContains(text, kBreak);
  std::string broken;
  size_t done = 0;
  const auto add_break = [&](size_t at) {
    broken.append(text, done, at - done);
    broken.append(kBreak.data(), kBreak.size());
    done = at;
    pass->found = true;
  };
  for (const size_t cut : CutsOf(*pass->texts, text)) add_break(cut);
  if (is_part && EndsLikeBegin(*pass->texts, text)) add_break(text.size());
  if (broken.empty()) return value;
  broken.append(text, done, text.size() - done);
  return Value::OfString(std::move(broken));
}

absl::StatusOr<bool> SpecialTexts::Break(Conversation* conversation) const {
  Pass pass = {&all_};
  const jinja::Dict::Entries variables = conversation->variables.entries();
  for (const auto& [key, value] : variables) {
    CONVENE_ASSIGN_OR_RETURN(Value broken, BreakValue(value, /*is_part=*/false, &pass));
    conversation->variables.Set(key, std::move(broken));
  }
  for (Value& message : conversation->messages) {
    pass.texts = RoleOf(message) == "assistant" ? &specials_ : &all_;
    CONVENE_ASSIGN_OR_RETURN(message, BreakValue(message, /*is_part=*/false, &pass));
  }
  if (pass.found && pass.mark) {
    return absl::InvalidArgumentError(
        "the conversation has the text of a special token, and also the character U+E0F2, which is "
        "used here to keep the two apart");
  }
  return pass.found;
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
