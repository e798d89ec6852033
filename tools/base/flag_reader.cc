#include "tools/base/flag_reader.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tools/base/check.h"
#include "tools/base/closest_flag.h"
#include "tools/base/status_macros.h"

namespace convene {
namespace {

// 366 days: the daemon takes no longer wait (rendezvous::ValidateHello).
constexpr double kSecondsMax = 366.0 * 24 * 3600;
// A thousand times what any machine has.
constexpr double kBytesMax = 1e15;
constexpr size_t kHelpColumn = 34;
constexpr size_t kHelpWidth = 100;
// Of a wrong value, in the error.
constexpr size_t kLongestShown = 100;

std::string Dashed(const std::string& name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

std::string VariableOf(const std::string& prefix, const std::string& name) {
  return prefix + absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}}));
}

// argparse's rule: "-1" and "-.5" are values, other words with a dash are flags.
bool LooksLikeFlag(const std::string& word) {
  double number = 0;
  return word.size() > 1 && word[0] == '-' && !absl::SimpleAtod(word, &number);
}

// `text` in lines of at most `width`, the second and later ones behind `indent` spaces.
std::string Wrapped(const std::string& text, size_t indent, size_t width) {
  std::string wrapped;
  size_t column = indent;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (column > indent && column + 1 + (end - begin) > width) {
      absl::StrAppend(&wrapped, "\n", std::string(indent, ' '));
      column = indent;
    } else if (column > indent) {
      wrapped += ' ';
      ++column;
    }
    wrapped += text.substr(begin, end - begin);
    column += end - begin;
    begin = end + 1;
  }
  return wrapped;
}

// OK for a flag without limits.
absl::Status CheckLimits(const FlagDetails& details, const std::string& value) {
  if (std::isinf(details.least) && std::isinf(details.most)) return absl::OkStatus();
  double number = 0;
  if (absl::SimpleAtod(value, &number) && number >= details.least && number <= details.most) {
    return absl::OkStatus();
  }
  // 1048576, not 1.04858e+06.
  return absl::InvalidArgumentError(
      std::isinf(details.most)
          ? absl::StrFormat("write a number of at least %.12g", details.least)
          : absl::StrFormat("write a number from %.12g to %.12g", details.least, details.most));
}

template <typename Number>
absl::Status ParseWhole(const std::string& text, Number* value) {
  if (absl::SimpleAtoi(text, value)) return absl::OkStatus();
  return absl::InvalidArgumentError("write a whole number");
}

}  // namespace

absl::Status ParseValue(const std::string& text, std::string* value) {
  *value = text;
  return absl::OkStatus();
}

absl::Status ParseValue(const std::string& text, int* value) { return ParseWhole(text, value); }

absl::Status ParseValue(const std::string& text, int64_t* value) { return ParseWhole(text, value); }

absl::Status ParseValue(const std::string& text, double* value) {
  if (absl::SimpleAtod(text, value)) return absl::OkStatus();
  return absl::InvalidArgumentError("write a number");
}

absl::Status ParseValue(const std::string& text, bool* value) {
  double number = 0;
  if (absl::SimpleAtob(text, value)) return absl::OkStatus();
  if (!absl::SimpleAtod(text, &number)) return absl::InvalidArgumentError("write 1 or 0");
  *value = number != 0;
  return absl::OkStatus();
}

absl::Status ParseValue(const std::string& text, absl::Duration* value) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !(seconds >= 0 && seconds <= kSecondsMax)) {
    return absl::InvalidArgumentError("write seconds, such as 30 or 0.5");
  }
  *value = absl::Seconds(seconds);
  return absl::OkStatus();
}

