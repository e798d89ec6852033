#include "worker_runtime/data/chat/jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/jinja/characters.h"

namespace convene::worker::jinja {
namespace {

// Python's float.__repr__: the shortest digits that read back as the same value; an exponent below
// 1e-4 and from 1e16 on.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  absl::string_view text(buffer, end - buffer);
  std::string sign;
  if (text[0] == '-') {
    sign = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  int exponent = 0;
  const char* const exponent_begin = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_begin, text.data() + text.size(), exponent);
  std::string digits(1, text[0]);
  if (e > 2) absl::StrAppend(&digits, text.substr(2, e - 2));
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = count > 1 ? absl::StrCat(".", digits.substr(1)) : "";
    return absl::StrFormat("%s%c%se%c%02d", sign, digits[0], fraction, exponent < 0 ? '-' : '+',
                           std::abs(exponent));
  }
  if (exponent < 0) return absl::StrCat(sign, "0.", std::string(-exponent - 1, '0'), digits);
  if (count <= exponent + 1) {
    return absl::StrCat(sign, digits, std::string(exponent + 1 - count, '0'), ".0");
  }
  return absl::StrCat(sign, digits.substr(0, exponent + 1), ".", digits.substr(exponent + 1));
}

// Python's str.__repr__.
absl::Status AppendQuoted(absl::string_view value, Budget* budget, std::string* text) {
  CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(value.size()));
  const bool has_single = value.find('\'') != absl::string_view::npos;
  const char quote = has_single && value.find('"') == absl::string_view::npos ? '"' : '\'';
  text->push_back(quote);
  for (size_t i = 0; i < value.size();) {
    const auto [character, bytes] = CharacterAt(value, i);
    if (character == '\n') {
      text->append("\\n");
    } else if (character == '\r') {
      text->append("\\r");
    } else if (character == '\t') {
      text->append("\\t");
    } else if (character == static_cast<char32_t>(quote) || character == '\\') {
      text->push_back('\\');
      text->push_back(static_cast<char>(character));
    } else if (IsPrintable(character)) {
      text->append(value.data() + i, bytes);
    } else if (character < 0x100) {
      absl::StrAppendFormat(text, "\\x%02x", static_cast<uint32_t>(character));
    } else if (character < 0x10000) {
      absl::StrAppendFormat(text, "\\u%04x", static_cast<uint32_t>(character));
    } else {
      absl::StrAppendFormat(text, "\\U%08x", static_cast<uint32_t>(character));
    }
    i += bytes;
  }
  text->push_back(quote);
  return budget->CheckBytes(text->size());
}

