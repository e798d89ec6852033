#include "launcher/command_table.h"

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using Words = std::vector<std::string>;

// Its exit code is the number that it is given.
Command Named(const std::string& name) {
  const auto add_flags = [](FlagReader* reader) -> Action {
    const auto code = std::make_shared<int>(0);
    reader->Option("code", code.get(), "what it ends with");
    return [code] { return *code; };
  };
  return {name, "row of " + name, "First words of " + name + ".", {}, add_flags};
}

const Program kTwo = {"convene", "First words.", {Named("run"), Named("serve")}};
const Program kOne = {"convened", "", {Named("serve")}};

absl::StatusOr<Call> Read(const Program& program, const Words& words) {
  return ReadCall(program, words, [](const std::string&) { return std::nullopt; });
}

std::string Text(const Program& program, const Words& words) {
  const auto call = Read(program, words);
  REQUIRE_OK(call);
  CHECK(call->action == nullptr);
  return call->text;
}

TEST_CASE("of several commands the first word says which; a single one is the program itself") {
  const auto of_two = Read(kTwo, {"serve", "--code", "3"});
  REQUIRE_OK(of_two);
  CHECK(of_two->action().value() == 3);
  const auto of_one = Read(kOne, {"--code=4"});
  REQUIRE_OK(of_one);
  CHECK(of_one->action().value() == 4);
}

TEST_CASE("help lists the commands, and each command has its own") {
  for (const Words& words : {Words{"--help"}, Words{"-h"}, Words{"help"}}) {
    CHECK_THAT(Text(kTwo, words), Catch::StartsWith("usage: convene [flags] COMMAND ...\n") &&
                                      Catch::Contains("  run        ") &&
                                      Catch::Contains("row of serve\n"));
  }
  CHECK(Text(kTwo, {"help", "serve"}) == Text(kTwo, {"serve", "--help"}));
  CHECK_THAT(Text(kTwo, {"serve", "--help"}), Catch::StartsWith("usage: convene serve [flags]\n") &&
                                                  Catch::Contains("First words of serve.") &&
                                                  Catch::Contains("--code VALUE"));
  CHECK_THAT(Text(kOne, {"--help"}), Catch::StartsWith("usage: convened [flags]\n") &&
                                         Catch::Contains("--help-exit-codes"));
}

TEST_CASE("version, exit codes and completion are texts of every program and command") {
  for (const Words& before : {Words{}, Words{"run"}}) {
    const auto with = [&](const std::string& word) {
      Words words = before;
      words.push_back(word);
      return Text(kTwo, words);
    };
    CHECK_THAT(with("--version"), Catch::StartsWith("convene "));
    CHECK_THAT(with("--help-exit-codes"), Catch::Contains("bad usage"));
    CHECK_THAT(with("--print-completion=bash"), Catch::Contains("'run serve'"));
  }
  const std::string version = Text(kTwo, {"--version"}).substr(8);
  CHECK(Text(kOne, {"--version"}) == "convened " + version);
  CHECK_THAT(Text(kOne, {"--help_exit_codes"}), Catch::Contains("bad usage"));
  CHECK_THAT(Text(kOne, {"--print-completion", "zsh"}), Catch::StartsWith("#compdef convened\n"));
}

TEST_CASE("what is not understood says what to write") {
  const auto refused = [](const Words& words, const std::string& text) {
    CHECK_STATUS(Read(kTwo, words).status(), absl::StatusCode::kInvalidArgument, text);
  };
  refused({}, "no command; see `convene --help`");
  refused({"rnu", "x"}, "did you mean `convene run`?");
  refused({"--versoin"}, "did you mean --version?");
  refused({"--print-completion", "fish"}, "write bash, zsh, tcsh");
  refused({"run", "x"}, "`convene run` takes flags only, not \"x\"");
}

}  // namespace
}  // namespace convene::launcher
