#include "launcher/completion.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tools/base/check.h"

namespace convene::launcher {
namespace {

using Flag = FlagReader::Flag;

std::string Underscored(const std::string& name) { return absl::StrReplaceAll(name, {{"-", "_"}}); }

// "--tee -t", "--log-dir --log_dir": every way to write a flag.
std::vector<std::string> Spellings(const Flag& flag) {
  std::vector<std::string> spellings = {"--" + flag.name};
  if (Underscored(flag.name) != flag.name) spellings.push_back("--" + Underscored(flag.name));
  if (flag.details.letter != 0) spellings.push_back(std::string("-") + flag.details.letter);
  return spellings;
}

std::string AllSpellings(const std::vector<Flag>& flags, const std::string& separator) {
  std::string all = "--help";
  for (const Flag& flag : flags) {
    absl::StrAppend(&all, separator, absl::StrJoin(Spellings(flag), separator));
  }
  return all;
}

std::string Bash(const std::string& program, const std::string& command_words,
                 const std::vector<Flag>& flags) {
  std::string values;
  for (const Flag& flag : flags) {
    if (flag.is_switch) continue;
    std::string words;
    if (!flag.details.choices.empty()) {
      words = absl::StrCat("-W '", absl::StrJoin(flag.details.choices, " "), "' ");
    } else if (flag.details.is_directory) {
      words = "-d ";
    }
    absl::StrAppend(&values, "    ", absl::StrJoin(Spellings(flag), "|"), ") ",
                    words.empty() ? "COMPREPLY=()"
                                  : absl::StrCat("COMPREPLY=($(compgen ", words, "-- \"$word\"))"),
                    "; return ;;\n");
  }
  const std::string commands =
      !command_words.empty()
          ? absl::StrCat("  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W '", command_words,
                         "' -- \"$word\")); return; fi\n")
          : "";
  return absl::StrCat("_", program, "_complete() {\n",
                      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n",
                      commands, "  case $before in\n", values, "  esac\n",
                      "  if [[ $word == -* ]]; then\n    COMPREPLY=($(compgen -W '",
                      AllSpellings(flags, " "), "' -- \"$word\"))\n  else\n",
                      "    COMPREPLY=($(compgen -f -- \"$word\"))\n  fi\n}\n",
                      "complete -o filenames -F _", program, "_complete ", program, "\n");
}

// Inside '...' and inside the [...] and ':' of an _arguments specification.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"\\", "\\\\"}, {"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string Zsh(const std::string& program, const std::string& command_words,
                const std::vector<Flag>& flags) {
  std::string specifications;
  for (const Flag& flag : flags) {
    std::string value;
    if (!flag.is_switch) {
      value = absl::StrCat(":", ZshText(flag.details.value), ":");
      if (!flag.details.choices.empty()) {
        absl::StrAppend(&value, "(", absl::StrJoin(flag.details.choices, " "), ")");
      } else if (flag.details.is_directory) {
        value += "_directories";
      }
    }
    for (const std::string& spelling : Spellings(flag)) {
      absl::StrAppend(&specifications, "    '", spelling, "[", ZshText(flag.help), "]", value,
                      "' \\\n");
    }
  }
  const std::string commands =
      !command_words.empty() ? absl::StrCat("  if ((CURRENT == 2)); then compadd ", command_words,
                                            "; return; fi\n  shift words; ((CURRENT--))\n")
                             : "";
  return absl::StrCat("#compdef ", program, "\n_", program, "() {\n", commands,
                      "  _arguments -S \\\n    '(- *)--help[the flags]' \\\n", specifications,
                      "    '1:program:_files' '*::arguments:_files'\n}\n",
                      "if [[ $funcstack[1] == _", program, " ]]; then\n  _", program,
                      " \"$@\"\nelse\n  compdef _", program, " ", program, "\nfi\n");
}

std::string Tcsh(const std::string& program, const std::string& command_words,
                 const std::vector<Flag>& flags) {
  std::string rules;
  for (const Flag& flag : flags) {
    if (flag.is_switch) continue;
    std::string words = "x:" + flag.details.value + ":";
    if (!flag.details.choices.empty()) {
      words = absl::StrCat("(", absl::StrJoin(flag.details.choices, " "), ")");
    } else if (flag.details.is_directory) {
      words = "d";
    }
    for (const std::string& spelling : Spellings(flag)) {
      absl::StrAppend(&rules, " 'n@", spelling, "@", words, "@'");
    }
  }
  // 'c' completes the rest of a word after its pattern, so the names go without their dashes.
  std::string names = "help";
  for (const Flag& flag : flags) {
    for (const std::string& spelling : Spellings(flag)) {
      if (spelling[1] == '-') absl::StrAppend(&names, " ", spelling.substr(2));
    }
  }
  const std::string commands =
      !command_words.empty() ? absl::StrCat(" 'p@1@(", command_words, ")@'") : "";
  return absl::StrCat("complete ", program, commands, rules, " 'c@--@(", names, ")@' 'p@*@f@'\n");
}

}  // namespace

std::string CompletionScript(const std::string& shell, const std::string& program,
                             const std::vector<std::string>& commands,
                             const std::vector<FlagReader::Flag>& flags) {
  const std::string words = absl::StrJoin(commands, " ");
  if (shell == "bash") return Bash(program, words, flags);
  if (shell == "zsh") return Zsh(program, words, flags);
  CONVENE_CHECK(shell == "tcsh");
  return Tcsh(program, words, flags);
}

}  // namespace convene::launcher
