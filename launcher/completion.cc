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

// The shell's function for a command's words, within the function `outer`.
std::string FunctionOf(const std::string& outer, const CompletedCommand& command) {
  return absl::StrCat(outer, command.name.empty() ? "" : "_", command.name);
}

// The lines "run) _convene_run_words" of a `case`.
std::string Cases(const std::string& outer, const std::vector<CompletedCommand>& commands,
                  const std::string& arguments) {
  return absl::StrJoin(commands, "", [&](std::string* cases, const CompletedCommand& command) {
    absl::StrAppend(cases, "    ", command.name, ") ", FunctionOf(outer, command), "_words",
                    arguments, " ;;\n");
  });
}

// The lines that complete the word at `position`, a command's name or one of `flags`, and let the
// command complete the words behind it.
std::string BashChoice(const std::string& outer, const std::vector<CompletedCommand>& commands,
                       const std::vector<Flag>& flags, int position) {
  return absl::StrCat("  if ((COMP_CWORD == ", position,
                      ")); then\n    if [[ $word == -* ]]; then ", "COMPREPLY=($(compgen -W '",
                      AllSpellings(flags), "' -- \"$word\"))\n",
                      "    else COMPREPLY=($(compgen -W '", Names(commands),
                      "' -- \"$word\")); fi\n", "    return\n  fi\n  case ${COMP_WORDS[", position,
                      "]} in\n", Cases(outer, commands, ""), "  esac\n");
}

// Readline offers files where COMPREPLY stays empty (`complete -o default`).
std::string BashWords(const std::string& outer, const CompletedCommand& command, int position) {
  const std::string function = FunctionOf(outer, command);
  if (!command.commands.empty()) {
    std::string script;
    for (const CompletedCommand& inner : command.commands) {
      script += BashWords(function, inner, position + 1);
    }
    return absl::StrCat(script, function, "_words() {\n",
                        BashChoice(function, command.commands, command.flags, position), "}\n");
  }
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
  return absl::StrCat(function, "_words() {\n  case $before in\n", values, "  esac\n",
                      "  if [[ $word == -* ]]; then\n    COMPREPLY=($(compgen -W '",
                      AllSpellings(command.flags), "' -- \"$word\"))\n  else\n    COMPREPLY=(",
                      command.takes_program ? "$(compgen -f -- \"$word\")" : "", ")\n  fi\n}\n");
}

std::string Bash(const std::string& program, const std::vector<CompletedCommand>& commands,
                 const std::vector<Flag>& flags) {
  const std::string outer = "_" + program;
  std::string script;
  for (const CompletedCommand& command : commands) script += BashWords(outer, command, 2);
  // For bash '=' is a word of its own, which `--flag=value` has in the middle.
  absl::StrAppend(&script, outer, "_complete() {\n",
                  "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n",
                  "  if [[ $word == = ]]; then word=\n",
                  "  elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}; fi\n",
                  Names(commands).empty()
                      ? absl::StrCat("  ", FunctionOf(outer, commands[0]), "_words\n")
                      : BashChoice(outer, commands, flags, 1));
  return absl::StrCat(script, "}\ncomplete -o default -o filenames -F ", outer, "_complete ",
                      program, "\n");
}

// Escapes text for '...' and for the [...] and ':' of an _arguments specification.
std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"\\", "\\\\"}, {"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
}

// The lines that complete the second word, a command's name or one of `flags`, and let the command
// complete the words behind it.
std::string ZshChoice(const std::string& outer, const std::vector<CompletedCommand>& commands,
                      const std::vector<Flag>& flags) {
  return absl::StrCat("  if ((CURRENT == 2)); then\n    if [[ $words[2] == -* ]]; then compadd -- ",
                      AllSpellings(flags), "\n    else compadd ", Names(commands),
                      "; fi\n    return\n  fi\n  shift words; ((CURRENT--))\n",
                      "  case $words[1] in\n", Cases(outer, commands, " \"$@\""), "  esac\n");
}

std::string ZshWords(const std::string& outer, const CompletedCommand& command) {
  const std::string function = FunctionOf(outer, command);
  if (!command.commands.empty()) {
    std::string script;
    for (const CompletedCommand& inner : command.commands) script += ZshWords(function, inner);
    return absl::StrCat(script, function, "_words() {\n",
                        ZshChoice(function, command.commands, command.flags), "}\n");
  }
  std::string script = absl::StrCat(function, "_words() {\n  _arguments -S");
  for (const Flag& flag : command.flags) {
    std::string value;
    if (!flag.is_switch) {
      value = absl::StrCat(":", ZshText(flag.details.value), ":");
      if (!flag.details.choices.empty()) {
        absl::StrAppend(&value, "(", absl::StrJoin(flag.details.choices, " "), ")");
      } else {
        value += flag.details.is_directory ? "_directories" : "_files";
      }
    }
    for (const std::string& spelling : Spellings(flag)) {
      absl::StrAppend(&script, " \\\n    '", spelling, "[", ZshText(flag.help), "]", value, "'");
    }
  }
  if (command.takes_program) script += " \\\n    '1:program:_files' '*::arguments:_files'";
  return script + "\n}\n";
}

std::string Zsh(const std::string& program, const std::vector<CompletedCommand>& commands,
                const std::vector<Flag>& flags) {
  const std::string outer = "_" + program;
  std::string script = absl::StrCat("#compdef ", program, "\n");
  for (const CompletedCommand& command : commands) script += ZshWords(outer, command);
  absl::StrAppend(&script, outer, "() {\n",
                  Names(commands).empty()
                      ? absl::StrCat("  ", FunctionOf(outer, commands[0]), "_words \"$@\"\n")
                      : ZshChoice(outer, commands, flags));
  return absl::StrCat(script, "}\nif [[ $funcstack[1] == _", program, " ]]; then\n  _", program,
                      " \"$@\"\nelse\n  compdef _", program, " ", program, "\nfi\n");
}

// tcsh looks at one word at a time and knows no commands: the flags of all of them.
void AddFlagsOfAll(const std::vector<CompletedCommand>& commands, std::set<std::string>* names,
                   std::vector<Flag>* all) {
  for (const CompletedCommand& command : commands) {
    for (const Flag& flag : command.flags) {
      if (names->insert(flag.name).second) all->push_back(flag);
    }
    AddFlagsOfAll(command.commands, names, all);
  }
}

std::string Tcsh(const std::string& program, const std::vector<CompletedCommand>& commands) {
  const std::string names = Names(commands);
  std::string rules;
  // 'c' completes the rest of a word after its pattern, so the names go without their dashes.
  std::vector<std::string> words_after_dashes;
  std::set<std::string> flag_names;
  std::vector<Flag> flags;
  AddFlagsOfAll(commands, &flag_names, &flags);
  for (const CompletedCommand& command : commands) {
    if (command.commands.empty()) continue;
    absl::StrAppend(&rules, " 'n@", command.name, "@(", Names(command.commands), ")@'");
  }
  for (const Flag& flag : flags) {
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
                             const std::vector<CompletedCommand>& commands,
                             const std::vector<Flag>& flags) {
  if (shell == "bash") return Bash(program, commands, flags);
  if (shell == "zsh") return Zsh(program, commands, flags);
  CONVENE_CHECK(shell == "tcsh");
  return Tcsh(program, commands);
}

}  // namespace convene::launcher
