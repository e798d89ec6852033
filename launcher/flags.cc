#include "launcher/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

constexpr char kVersion[] = "convene 0.1.0\n";

constexpr char kUsage[] =
    R"(convene starts a distributed training job on this node and keeps it running.

  convene run [flags] program [arguments]   run this node's part of a job
  convene serve [flags]                     serve the rendezvous by itself
  convene status --endpoint HOST[:PORT]     what the jobs of a rendezvous are doing

  convene COMMAND --help     the flags of a command
  convene --help-exit-codes  what each exit code means
  convene --version
)";

// "--a-b,--a_b": both spellings that torchrun takes.
std::string Spellings(const std::string& name) {
  const std::string underscored = absl::StrReplaceAll(name, {{"-", "_"}});
  if (underscored == name) return "--" + name;
  return absl::StrCat("--", name, ",--", underscored);
}

// One command's flags on the way from text to a struct.
class FlagReader {
 public:
  FlagReader(const std::string& command, const std::string& description)
      : command_(command), app_(description, "convene " + command) {
    app_.prefix_command();  // the first word that is no flag ends the flags
    app_.get_formatter()->column_width(44);
  }

  template <typename T>
  void Option(const std::string& name, T* target, const std::string& help) {
    app_.add_option(Spellings(name), *target, help)->take_last();
    names_.push_back({name, false});
  }

  void Switch(const std::string& name, bool* target, const std::string& help) {
    app_.add_flag(Spellings(name), *target, help);
    names_.push_back({name, true});
  }

  void ShortSwitch(const std::string& letter, const std::string& name, bool* target,
                   const std::string& help) {
    app_.add_flag(absl::StrCat("-", letter, ",--", name), *target, help);
    names_.push_back({name, true});
  }

  // The PET_ variables as flags, to stand before the given ones so that those win.
  std::vector<std::string> FromEnvironment(const EnvironmentLookup& environment) const {
    std::vector<std::string> flags;
    for (const Name& name : names_) {
      const auto value = environment(VariableOf(name.text));
      if (value.value_or("").empty()) continue;
      if (!name.is_switch) {
        flags.push_back(absl::StrCat("--", name.text, "=", *value));
      } else if (*value == "1" || absl::EqualsIgnoreCase(*value, "true")) {
        flags.push_back("--" + name.text);
      }
    }
    return flags;
  }

  static std::string VariableOf(const std::string& name) {
    return "PET_" + absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}}));
  }

  // What follows the flags, or the help text when asked for.
  absl::StatusOr<std::variant<std::vector<std::string>, TextToPrint>> Read(
      std::vector<std::string> arguments) {
    CONVENE_RETURN_IF_ERROR(CheckValues(arguments));
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants it
    try {
      app_.parse(arguments);
    } catch (const CLI::CallForHelp&) {
      return TextToPrint{app_.help()};
    } catch (const CLI::ParseError& error) {
      return absl::InvalidArgumentError(
          absl::StrCat(error.what(), "; see `convene ", command_, " --help`"));
    }
    std::vector<std::string> rest = app_.remaining();
    if (!rest.empty() && rest[0] == "--") {
      rest.erase(rest.begin());
    } else if (!rest.empty() && rest[0].size() > 1 && rest[0][0] == '-') {
      return UnknownFlag(rest[0]);
    }
    return rest;
  }

 private:
  struct Name {
    std::string text;
    bool is_switch;
  };

  // CLI11 takes the next word as the value of "--flag=", and so would eat the program.
  absl::Status CheckValues(const std::vector<std::string>& arguments) const {
    for (size_t i = 0; i < arguments.size() && arguments[i].size() > 1; ++i) {
      const std::string& word = arguments[i];
      if (word[0] != '-' || word == "--") break;
      const size_t equals = word.find('=');
      if (equals != std::string::npos && equals + 1 == word.size()) {
        return absl::InvalidArgumentError(absl::StrCat(
            word, " has no value; write ", word, "VALUE, or leave the flag out for its default"));
      }
      if (equals == std::string::npos && TakesValue(word)) ++i;
    }
    return absl::OkStatus();
  }

  bool TakesValue(const std::string& word) const {
    const std::string dashed = absl::StrReplaceAll(word, {{"_", "-"}});
    return std::any_of(names_.begin(), names_.end(), [&](const Name& name) {
      return !name.is_switch && dashed == "--" + name.text;
    });
  }

  absl::Status UnknownFlag(const std::string& given) const {
    std::vector<std::string> candidates = {"--help"};
    for (const Name& name : names_) candidates.push_back("--" + name.text);
    const std::string word = given.substr(0, given.find('='));
    const std::string nearest = ClosestMatch(word, candidates);
    return absl::InvalidArgumentError(
        absl::StrCat("`convene ", command_, "` has no flag ", word,
                     nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"),
                     nearest.empty() ? "; see `convene " + command_ + " --help`" : ""));
  }

  const std::string command_;
  CLI::App app_;
  std::vector<Name> names_;
};

