#include "launcher/completion.h"

#include <catch2/catch.hpp>

namespace convene::launcher {
namespace {

std::vector<FlagReader::Flag> Flags() {
  static std::string value;
  static bool on = false;
  FlagReader reader("run", "");
  reader.Option("tee", &value, "to files [and] the user's console: both", {.letter = 't'});
  reader.Option("start-method", &value, "how", {.choices = {"spawn", "fork"}});
  reader.Option("log-dir", &value, "where", {.is_directory = true});
  reader.Switch("standalone", &on, "alone");
  return reader.flags();
}

TEST_CASE("bash completes flags in both spellings, choices and directories") {
  const std::string script = CompletionScript("bash", "torchrun", {}, Flags());
  CHECK_THAT(script,
             Catch::Contains("--help --tee -t --start-method --start_method --log-dir") &&
                 Catch::Contains("--start-method|--start_method) COMPREPLY=($(compgen -W 'spawn "
                                 "fork' -- \"$word\")); return ;;") &&
                 Catch::Contains("--log-dir|--log_dir) COMPREPLY=($(compgen -d ") &&
                 Catch::Contains("complete -o filenames -F _torchrun_complete torchrun\n") &&
                 !Catch::Contains("--standalone)") && !Catch::Contains("serve"));
}

TEST_CASE("the first word of convene is a command") {
  CHECK_THAT(CompletionScript("bash", "convene", {"run", "serve", "status"}, Flags()),
             Catch::Contains("run serve status"));
  CHECK_THAT(CompletionScript("zsh", "convene", {"run", "serve", "status"}, Flags()),
             Catch::Contains("run serve status"));
  CHECK_THAT(CompletionScript("tcsh", "convene", {"run", "serve", "status"}, Flags()),
             Catch::Contains("'p@1@(run serve"));
}

TEST_CASE("zsh shows the help, quoted") {
  const std::string script = CompletionScript("zsh", "torchrun", {}, Flags());
  CHECK_THAT(
      script,
      Catch::StartsWith("#compdef torchrun\n") &&
          Catch::Contains("'--tee[to files \\[and\\] the user'\\''s console\\: both]:VALUE:'") &&
          Catch::Contains("'--start_method[how]:spawn|fork:(spawn fork)'") &&
          Catch::Contains(":_directories'") && Catch::Contains("'--standalone[alone]'"));
}

TEST_CASE("tcsh has a rule for each flag with a value, and the long names") {
  const std::string script = CompletionScript("tcsh", "torchrun", {}, Flags());
  CHECK_THAT(script, Catch::StartsWith("complete torchrun") &&
                         Catch::Contains("'n@-t@x:VALUE:@'") &&
                         Catch::Contains("'n@--start-method@(spawn fork)@'") &&
                         Catch::Contains("'n@--log_dir@d@'") &&
                         Catch::Contains("'c@--@(help tee start-method start_method"));
}

}  // namespace
}  // namespace convene::launcher
