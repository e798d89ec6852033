#include "tools/base/flag_reader.h"

#include <map>

#include "absl/time/time.h"
#include "tools/base/testing/status_testing.h"

namespace convene {
namespace {

using Words = std::vector<std::string>;

struct Target {
  std::string text;
  std::optional<int> number;
  double fraction = 0;
  absl::Duration time;
  bool on = false;
};

class Fixture {
 public:
  explicit Fixture(bool like_argparse = false)
      : reader_("convene run", "Words.",
                {.like_argparse = like_argparse, .variable_prefix = "PET_"}) {
    reader_.Option("some-text", &target_.text, "help", {.letter = 't'});
    reader_.Option("number", &target_.number, "help");
    reader_.Option("fraction", &target_.fraction, "help");
    reader_.Option("fraction-max", &target_.fraction, "help");
    reader_.Option("time", &target_.time, "help", {.from_environment = false});
    reader_.Switch("on-and-off", &target_.on, "help", {.letter = 'o'});
    reader_.Group("More", true);
    reader_.Option("number-of-ours", &target_.number, "help");
    reader_.Rest("WORDS", &rest_);
  }

  Words Good(const Words& words, const std::map<std::string, std::string>& environment = {}) {
    rest_.clear();
    const auto text = Read(words, environment);
    REQUIRE_OK(text);
    CHECK_FALSE(text->has_value());
    return rest_;
  }

  void Bad(const Words& words, const std::string& text,
           const std::map<std::string, std::string>& environment = {}) {
    CHECK_STATUS(Read(words, environment).status(), absl::StatusCode::kInvalidArgument, text);
  }

  const Target& target() const { return target_; }
  FlagReader& reader() { return reader_; }

 private:
  absl::StatusOr<std::optional<std::string>> Read(
      const Words& words, const std::map<std::string, std::string>& environment) {
    return reader_.Read(words, [&](const std::string& name) -> std::optional<std::string> {
      const auto found = environment.find(name);
      if (found == environment.end()) return std::nullopt;
      return found->second;
    });
  }