void AddRendezvousFlags(FlagReader* reader, RunFlags* flags) {
  reader->Switch("standalone", &flags->standalone,
                 "one node by itself: no rendezvous to meet at, no address to name");
  reader->Option("nnodes", &flags->nnodes, "nodes: N, or MIN:MAX for an elastic job (default 1)");
  reader->Option("rdzv-endpoint", &flags->rdzv_endpoint,
                 "HOST[:PORT] where the nodes meet; the node that owns HOST serves it when nobody "
                 "else does (default port 29400)");
  reader->Option("rdzv-id", &flags->rdzv_id, "the job's name, the same on every node");
  reader->Option("rdzv-backend", &flags->rdzv_backend,
                 "convene, c10d or static: all mean Convene's rendezvous");
  reader->Option("rdzv-conf", &flags->rdzv_conf,
                 "k=v,...: join_timeout, last_call_timeout, keep_alive_interval (seconds), "
                 "keep_alive_max_attempt, is_host");
  reader->Option("node-rank", &flags->node_rank, "this node's place in the order of nodes");
  reader->Option("master-addr", &flags->master_addr,
                 "host of --rdzv-endpoint, as static jobs name it");
  reader->Option("master-port", &flags->master_port,
                 "port of the workers' store on the first node (default: any free one)");
  reader->Option("local-addr", &flags->local_addr,
                 "name or address by which other nodes reach this one");
}

// Lives as long as the parse: torchrun polls, Convene waits for events.
struct FlagsWithoutEffect {
  double monitor_interval_seconds = 0;
};

void AddWorkerFlags(FlagReader* reader, RunFlags* flags, FlagsWithoutEffect* without_effect) {
  reader->Option("nproc-per-node", &flags->nproc_per_node,
                 "workers on this node: a number, gpu, cpu, or auto (GPUs, else CPUs)");
  reader->Option("max-restarts", &flags->max_restarts, "failures the job may survive (default 0)");
  reader->Option("monitor-interval", &without_effect->monitor_interval_seconds,
                 "accepted for torchrun's sake, without effect: exits are events here");
  reader->Option("shutdown-timeout", &flags->shutdown_timeout_seconds,
                 "seconds from SIGTERM to SIGKILL for workers (default 30)");
  reader->Option("log-dir", &flags->log_dir, "also write each worker's output to files below this");
  reader->Option("role", &flags->role, "ROLE_NAME of the workers (default \"default\")");
  reader->ShortSwitch("m", "module", &flags->module, "the program is a Python module");
  reader->Switch("no-python", &flags->no_python,
                 "run a program that ends in .py by itself, not under python3 -u");
}

