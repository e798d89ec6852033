// PURE. One command's flags: from text to a struct, their help, and the facts that a shell's
// completion needs. The rules are those of Python's argparse, so that torchrun's command lines read
// the same.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/base/environment.h"

namespace convene {

// Text to value; InvalidArgument names the right form ("write a whole number").
absl::Status ParseValue(const std::string& text, std::string* value);
absl::Status ParseValue(const std::string& text, int* value);
absl::Status ParseValue(const std::string& text, int64_t* value);
absl::Status ParseValue(const std::string& text, double* value);
// A word such as true, or a number, of which 0 is false.
absl::Status ParseValue(const std::string& text, bool* value);
// Plain seconds, from 0 to 1e9 (31 years).
absl::Status ParseValue(const std::string& text, absl::Duration* value);

// A number of bytes, with or without a unit, by powers of 1024: "1000000", "64M", "1.5GiB".
absl::Status ParseSize(const std::string& text, int64_t* bytes);

template <typename T>
absl::Status ParseValue(const std::string& text, std::optional<T>* value) {
  T parsed{};
  if (absl::Status status = ParseValue(text, &parsed); !status.ok()) return status;
  *value = std::move(parsed);
  return absl::OkStatus();
}

// A flag's properties beside its name, target and help.
struct FlagDetails {
  std::string value = "VALUE";            // what help shows for its value
  char letter = 0;                        // its short form; 0: none
  std::vector<std::string> choices = {};  // nothing else is taken; empty: anything
  // A number outside is refused.
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  // For completion. A value that begins with "~/" is refused: no shell reads it behind "--flag=",
  // and the command would make a folder named "~". `like_argparse` takes it, as torchrun does.
  bool is_directory = false;
  bool from_environment = true;  // <prefix><NAME> sets its default, where there is a prefix
  // The first of these that is set gives the default; <prefix><NAME> stands before them.
  std::vector<std::string> variables = {};
};

class FlagReader {
 public:
  struct Flag {
    std::string name;  // with dashes, without the first two; taken with underscores as well
    std::string help;
    bool is_switch = false;
    bool may_be_cut = false;  // with `Rules::like_argparse`: a unique beginning stands for it
    FlagDetails details;
    std::function<absl::Status(const std::string&)> set;  // a switch gets "1" or "0"
  };

  struct Rules {
    // As argparse has it, a flag's unique beginning stands for it and an empty value is a value
    // (otherwise both are refused as slips), and of Rest's words a "--" behind the first one is
    // dropped, unless a "--" stands before the first one.
    bool like_argparse = false;
    // "PET_": PET_NNODES is the default of --nnodes. "": no such variables.
    std::string variable_prefix = {};
  };

  // `program`: as it is called, "convene run". --help is a flag of each reader.
  FlagReader(std::string program, std::string description, Rules rules);
  FlagReader(std::string program, std::string description);
  // Of a table of names for Set(), without --help.
  FlagReader() = default;
  FlagReader(const FlagReader&) = delete;
  FlagReader& operator=(const FlagReader&) = delete;

  // Heading of the flags that follow, in the help. Flags that `must_be_whole` cannot be shortened,
  // so that the beginnings of older flags keep their meaning.
  void Group(const std::string& title, bool must_be_whole = false);

  template <typename T>
  void Option(const std::string& name, T* target, const std::string& help,
              const FlagDetails& details = {}) {
    Custom(
        name, [target](const std::string& text) { return ParseValue(text, target); }, help,
        details);
  }
  // One of several words, each with its meaning; help shows them in this order.
  template <typename T>
  void Choice(const std::string& name, T* target,
              const std::vector<std::pair<std::string, T>>& words, const std::string& help,
              FlagDetails details = {}) {
    for (const auto& [word, meaning] : words) details.choices.push_back(word);
    Custom(
        name,
        [target, words](const std::string& text) {
          for (const auto& [word, meaning] : words) {
            if (word == text) *target = meaning;
          }
          return absl::OkStatus();
        },
        help, std::move(details));
  }
  void Switch(const std::string& name, bool* target, const std::string& help,
              FlagDetails details = {});
  // `set` gets the value's text; its InvalidArgument names the right form.
  void Custom(const std::string& name, std::function<absl::Status(const std::string&)> set,
              const std::string& help, FlagDetails details = {});
  // Reading ends at this flag with the text of `text`, which gets the flag's value. Without choices
  // the flag takes no value.
  void Print(const std::string& name, std::function<std::string(const std::string&)> text,
             const std::string& help, FlagDetails details = {});

