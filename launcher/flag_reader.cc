#include "launcher/flag_reader.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

constexpr double kSecondsMax = 366 * 86400.0;
constexpr size_t kHelpColumn = 34;
constexpr size_t kHelpWidth = 100;
// Of a wrong value, in the error.
constexpr size_t kLongestShown = 100;

std::string Dashed(const std::string& name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

std::string VariableOf(const std::string& name) {
  return "PET_" + absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}}));
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

}  // namespace

absl::Status ParseValue(const std::string& text, std::string* value) {
  *value = text;
  return absl::OkStatus();
}

absl::Status ParseValue(const std::string& text, int* value) {
  if (absl::SimpleAtoi(text, value)) return absl::OkStatus();
  return absl::InvalidArgumentError("write a whole number");
}

absl::Status ParseValue(const std::string& text, int64_t* value) {
  if (absl::SimpleAtoi(text, value)) return absl::OkStatus();
  return absl::InvalidArgumentError("write a whole number");
}

absl::Status ParseValue(const std::string& text, double* value) {
  if (absl::SimpleAtod(text, value)) return absl::OkStatus();
  return absl::InvalidArgumentError("write a number");
}

absl::Status ParseValue(const std::string& text, absl::Duration* value) {
  double seconds = 0;
  if (!absl::SimpleAtod(text, &seconds) || !(seconds >= 0 && seconds <= kSecondsMax)) {
    return absl::InvalidArgumentError("write seconds, such as 30 or 0.5");
  }
  *value = absl::Seconds(seconds);
  return absl::OkStatus();
}

FlagReader::FlagReader(const std::string& command, std::string description, bool as_torchrun)
    : program_(as_torchrun ? "torchrun" : "convene " + command),
      description_(std::move(description)),
      as_torchrun_(as_torchrun) {}

void FlagReader::Add(const std::string& name, const std::string& help, bool is_switch,
                     FlagDetails details, std::function<absl::Status(const std::string&)> set) {
  if (!details.choices.empty()) details.value = absl::StrJoin(details.choices, "|");
  flags_.push_back(
      Flag{name, help, is_switch, group_, beyond_torchrun_, std::move(details), std::move(set)});
}

void FlagReader::Switch(const std::string& name, bool* target, const std::string& help,
                        FlagDetails details) {
  Add(name, help, true, std::move(details), [target](const std::string& text) {
    int number = 0;
    if (!absl::SimpleAtob(text, target)) {
      if (!absl::SimpleAtoi(text, &number)) return absl::InvalidArgumentError("write 1 or 0");
      *target = number != 0;
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<std::variant<std::vector<std::string>, TextToPrint>> FlagReader::Read(
    const std::vector<std::string>& arguments) {
  return Read(arguments, [](const std::string&) { return std::nullopt; });
}

absl::StatusOr<std::variant<std::vector<std::string>, TextToPrint>> FlagReader::Read(
    const std::vector<std::string>& arguments, const EnvironmentLookup& environment) {
  CONVENE_RETURN_IF_ERROR(ReadEnvironment(environment));
  size_t at = 0;
  while (at < arguments.size()) {
    const std::string& word = arguments[at];
    if (word == "--help" || word == "-h") return TextToPrint{Help()};
    if (word == "--") {
      ++at;
      break;
    }
    if (word.size() < 2 || word[0] != '-') break;
    CONVENE_RETURN_IF_ERROR(word[1] == '-' ? ReadLong(arguments, &at) : ReadShort(arguments, &at));
  }
  return std::vector<std::string>(arguments.begin() + static_cast<std::ptrdiff_t>(at),
                                  arguments.end());
}

absl::Status FlagReader::ReadEnvironment(const EnvironmentLookup& environment) {
  for (const Flag& flag : flags_) {
    if (!flag.details.from_environment) continue;
    const std::string variable = VariableOf(flag.name);
    const std::string value = environment(variable).value_or("");
    if (value.empty()) continue;
    CONVENE_RETURN_IF_ERROR(SetValue(flag, variable, value));
    from_environment_.push_back(absl::StrCat("--", flag.name, "=", value, " (", variable, ")"));
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
    return flag.set("1");
  }
  if (attached.has_value()) {
    if (!attached->empty() || as_torchrun_) return SetValue(flag, spelled, *attached);
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
  absl::Status status;
  if (choices.empty() || std::find(choices.begin(), choices.end(), value) != choices.end()) {
    status = flag.set(value);
  } else {
    status = absl::InvalidArgumentError(absl::StrCat("write ", absl::StrJoin(choices, ", ")));
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(spelled, spelled[0] == '-' ? " " : "=", value.substr(0, kLongestShown),
                   value.size() > kLongestShown ? "..." : "", ": ", std::string(status.message())));
}

absl::StatusOr<const FlagReader::Flag*> FlagReader::Find(const std::string& word) const {
  const std::string name = Dashed(word.substr(2));
  std::vector<const Flag*> begin_so;
  for (const Flag& flag : flags_) {
    if (flag.name == name) return &flag;
    if (!flag.beyond_torchrun && absl::StartsWith(flag.name, name)) begin_so.push_back(&flag);
  }
  if (!as_torchrun_ || begin_so.empty()) return UnknownFlag(word);
  if (begin_so.size() == 1) return begin_so[0];
  return absl::InvalidArgumentError(absl::StrCat(word, " could be --", begin_so[0]->name, " or --",
                                                 begin_so[1]->name, ": write more of it"));
}

absl::Status FlagReader::UnknownFlag(const std::string& word) const {
  std::vector<std::string> candidates = {"--help"};
  for (const Flag& flag : flags_) candidates.push_back("--" + flag.name);
  const std::string nearest = ClosestMatch(word, candidates);
  return absl::InvalidArgumentError(
      absl::StrCat("`", program_, "` has no flag ", word,
                   nearest.empty() ? absl::StrCat("; see `", program_, " --help`")
                                   : absl::StrCat("; did you mean ", nearest, "?")));
}

std::string FlagReader::Help() const {
  std::string help = absl::StrCat("usage: ", program_, " [flags] ...\n\n",
                                  Wrapped(description_, 0, kHelpWidth), "\n");
  std::string group;
  for (const Flag& flag : flags_) {
    if (flag.group != group) absl::StrAppend(&help, "\n", flag.group, "\n");
    group = flag.group;
    std::string left = "  ";
    if (flag.details.letter != 0)
      absl::StrAppend(&left, "-", std::string(1, flag.details.letter), ", ");
    absl::StrAppend(&left, "--", flag.name, flag.is_switch ? "" : " " + flag.details.value);
    if (left.size() + 2 > kHelpColumn) {
      absl::StrAppend(&left, "\n", std::string(kHelpColumn, ' '));
    } else {
      left.resize(kHelpColumn, ' ');
    }
    absl::StrAppend(&help, left, Wrapped(flag.help, kHelpColumn, kHelpWidth), "\n");
  }
  return help;
}

}  // namespace convene::launcher