absl::StatusOr<CommandLine> ParseRun(const std::vector<std::string>& arguments,
                                     const EnvironmentLookup& environment) {
  RunFlags flags;
  FlagsWithoutEffect without_effect;
  FlagReader reader("run",
                    "Run this node's part of a job. PET_<FLAG> sets a flag's default. What follows "
                    "the program's name belongs to the program.");
  AddRendezvousFlags(&reader, &flags);
  AddWorkerFlags(&reader, &flags, &without_effect);
  std::vector<std::string> words = reader.FromEnvironment(environment);
  flags.from_environment = words;
  words.insert(words.end(), arguments.begin(), arguments.end());
  CONVENE_ASSIGN_OR_RETURN(auto read, reader.Read(std::move(words)));
  if (auto* text = std::get_if<TextToPrint>(&read)) return CommandLine(std::move(*text));
  flags.command = std::get<std::vector<std::string>>(std::move(read));
  if (flags.command.empty()) {
    return absl::InvalidArgumentError(
        "no program to run; write it after the flags: `convene run --nproc-per-node 2 train.py`");
  }
  return CommandLine(std::move(flags));
}

absl::Status NothingLeft(const std::vector<std::string>& rest, const std::string& command) {
  if (rest.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("`convene ", command, "` takes flags only, not \"", rest[0], "\""));
}

absl::StatusOr<CommandLine> ParseServe(const std::vector<std::string>& arguments) {
  ServeFlags flags;
  FlagReader reader("serve", "Serve the rendezvous until SIGTERM or SIGINT.");
  reader.Option("host", &flags.host, "address to bind (default 0.0.0.0)");
  reader.Option("port", &flags.port, "port to bind, 0 for any free one (default 29400)");
  CONVENE_ASSIGN_OR_RETURN(auto read, reader.Read(arguments));
  if (auto* text = std::get_if<TextToPrint>(&read)) return CommandLine(std::move(*text));
  CONVENE_RETURN_IF_ERROR(NothingLeft(std::get<std::vector<std::string>>(read), "serve"));
  if (flags.port < 0 || flags.port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--port ", flags.port, " is not in 0..65535"));
  }
  return CommandLine(std::move(flags));
}

absl::StatusOr<CommandLine> ParseStatus(const std::vector<std::string>& arguments) {
  StatusFlags flags;
  FlagReader reader("status", "Show the jobs of a rendezvous: nodes, epoch, and why.");
  reader.Option("endpoint", &flags.endpoint, "HOST[:PORT] of the rendezvous (default port 29400)");
  reader.Option("rdzv-id", &flags.job_id, "only this job");
  CONVENE_ASSIGN_OR_RETURN(auto read, reader.Read(arguments));
  if (auto* text = std::get_if<TextToPrint>(&read)) return CommandLine(std::move(*text));
  CONVENE_RETURN_IF_ERROR(NothingLeft(std::get<std::vector<std::string>>(read), "status"));
  if (flags.endpoint.empty()) {
    return absl::InvalidArgumentError("`convene status` needs --endpoint HOST[:PORT]");
  }
  return CommandLine(std::move(flags));
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                             const EnvironmentLookup& environment) {
  if (arguments.empty()) return absl::InvalidArgumentError("no command; see `convene --help`");
  const std::string& command = arguments[0];
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (command == "run") return ParseRun(rest, environment);
  if (command == "serve") return ParseServe(rest);
  if (command == "status") return ParseStatus(rest);
  if (command == "--help" || command == "-h" || command == "help") return TextToPrint{kUsage};
  if (command == "--help-exit-codes") return TextToPrint{ExitCodeTable()};
  if (command == "--version") return TextToPrint{kVersion};
  const std::string nearest =
      ClosestMatch(command, {"run", "serve", "status", "--help", "--help-exit-codes", "--version"});
  return absl::InvalidArgumentError(
      absl::StrCat("convene has no command ", command,
                   nearest.empty() ? "; see `convene --help`"
                                   : absl::StrCat("; did you mean `convene ", nearest, "`?")));
}

}  // namespace convene::launcher
