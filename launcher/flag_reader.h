// One command's flags, on the way from text to a struct; their help; what a shell's completion
// needs to know of them. The rules are those of Python's argparse, so that torchrun's command lines
// read the same.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "launcher/environment.h"

namespace convene::launcher {

// Help, version, exit codes, a completion script: to stdout, then exit 0.
struct TextToPrint {
  std::string text;
};

// Text to value; InvalidArgument says what the text should have been ("write a whole number").
absl::Status ParseValue(const std::string& text, std::string* value);
absl::Status ParseValue(const std::string& text, int* value);
absl::Status ParseValue(const std::string& text, int64_t* value);
absl::Status ParseValue(const std::string& text, double* value);
// Plain seconds, from 0 to a year.
absl::Status ParseValue(const std::string& text, absl::Duration* value);

template <typename T>
absl::Status ParseValue(const std::string& text, std::optional<T>* value) {
  T parsed{};
  if (absl::Status status = ParseValue(text, &parsed); !status.ok()) return status;
  *value = std::move(parsed);
  return absl::OkStatus();
}

// What a flag may have beside its name, target and help.
struct FlagDetails {
  std::string value = "VALUE";            // what help shows for its value
  char letter = 0;                        // its short form; 0: none
  std::vector<std::string> choices = {};  // nothing else is taken; empty: anything
  bool is_directory = false;              // for completion
  bool from_environment = true;           // PET_<NAME> sets its default
};

class FlagReader {
 public:
  struct Flag {
    std::string name;  // with dashes, without the first two; taken with underscores as well
    std::string help;
    bool is_switch = false;
    std::string group;  // heading in the help
    bool beyond_torchrun = false;
    FlagDetails details;
    std::function<absl::Status(const std::string&)> set;  // a switch gets "1" or "0"
  };

  // `as_torchrun`: the program is called "torchrun"; a flag's unique beginning stands for it and an
  // empty value is a value, as argparse has it. Otherwise both are refused as slips.
  FlagReader(const std::string& command, std::string description, bool as_torchrun = false);

  // Heading of the flags that follow. Those `beyond_torchrun` have no short beginnings: these stay
  // as torchrun knows them.
  void Group(std::string title, bool beyond_torchrun = false) {
    group_ = std::move(title);
    beyond_torchrun_ = beyond_torchrun;
  }

  template <typename T>
  void Option(const std::string& name, T* target, const std::string& help,
              FlagDetails details = {}) {
    Add(name, help, false, std::move(details),
        [target](const std::string& text) { return ParseValue(text, target); });
  }
  void Switch(const std::string& name, bool* target, const std::string& help,
              FlagDetails details = {});

  // What follows the flags (reading stops at the first word that is none, or after "--"), or the
  // help text when asked for. The environment's PET_ variables come first, the last of a repeated
  // flag counts. InvalidArgument, with the flag's name and what to write, for all else.
  absl::StatusOr<std::variant<std::vector<std::string>, TextToPrint>> Read(
      const std::vector<std::string>& arguments, const EnvironmentLookup& environment);
  absl::StatusOr<std::variant<std::vector<std::string>, TextToPrint>> Read(
      const std::vector<std::string>& arguments);

  // "--nnodes=2 (PET_NNODES)" for each flag that the environment set.
  const std::vector<std::string>& from_environment() const { return from_environment_; }
  const std::vector<Flag>& flags() const { return flags_; }
  std::string Help() const;

 private:
  void Add(const std::string& name, const std::string& help, bool is_switch, FlagDetails details,
           std::function<absl::Status(const std::string&)> set);
  absl::Status ReadEnvironment(const EnvironmentLookup& environment);
  // Reads arguments[*at], and its value where that is the next word; leaves `*at` behind them.
  absl::Status ReadLong(const std::vector<std::string>& arguments, size_t* at);
  absl::Status ReadShort(const std::vector<std::string>& arguments, size_t* at);
  absl::Status Take(const Flag& flag, const std::string& spelled,
                    const std::optional<std::string>& attached,
                    const std::vector<std::string>& arguments, size_t* at);
  absl::Status SetValue(const Flag& flag, const std::string& spelled, const std::string& value);
  absl::StatusOr<const Flag*> Find(const std::string& word) const;
  absl::Status UnknownFlag(const std::string& word) const;

  const std::string program_;
  const std::string description_;
  const bool as_torchrun_;
  std::string group_ = "Flags";
  bool beyond_torchrun_ = false;
  std::vector<Flag> flags_;
  std::vector<std::string> from_environment_;
};

}  // namespace convene::launcher
