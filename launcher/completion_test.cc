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
  reader.Option("include", &value, "hosts", {.value = "HOST[@HOST...]"});
  reader.Switch("standalone", &on, "alone");
  return reader.flags();
}

std::vector<FlagReader::Flag> OtherFlags() {
  static std::string value;
  FlagReader reader("serve", "");
  reader.Option("port", &value, "of the listener");
  return reader.flags();
}

std::string OfOne(const std::string& shell) {
  return CompletionScript(shell, "torchrun", {{"", Flags(), true}});
}

std::string OfTwo(const std::string& shell) {
  return CompletionScript(
      shell, "convene",
      {{"run", Flags(), true},
       {"serve", OtherFlags(), false},
       {"data", OtherFlags(), true, {{"show", OtherFlags(), false}, {"prepare", Flags(), false}}}},
      OtherFlags());
}

TEST_CASE("bash completes flags in both spellings, choices and directories") {
  CHECK_THAT(
      OfOne("bash"),
      Catch::Contains("--help -h --tee -t --start-method --start_method --log-dir") &&
          Catch::Contains("--start-method|--start_method) COMPREPLY=($(compgen -W 'spawn "
                          "fork' -- \"$word\")); return ;;") &&
          Catch::Contains("--log-dir|--log_dir) COMPREPLY=($(compgen -d ") &&
          Catch::Contains("complete -o default -o filenames -F _torchrun_complete torchrun\n") &&
          !Catch::Contains("--standalone)") && !Catch::Contains("COMP_CWORD == 1"));
}

TEST_CASE("the first word of several commands is a name, and each has its own flags") {
  CHECK_THAT(OfTwo("bash"), Catch::Contains("compgen -W 'run serve data'") &&
                                Catch::Contains("    serve) _convene_serve_words ;;\n") &&
                                Catch::Contains("compgen -W '--help -h --port' "));
  CHECK_THAT(OfTwo("zsh"), Catch::Contains("compadd run serve data;") &&
                               Catch::Contains("    serve) _convene_serve_words \"$@\" ;;\n"));
  CHECK_THAT(OfTwo("tcsh"), Catch::Contains("'p@1@(run serve data)@'") &&
                                Catch::Contains("standalone port)@'") &&
                                Catch::Contains("'n@data@(show prepare)@'"));
}

TEST_CASE("a command with commands of its own completes these, and each has its own flags") {
  CHECK_THAT(OfTwo("bash"), Catch::Contains("    data) _convene_data_words ;;\n") &&
                                Catch::Contains("if ((COMP_CWORD == 2)); then") &&
                                Catch::Contains("compgen -W 'show prepare'") &&
                                Catch::Contains("    show) _convene_data_show_words ;;\n") &&
                                Catch::Contains("_convene_data_prepare_words() {\n"));
  CHECK_THAT(OfTwo("zsh"), Catch::Contains("    data) _convene_data_words \"$@\" ;;\n") &&
                               Catch::Contains("compadd show prepare;") &&
                               Catch::Contains("compadd -- --help -h --port\n") &&
                               Catch::Contains("    show) _convene_data_show_words \"$@\" ;;\n"));
}

TEST_CASE("zsh shows the help, quoted") {
  CHECK_THAT(OfOne("zsh"),
             Catch::StartsWith("#compdef torchrun\n") &&
                 Catch::Contains(
                     "'--tee[to files \\[and\\] the user'\\''s console\\: both]:VALUE:_files'") &&
                 Catch::Contains("'--start_method[how]:spawn|fork:(spawn fork)'") &&
                 Catch::Contains(":_directories'") && Catch::Contains("'--standalone[alone]'"));
}

TEST_CASE("tcsh has a rule for each flag with a value, and the long names") {
  CHECK_THAT(OfOne("tcsh"), Catch::StartsWith("complete torchrun") &&
                                Catch::Contains("'n@-t@x:VALUE:@'") &&
                                Catch::Contains("'n@--start-method@(spawn fork)@'") &&
                                Catch::Contains("'n@--log_dir@d@'") &&
                                Catch::Contains("'n@--include@x:HOST[ HOST...]:@'") &&
                                Catch::Contains("'c@--@(help tee start-method start_method"));
}

}  // namespace
}  // namespace convene::launcher