  // Takes one word that is no flag, before, between or behind the flags; without Word, Words or
  // Rest such words are refused. `name` is for the usage line.
  void Word(const std::string& name, std::string* word);
  // Takes all words that are no flags, likewise anywhere.
  void Words(const std::string& name, std::vector<std::string>* words);
  // Takes all words from the first one that is no flag, or from the one after "--"; reading stops
  // there.
  void Rest(const std::string& name, std::vector<std::string>* words);

  // A check after all flags are read; its error is Read's.
  void Check(std::function<absl::Status()> check) { checks_.push_back(std::move(check)); }

  // Sets the targets; returns a text where a flag asks for one: the caller prints it and ends. The
  // environment's variables come first, the last of a repeated flag counts. InvalidArgument, with
  // the flag's name and the right form, for all else.
  absl::StatusOr<std::optional<std::string>> Read(const std::vector<std::string>& arguments,
                                                  const EnvironmentLookup& environment);

  // The same for one flag: "name=value" from elsewhere than a command line, the error in these
  // words. REQUIRES: `name` is one of flags().
  absl::Status Set(const std::string& name, const std::string& value);

  const std::string& program() const { return program_; }
  bool like_argparse() const { return rules_.like_argparse; }
  // "--nnodes=2 (PET_NNODES)" for each flag that the environment set.
  const std::vector<std::string>& from_environment() const { return from_environment_; }
  // The name of each flag that was set, by a word or by the environment, and its value's text ("1"
  // for a switch), in the order of setting.
  const std::vector<std::pair<std::string, std::string>>& given() const { return given_; }
  const std::vector<Flag>& flags() const { return flags_; }
  // Whether Rest() was called.
  bool takes_rest() const { return rest_ != nullptr; }
  // A row of the help that is no flag, such as a command.
  void HelpRow(const std::string& left, const std::string& help);
  std::string Help() const;

 private:
  void Add(Flag flag);
  absl::Status ReadEnvironment(const EnvironmentLookup& environment);
  absl::Status TakeWord(const std::string& word);
  // Reads arguments[*at], and its value where that is the next word; leaves `*at` behind them.
  absl::Status ReadLong(const std::vector<std::string>& arguments, size_t* at);
  absl::Status ReadShort(const std::vector<std::string>& arguments, size_t* at);
  absl::Status Take(const Flag& flag, const std::string& spelled,
                    const std::optional<std::string>& attached,
                    const std::vector<std::string>& arguments, size_t* at);
  absl::Status SetValue(const Flag& flag, const std::string& spelled, const std::string& value);
  absl::StatusOr<const Flag*> Find(const std::string& word) const;
  absl::Status UnknownFlag(const std::string& word) const;

  const std::string program_ = {};
  const std::string description_ = {};
  const Rules rules_ = {};
  bool may_be_cut_ = true;
  std::vector<Flag> flags_;
  std::vector<std::function<absl::Status()>> checks_;
  std::string words_name_;
  std::string* word_ = nullptr;
  std::vector<std::string>* all_words_ = nullptr;
  std::vector<std::string>* rest_ = nullptr;

  std::string help_rows_;
  std::optional<std::string> text_to_print_;
  std::vector<std::string> from_environment_;
  std::vector<std::pair<std::string, std::string>> given_;
};

}  // namespace convene