  Target target_;
  Words rest_;
  FlagReader reader_;
};

TEST_CASE("a long flag takes the next word or what follows '='") {
  Fixture f;
  CHECK(f.Good({"--some-text", "a", "--number=3", "--fraction=.5", "--time", "1.5", "x", "y"}) ==
        Words{"x", "y"});
  CHECK(f.target().text == "a");
  CHECK(f.target().number == 3);
  CHECK(f.target().fraction == 0.5);
  CHECK(f.target().time == absl::Milliseconds(1500));
}

TEST_CASE("a short flag takes the next word, the rest of its own, or what follows '='") {
  for (const Words& words : {Words{"-t", "3", "x"}, Words{"-t3", "x"}, Words{"-t=3", "x"}}) {
    Fixture f;
    CHECK(f.Good(words) == Words{"x"});
    CHECK(f.target().text == "3");
  }
  Fixture f;
  CHECK(f.Good({"-o", "x"}) == Words{"x"});
  CHECK(f.target().on);
}

TEST_CASE("flags end at the first word that is none, at a lone dash, or at '--'") {
  CHECK(Fixture().Good({"x", "--number", "3"}) == Words{"x", "--number", "3"});
  CHECK(Fixture().Good({"-", "x"}) == Words{"-", "x"});
  CHECK(Fixture().Good({"--", "--odd"}) == Words{"--odd"});
}

TEST_CASE(
    "argparse takes one '--', before or behind the first word; all others are the program's") {
  for (const auto& [given, expected] :
       std::vector<std::pair<Words, Words>>{{{"x", "--", "--lr", "1"}, {"x", "--lr", "1"}},
                                            {{"-o", "x", "--", "--", "a"}, {"x", "--", "a"}},
                                            {{"x", "--"}, {"x"}},
                                            {{"x", "a", "--", "b"}, {"x", "a", "--", "b"}},
                                            {{"--", "x", "--", "a"}, {"x", "--", "a"}}}) {
    CHECK(Fixture(true).Good(given) == expected);
  }
  CHECK(Fixture().Good({"x", "--", "--lr"}) == Words{"x", "--", "--lr"});
}

TEST_CASE("a word that looks like a flag is no value, a negative number is") {
  Fixture f;
  f.Bad({"--some-text", "--on-and-off", "x"}, "--some-text needs a value");
  f.Bad({"--some-text"}, "--some-text needs a value: write --some-text VALUE");
  CHECK(f.Good({"--number", "-1"}).empty());
  CHECK(f.target().number == -1);
  CHECK(f.Good({"--some-text=--x="}).empty());
  CHECK(f.target().text == "--x=");
}

TEST_CASE("an empty value is a slip, but for torchrun it is a value") {
  Fixture().Bad({"--some-text=", "x"}, "--some-text= has no value");
  Fixture f(true);
  CHECK(f.Good({"--some-text=", "x"}) == Words{"x"});
  CHECK(f.target().text.empty());
  f.Bad({"--number=", "x"}, "--number : write a whole number");
}

TEST_CASE("a wrong value is shown, but not to its end when it is a book") {
  const std::string book(100000, 'x');
  Fixture().Bad({"--number", book},
                "--number " + book.substr(0, 100) + "...: write a whole number");
}

TEST_CASE("a unique beginning of torchrun's own flags stands for them, under that name only") {
  Fixture f(true);
  CHECK(f.Good({"--some", "a", "--num=4"}).empty());
  CHECK(f.target().text == "a");
  CHECK(f.target().number == 4);
  f.Bad({"--x"}, "no flag --x");
  f.Bad({"--frac=1"}, "--frac could be --fraction or --fraction-max");
  Fixture().Bad({"--some", "a"}, "no flag --some");
}

TEST_CASE("a switch takes no value, and 1 or 0 from the environment") {
  Fixture().Bad({"--on-and-off=1"}, "takes no value");
  Fixture f;
  f.Good({}, {{"PET_ON_AND_OFF", "2"}});
  CHECK(f.target().on);
  f.Good({}, {{"PET_ON_AND_OFF", "0"}});
  CHECK_FALSE(f.target().on);
  f.Bad({}, "PET_ON_AND_OFF=maybe: write 1 or 0", {{"PET_ON_AND_OFF", "maybe"}});
}

TEST_CASE("the environment gives defaults, says so, and only where a flag allows it") {
  Fixture f;
  f.Good({"--number", "2"}, {{"PET_NUMBER", "1"}, {"PET_TIME", "9"}, {"PET_SOME_TEXT", ""}});
  CHECK(f.target().number == 2);
  CHECK(f.target().time == absl::ZeroDuration());
  CHECK(f.reader().from_environment() == Words{"--number=1 (PET_NUMBER)"});
}

TEST_CASE("seconds are finite and not negative") {
  for (const char* bad : {"-1", "nan", "inf", "soon", "1e99"}) {
    Fixture().Bad({std::string("--time=") + bad}, "write seconds");
  }
}

TEST_CASE("help names each flag once, under its heading, in lines of at most 100 columns") {
  Fixture f;
  std::string text;
  f.reader().Option("long", &text, std::string(30, 'w') + " " + std::string(40, 'v') + " end");
  const std::string help = f.reader().Help();
  CHECK_THAT(help, Catch::Contains("-t, --some-text VALUE") && Catch::Contains("\nMore\n") &&
                       Catch::Contains("  -o, --on-and-off") &&
                       Catch::Contains("usage: convene run [flags] WORDS\n"));
  size_t column = 0;
  for (const char c : help) {
    column = c == '\n' ? 0 : column + 1;
    CHECK(column <= 100);
  }
}

// A command that takes one word, with what else a flag may be.
class OneWord {
 public:
  OneWord() {
    reader_.Word("[RUN]", &word_);
    reader_.Option("port", &port_, "help", {.least = 1, .most = 9.5});
    reader_.Option("place", &place_, "help", {.variables = {"FIRST", "SECOND"}});
    reader_.Print("say", [](const std::string& value) { return "said " + value; }, "help",
                  {.choices = {"a", "b"}});
    reader_.Check([this]() -> absl::Status {
      if (word_ != "wrong") return absl::OkStatus();
      return absl::InvalidArgumentError("wrong word");
    });
  }

