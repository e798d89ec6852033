#include "launcher/completion.h"

#include <set>

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

std::string AllSpellings(const std::vector<Flag>& flags) {
  return absl::StrJoin(flags, " ", [](std::string* all, const Flag& flag) {
    absl::StrAppend(all, absl::StrJoin(Spellings(flag), " "));
  });
}

// The names to choose from; none where the command is the program itself.
std::string Names(const std::vector<CompletedCommand>& commands) {
  return absl::StrJoin(commands, " ", [](std::string* names, const CompletedCommand& command) {
    absl::StrAppend(names, command.name);
  });
}

// The shell's function for a command's words.
std::string FunctionOf(const std::string& program, const CompletedCommand& command) {
  return absl::StrCat("_", program, command.name.empty() ? "" : "_", command.name, "_words");
}

// The lines "run) _convene_run_words" of a `case`.
std::string Cases(const std::string& program, const std::vector<CompletedCommand>& commands,
                  const std::string& arguments) {
  return absl::StrJoin(commands, "", [&](std::string* cases, const CompletedCommand& command) {
    absl::StrAppend(cases, "    ", command.name, ") ", FunctionOf(program, command), arguments,
                    " ;;\n");
  });
}

std::string BashWords(const std::string& program, const CompletedCommand& command) {
  std::string values;
  for (const Flag& flag : command.flags) {
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
  return absl::StrCat(FunctionOf(program, command), "() {\n  case $before in\n", values, "  esac\n",
                      "  if [[ $word == -* ]]; then\n    COMPREPLY=($(compgen -W '",
                      AllSpellings(command.flags), "' -- \"$word\"))\n  else\n    COMPREPLY=(",
                      command.takes_program ? "$(compgen -f -- \"$word\")" : "", ")\n  fi\n}\n");
}

std::string Bash(const std::string& program, const std::vector<CompletedCommand>& commands) {
  const std::string names = Names(commands);
  std::string script;
  for (const CompletedCommand& command : commands) script += BashWords(program, command);
  absl::StrAppend(&script, "_", program, "_complete() {\n",
                  "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n");
  if (names.empty()) {
    absl::StrAppend(&script, "  ", FunctionOf(program, commands[0]), "\n");
  } else {
    absl::StrAppend(&script, "  if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W '", names,
                    "' -- \"$word\")); return; fi\n  case ${COMP_WORDS[1]} in\n",
                    Cases(program, commands, ""), "    *) COMPREPLY=() ;;\n  esac\n");
  }
  return absl::StrCat(script, "}\ncomplete -o filenames -F _", program, "_complete ", program,
                      "\n");
}

// Escapes text for '...' and for the [...] and ':' of an _arguments specification.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"\\", "\\\\"}, {"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

std::string ZshWords(const std::string& program, const CompletedCommand& command) {
  std::string script = absl::StrCat(FunctionOf(program, command), "() {\n  _arguments -S");
  for (const Flag& flag : command.flags) {
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
      absl::StrAppend(&script, " \\\n    '", spelling, "[", ZshText(flag.help), "]", value, "'");
    }
  }
  if (command.takes_program) script += " \\\n    '1:program:_files' '*::arguments:_files'";
  return script + "\n}\n";
}

std::string Zsh(const std::string& program, const std::vector<CompletedCommand>& commands) {
  const std::string names = Names(commands);
  std::string script = absl::StrCat("#compdef ", program, "\n");
  for (const CompletedCommand& command : commands) script += ZshWords(program, command);
  absl::StrAppend(&script, "_", program, "() {\n");
  if (names.empty()) {
    absl::StrAppend(&script, "  ", FunctionOf(program, commands[0]), " \"$@\"\n");
  } else {
    absl::StrAppend(&script, "  if ((CURRENT == 2)); then compadd ", names,
                    "; return; fi\n  shift words; ((CURRENT--))\n  case $words[1] in\n",
                    Cases(program, commands, " \"$@\""), "  esac\n");
  }
  return absl::StrCat(script, "}\nif [[ $funcstack[1] == _", program, " ]]; then\n  _", program,
                      " \"$@\"\nelse\n  compdef _", program, " ", program, "\nfi\n");
}

// tcsh looks at one word at a time and knows no commands: the flags of all of them.
std::vector<Flag> FlagsOfAll(const std::vector<CompletedCommand>& commands) {
  std::set<std::string> names;
  std::vector<Flag> all;
  for (const CompletedCommand& command : commands) {
    for (const Flag& flag : command.flags) {
      if (names.insert(flag.name).second) all.push_back(flag);
    }
  }
  return all;
}

std::string Tcsh(const std::string& program, const std::vector<CompletedCommand>& commands) {
  const std::string names = Names(commands);
  std::string rules;
  // 'c' completes the rest of a word after its pattern, so the names go without their dashes.
  std::vector<std::string> words_after_dashes;
  for (const Flag& flag : FlagsOfAll(commands)) {
    // '@' ends each part of a rule.
    std::string words =
        absl::StrCat("x:", absl::StrReplaceAll(flag.details.value, {{"@", " "}}), ":");
    if (!flag.details.choices.empty()) {
      words = absl::StrCat("(", absl::StrJoin(flag.details.choices, " "), ")");
    } else if (flag.details.is_directory) {
      words = "d";
    }
    for (const std::string& spelling : Spellings(flag)) {
      if (!flag.is_switch) absl::StrAppend(&rules, " 'n@", spelling, "@", words, "@'");
      if (spelling[1] == '-') words_after_dashes.push_back(spelling.substr(2));
    }
  }
  return absl::StrCat("complete ", program,
                      names.empty() ? "" : absl::StrCat(" 'p@1@(", names, ")@'"), rules, " 'c@--@(",
                      absl::StrJoin(words_after_dashes, " "), ")@' 'p@*@f@'\n");
}

}  // namespace

std::string CompletionScript(const std::string& shell, const std::string& program,
                             const std::vector<CompletedCommand>& commands) {
  if (shell == "bash") return Bash(program, commands);
  if (shell == "zsh") return Zsh(program, commands);
  CONVENE_CHECK(shell == "tcsh");
  return Tcsh(program, commands);
}

}  // namespace convene::launcher