void AppendJsonString(absl::string_view value, bool ensure_ascii, std::string* text) {
  constexpr absl::string_view kEscaped = "\"\\\n\r\t\b\f";
  constexpr absl::string_view kLetters = "\"\\nrtbf";
  text->push_back('"');
  for (size_t i = 0; i < value.size();) {
    const auto [character, bytes] = CharacterAt(value, i);
    const size_t escape = kEscaped.find(value[i]);
    if (escape != absl::string_view::npos) {
      text->push_back('\\');
      text->push_back(kLetters[escape]);
    } else if (character >= 0x10000 && ensure_ascii) {
      const uint32_t rest = character - 0x10000;
      absl::StrAppendFormat(text, "\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    } else if (character < 0x20 || (character > 0x7E && ensure_ascii)) {
      absl::StrAppendFormat(text, "\\u%04x", static_cast<uint32_t>(character));
    } else {
      text->append(value.data() + i, bytes);
    }
    i += bytes;
  }
  text->push_back('"');
}

enum class Language { kPython, kJson };

// Writes values as Python's repr does, or as its json.dumps in some style.
class Printer {
 public:
  // repr is json.dumps on one line, with other words.
  Printer(Language language, const JsonStyle& style, Budget* budget, std::string* text)
      : is_json_(language == Language::kJson), style_(style), budget_(budget), text_(text) {
    separator_ = style.item_separator.value_or(style.indent.has_value() ? "," : ", ");
  }

  absl::Status Append(const Value& value, int level) {
    CONVENE_RETURN_IF_ERROR(budget_->Charge());
    CONVENE_RETURN_IF_ERROR(budget_->CheckBytes(text_->size()));
    if (value.is_safe() && !is_json_) {
      return absl::UnimplementedError("printing a safe string within a list");
    }
    if (value.is_string()) return AppendText(value.as_string());
    if (value.is_list()) return AppendList(value.as_list(), level);
    if (value.is_dict()) return AppendDict(value.as_dict(), level);
    if (value.is_none()) {
      text_->append(is_json_ ? "null" : "None");
    } else if (value.is_bool() && is_json_) {
      text_->append(value.as_bool() ? "true" : "false");
    } else if (value.is_bool()) {
      text_->append(value.as_bool() ? "True" : "False");
    } else if (value.is_int()) {
      absl::StrAppend(text_, value.as_int());
    } else if (value.is_float() && is_json_ && !std::isfinite(value.as_float())) {
      const double number = value.as_float();
      text_->append(std::isnan(number) ? "NaN" : number > 0 ? "Infinity" : "-Infinity");
    } else if (value.is_float()) {
      text_->append(FloatText(value.as_float()));
    } else if (value.is_undefined() && !is_json_) {
      text_->append("Undefined");
    } else {
      return is_json_ ? absl::InvalidArgumentError(absl::StrCat("tojson of ", value.KindName()))
                      : absl::UnimplementedError(absl::StrCat("printing ", value.KindName()));
    }
    return absl::OkStatus();
  }

 private:
  // The template's own text for margins and separators, which may be long.
  absl::Status Write(absl::string_view text) {
    CONVENE_RETURN_IF_ERROR(budget_->ChargeBytes(text.size()));
    text_->append(text.data(), text.size());
    return budget_->CheckBytes(text_->size());
  }

  absl::Status AppendText(absl::string_view value) {
    if (!is_json_) return AppendQuoted(value, budget_, text_);
    CONVENE_RETURN_IF_ERROR(budget_->ChargeBytes(value.size()));
    AppendJsonString(value, style_.ensure_ascii, text_);
    return budget_->CheckBytes(text_->size());
  }

  // `before`: what stands at the end of the line.
  absl::Status NewLine(int level, absl::string_view before) {
    CONVENE_RETURN_IF_ERROR(Write(before));
    if (!style_.indent.has_value()) return absl::OkStatus();
    text_->push_back('\n');
    for (int i = 0; i < level; ++i) CONVENE_RETURN_IF_ERROR(Write(*style_.indent));
    return absl::OkStatus();
  }

  absl::Status AppendList(const List& list, int level) {
    const bool is_tuple = list.kind == ListKind::kTuple;
    if (list.kind != ListKind::kList && !is_tuple) {
      return is_json_
                 ? absl::InvalidArgumentError("tojson of a range, a view of a dict or a generator")
                 : absl::UnimplementedError(
                       "printing a range, a view of a dict or a generator: write |list "
                       "behind it");
    }
    const bool is_round = is_tuple && !is_json_;
    text_->push_back(is_round ? '(' : '[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      CONVENE_RETURN_IF_ERROR(NewLine(level + 1, i == 0 ? absl::string_view() : separator_));
      CONVENE_RETURN_IF_ERROR(Append(list.items[i], level + 1));
    }
    if (!list.items.empty()) CONVENE_RETURN_IF_ERROR(NewLine(level, ""));
    if (is_round && list.items.size() == 1) text_->push_back(',');
    text_->push_back(is_round ? ')' : ']');
    return absl::OkStatus();
  }

  absl::Status AppendDict(const Dict& dict, int level) {
    std::vector<const std::pair<StringPtr, Value>*> entries;
    for (const auto& entry : dict.entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      std::sort(entries.begin(), entries.end(),
                [](const auto* a, const auto* b) { return *a->first < *b->first; });
    }
    text_->push_back('{');
    for (const auto* const entry : entries) {
      const bool is_first = entry == entries.front();
      CONVENE_RETURN_IF_ERROR(NewLine(level + 1, is_first ? absl::string_view() : separator_));
      CONVENE_RETURN_IF_ERROR(AppendText(*entry->first));
      CONVENE_RETURN_IF_ERROR(Write(style_.key_separator));
      CONVENE_RETURN_IF_ERROR(Append(entry->second, level + 1));
    }
    if (!entries.empty()) CONVENE_RETURN_IF_ERROR(NewLine(level, ""));
    text_->push_back('}');
    return absl::OkStatus();
  }

  const bool is_json_;
  const JsonStyle& style_;
  Budget* const budget_;
  std::string* const text_;
  std::string separator_;
};

}  // namespace

absl::Status AppendString(const Value& value, Budget* budget, std::string* text) {
  if (value.is_undefined()) return absl::OkStatus();
  if (!value.is_string()) {
    const JsonStyle on_one_line;
    CONVENE_RETURN_IF_ERROR(Printer(Language::kPython, on_one_line, budget, text).Append(value, 0));
    return budget->CheckBytes(text->size());
  }
  CONVENE_RETURN_IF_ERROR(budget->CheckBytes(text->size() + value.as_string().size()));
  CONVENE_RETURN_IF_ERROR(budget->ChargeBytes(value.as_string().size()));
  text->append(value.as_string());
  return absl::OkStatus();
}

absl::StatusOr<std::string> ToString(const Value& value, Budget* budget) {
  std::string text;
  CONVENE_RETURN_IF_ERROR(AppendString(value, budget, &text));
  return text;
}

absl::Status AppendJson(const Value& value, const JsonStyle& style, Budget* budget,
                        std::string* text) {
  CONVENE_RETURN_IF_ERROR(Printer(Language::kJson, style, budget, text).Append(value, 0));
  return budget->CheckBytes(text->size());
}

}  // namespace convene::worker::jinja