  absl::StatusOr<std::optional<std::string>> Read(
      const Words& words, const std::map<std::string, std::string>& environment = {}) {
    return reader_.Read(words, [&](const std::string& name) -> std::optional<std::string> {
      const auto found = environment.find(name);
      if (found == environment.end()) return std::nullopt;
      return found->second;
    });
  }
  const std::string& word() const { return word_; }
  const std::string& place() const { return place_; }

 private:
  std::string word_;
  int port_ = 1;
  std::string place_ = "default";
  FlagReader reader_{"show", "Words."};
};

TEST_CASE("one word stands anywhere among the flags, and only one") {
  for (const Words& words :
       {Words{"llama", "--port=2"}, Words{"--port", "2", "llama"}, Words{"--", "llama"}}) {
    OneWord command;
    REQUIRE_OK(command.Read(words));
    CHECK(command.word() == "llama");
  }
  CHECK_STATUS(OneWord().Read({"a", "b"}), absl::StatusCode::kInvalidArgument,
               "`show [RUN]`: \"b\" is one too many");
  FlagReader none("none", "");
  CHECK_STATUS(none.Read({"a"}, [](const std::string&) { return std::nullopt; }),
               absl::StatusCode::kInvalidArgument, "`none` takes flags only, not \"a\"");
}

TEST_CASE("a home folder that no shell has put in its place is refused, but not as torchrun") {
  for (const bool like_argparse : {false, true}) {
    Fixture f(like_argparse);
    std::string directory;
    f.reader().Option("log-dir", &directory, "help", {.is_directory = true});
    if (like_argparse) {
      f.Good({"--log-dir=~/logs"});
      CHECK(directory == "~/logs");
    } else {
      f.Bad({"--log-dir=~/logs"}, "--log-dir ~/logs: `~` is the shell's");
      f.Bad({"--log-dir=~/logs"}, "write \"$HOME\"/logs, or ./~/logs for a folder of this name");
      f.Good({"--log-dir=./~/logs"});
    }
    f.Good({"--some-text=~/x"});
  }
}

TEST_CASE("a number outside its limits is answered with them") {
  CHECK_OK(OneWord().Read({"--port=9"}));
  for (const char* bad : {"--port=0", "--port=10", "--port=nan", "--port=x"}) {
    CHECK_STATUS(OneWord().Read({bad}), absl::StatusCode::kInvalidArgument,
                 "write a number from 1 to 9.5");
  }
  int gpus = 0;
  FlagReader large("large", "");
  large.Option("gpus", &gpus, "", {.value = "N", .least = 1, .most = 1 << 20});
  CHECK_STATUS(large.Read({"--gpus=0"}, [](const std::string&) { return std::nullopt; }),
               absl::StatusCode::kInvalidArgument, "write a number from 1 to 1048576");
}

TEST_CASE("the first variable of a flag that is set gives its default") {
  const std::map<std::string, std::string> both = {{"FIRST", "1"}, {"SECOND", "2"}};
  OneWord first;
  CHECK_OK(first.Read({}, both));
  CHECK(first.place() == "1");
  OneWord second;
  CHECK_OK(second.Read({}, {{"FIRST", ""}, {"SECOND", "2"}}));
  CHECK(second.place() == "2");
  OneWord flag;
  CHECK_OK(flag.Read({"--place=3"}, both));
  CHECK(flag.place() == "3");
}

TEST_CASE("a flag that prints ends the reading, and what follows it does not matter") {
  CHECK(OneWord().Read({"--say", "a", "--unknown"}).value() == "said a");
  CHECK_STATUS(OneWord().Read({"--say", "c"}), absl::StatusCode::kInvalidArgument, "write a, b");
}

TEST_CASE("a check comes after all is read") {
  CHECK_STATUS(OneWord().Read({"wrong", "--port=2"}), absl::StatusCode::kInvalidArgument,
               "wrong word");
}

}  // namespace
}  // namespace convene