absl::Status ParseSize(const std::string& text, int64_t* bytes) {
  const size_t unit_at = std::min(text.find_first_not_of("0123456789."), text.size());
  std::string unit = absl::AsciiStrToUpper(text.substr(unit_at));
  if (unit.size() > 1 && unit.back() == 'B') unit.pop_back();
  if (unit.size() > 1 && unit.back() == 'I') unit.pop_back();
  const std::map<std::string, double> units = {{"", 1},       {"B", 1},      {"K", 0x1p10},
                                               {"M", 0x1p20}, {"G", 0x1p30}, {"T", 0x1p40}};
  const auto of_unit = units.find(unit);
  double number = 0;
  if (of_unit != units.end() && absl::SimpleAtod(text.substr(0, unit_at), &number)) {
    number *= of_unit->second;
    if (number == 0 || (number >= 1 && number <= kBytesMax)) {
      *bytes = static_cast<int64_t>(number);
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError("write bytes, as in 1000000, 64M or 1G");
}

FlagReader::FlagReader(std::string program, std::string description)
    : FlagReader(std::move(program), std::move(description), Rules{}) {}

FlagReader::FlagReader(std::string program, std::string description, Rules rules)
    : program_(std::move(program)), description_(std::move(description)), rules_(std::move(rules)) {
  help_rows_ = "\n";
  Print("help", [this](const std::string&) { return Help(); }, "this text", {.letter = 'h'});
}

void FlagReader::Group(const std::string& title, bool must_be_whole) {
  absl::StrAppend(&help_rows_, "\n", title, "\n");
  may_be_cut_ = !must_be_whole;
}

void FlagReader::Add(Flag flag) {
  FlagDetails& details = flag.details;
  if (!details.choices.empty()) details.value = absl::StrJoin(details.choices, "|");
  if (details.from_environment && !rules_.variable_prefix.empty()) {
    details.variables.insert(details.variables.begin(),
                             VariableOf(rules_.variable_prefix, flag.name));
  }
  flag.may_be_cut = may_be_cut_;
  HelpRow(absl::StrCat(
              details.letter == 0 ? "" : absl::StrCat("-", std::string(1, details.letter), ", "),
              "--", flag.name, flag.is_switch ? "" : " " + details.value),
          flag.help);
  flags_.push_back(std::move(flag));
}

void FlagReader::Custom(const std::string& name,
                        std::function<absl::Status(const std::string&)> set,
                        const std::string& help, FlagDetails details) {
  Add({.name = name, .help = help, .details = std::move(details), .set = std::move(set)});
}

void FlagReader::Switch(const std::string& name, bool* target, const std::string& help,
                        FlagDetails details) {
  const auto set = [target](const std::string& text) { return ParseValue(text, target); };
  Add({.name = name, .help = help, .is_switch = true, .details = std::move(details), .set = set});
}

void FlagReader::Print(const std::string& name, std::function<std::string(const std::string&)> text,
                       const std::string& help, FlagDetails details) {
  details.from_environment = false;
  const auto set = [this, text = std::move(text)](const std::string& value) {
    text_to_print_ = text(value);
    return absl::OkStatus();
  };
  const bool is_switch = details.choices.empty();
  Add({.name = name,
       .help = help,
       .is_switch = is_switch,
       .details = std::move(details),
       .set = set});
}

void FlagReader::Word(const std::string& name, std::string* word) {
  words_name_ = name;
  word_ = word;
}

void FlagReader::Words(const std::string& name, std::vector<std::string>* words) {
  words_name_ = name;
  all_words_ = words;
}

void FlagReader::Rest(const std::string& name, std::vector<std::string>* words) {
  words_name_ = name;
  rest_ = words;
}

absl::StatusOr<std::optional<std::string>> FlagReader::Read(
    const std::vector<std::string>& arguments, const EnvironmentLookup& environment) {
  CONVENE_RETURN_IF_ERROR(ReadEnvironment(environment));
  bool flags_are_over = false;
  for (size_t at = 0; at < arguments.size();) {
    const std::string& word = arguments[at];
    const bool is_flag = !flags_are_over && word.size() > 1 && word[0] == '-';
    if (is_flag && word == "--") {
      flags_are_over = true;
      ++at;
    } else if (is_flag) {
      CONVENE_RETURN_IF_ERROR(word[1] == '-' ? ReadLong(arguments, &at)
                                             : ReadShort(arguments, &at));
      if (text_to_print_.has_value()) return text_to_print_;
    } else if (rest_ != nullptr) {
      rest_->assign(arguments.begin() + static_cast<std::ptrdiff_t>(at), arguments.end());
      const bool has_dashes = rest_->size() > 1 && (*rest_)[1] == "--";
      if (rules_.like_argparse && !flags_are_over && has_dashes) rest_->erase(rest_->begin() + 1);
      break;
    } else {
      CONVENE_RETURN_IF_ERROR(TakeWord(word));
      ++at;
    }
  }
  for (const auto& check : checks_) CONVENE_RETURN_IF_ERROR(check());
  return std::optional<std::string>();
}

absl::Status FlagReader::Set(const std::string& name, const std::string& value) {
  const auto flag =
      std::find_if(flags_.begin(), flags_.end(), [&](const Flag& one) { return one.name == name; });
  CONVENE_CHECK(flag != flags_.end());
  return SetValue(*flag, name, value);
}

absl::Status FlagReader::TakeWord(const std::string& word) {
  if (all_words_ != nullptr) {
    all_words_->push_back(word);
    return absl::OkStatus();
  }
  if (word_ == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", program_, "` takes flags only, not \"", word, "\""));
  }
  if (!word_->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("`", program_, " ", words_name_, "`: \"", word, "\" is one too many"));
  }
  *word_ = word;
  return absl::OkStatus();
}

absl::Status FlagReader::ReadEnvironment(const EnvironmentLookup& environment) {
  for (const Flag& flag : flags_) {
    for (const std::string& variable : flag.details.variables) {
      const std::string value = environment(variable).value_or("");
      if (value.empty()) continue;
      CONVENE_RETURN_IF_ERROR(SetValue(flag, variable, value));
      from_environment_.push_back(absl::StrCat("--", flag.name, "=", value, " (", variable, ")"));
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status FlagReader::ReadLong(const std::vector<std::string>& arguments, size_t* at) {
  const std::string& word = arguments[*at];
  const size_t equals = word.find('=');
  const std::string spelled = word.substr(0, equals);
  CONVENE_ASSIGN_OR_RETURN(const Flag* const flag, Find(spelled));
  std::optional<std::string> attached;
  if (equals != std::string::npos) attached = word.substr(equals + 1);
  return Take(*flag, spelled, attached, arguments, at);
}

absl::Status FlagReader::ReadShort(const std::vector<std::string>& arguments, size_t* at) {
  const std::string& word = arguments[*at];
  const auto flag = std::find_if(flags_.begin(), flags_.end(),
                                 [&](const Flag& one) { return one.details.letter == word[1]; });
  if (flag == flags_.end()) return UnknownFlag(word);
  std::optional<std::string> attached;  // "-t3", "-t=3"
  if (word.size() > 2) attached = word.substr(word[2] == '=' ? 3 : 2);
  return Take(*flag, word.substr(0, 2), attached, arguments, at);
}

absl::Status FlagReader::Take(const Flag& flag, const std::string& spelled,
                              const std::optional<std::string>& attached,
                              const std::vector<std::string>& arguments, size_t* at) {
  ++*at;
  if (flag.is_switch) {
    if (attached.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(spelled, " takes no value: leave out \"", *attached, "\""));
    }
    return SetValue(flag, spelled, "1");
  }
  if (attached.has_value()) {
    if (!attached->empty() || rules_.like_argparse) return SetValue(flag, spelled, *attached);
    return absl::InvalidArgumentError(absl::StrCat(spelled, "= has no value; write ", spelled, "=",
                                                   flag.details.value,
                                                   ", or leave the flag out for its default"));
  }
  if (*at == arguments.size() || LooksLikeFlag(arguments[*at])) {
    return absl::InvalidArgumentError(
        absl::StrCat(spelled, " needs a value: write ", spelled, " ", flag.details.value,
                     *at == arguments.size() ? "" : " (with '=' where it begins with a dash)"));
  }
  return SetValue(flag, spelled, arguments[(*at)++]);
}

absl::Status FlagReader::SetValue(const Flag& flag, const std::string& spelled,
                                  const std::string& value) {
  const std::vector<std::string>& choices = flag.details.choices;
  absl::Status status = CheckLimits(flag.details, value);
  if (!choices.empty() && std::find(choices.begin(), choices.end(), value) == choices.end()) {
    status = absl::InvalidArgumentError(absl::StrCat("write ", absl::StrJoin(choices, ", ")));
  }
  if (flag.details.is_directory && !rules_.like_argparse && absl::StartsWith(value, "~/")) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "`~` is the shell's, which reads it at a word's beginning alone: write \"$HOME\"",
        value.substr(1), ", or ./", value, " for a folder of this name"));
  }
  if (status.ok()) status = flag.set(value);
  if (status.ok()) {
    given_.emplace_back(flag.name, value);
    return status;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(spelled, spelled[0] == '-' ? " " : "=", value.substr(0, kLongestShown),
                   value.size() > kLongestShown ? "..." : "", ": ", std::string(status.message())));
}

absl::StatusOr<const FlagReader::Flag*> FlagReader::Find(const std::string& word) const {
  const std::string name = Dashed(word.substr(2));
  std::vector<const Flag*> begin_so;
  for (const Flag& flag : flags_) {
    if (flag.name == name) return &flag;
    if (flag.may_be_cut && absl::StartsWith(flag.name, name)) begin_so.push_back(&flag);
  }
  if (!rules_.like_argparse || begin_so.empty()) return UnknownFlag(word);
  if (begin_so.size() == 1) return begin_so[0];
  return absl::InvalidArgumentError(absl::StrCat(word, " could be --", begin_so[0]->name, " or --",
                                                 begin_so[1]->name, ": write more of it"));
}

absl::Status FlagReader::UnknownFlag(const std::string& word) const {
  std::vector<std::string> candidates;
  for (const Flag& flag : flags_) candidates.push_back("--" + flag.name);
  const std::string nearest = ClosestFlag(word, candidates);
  return absl::InvalidArgumentError(
      absl::StrCat("`", program_, "` has no flag ", word,
                   nearest.empty() ? absl::StrCat("; see `", program_, " --help`")
                                   : absl::StrCat("; did you mean ", nearest, "?")));
}

void FlagReader::HelpRow(const std::string& left, const std::string& help) {
  std::string row = "  " + left;
  if (row.size() + 2 > kHelpColumn) {
    absl::StrAppend(&row, "\n", std::string(kHelpColumn, ' '));
  } else {
    row.resize(kHelpColumn, ' ');
  }
  absl::StrAppend(&help_rows_, row, Wrapped(help, kHelpColumn, kHelpWidth), "\n");
}

std::string FlagReader::Help() const {
  return absl::StrCat("usage: ", program_, " [flags]", words_name_.empty() ? "" : " ", words_name_,
                      "\n\n", Wrapped(description_, 0, kHelpWidth), "\n", help_rows_);
}

}  // namespace convene
