#include "worker_runtime/options/command_line.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "tools/base/exit_code.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/version.h"
#include "worker_runtime/options/config_keys.h"

namespace convene::worker {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TrainConfig Flags(const std::vector<std::string>& arguments) {
  const auto line = ParseCommandLine(arguments);
  REQUIRE_OK(line);
  return line->flags;
}

TEST_CASE("dashes and underscores, space and equals sign are the same") {
  CHECK(Flags({"--learning-rate", "3e-4"}).learning_rate() == 3e-4);
  CHECK(Flags({"--learning_rate", "3e-4"}).learning_rate() == 3e-4);
  CHECK(Flags({"--learning-rate=3e-4"}).learning_rate() == 3e-4);
  CHECK(Flags({"--learning_rate=3e-4"}).learning_rate() == 3e-4);
}

TEST_CASE("every key of the proto is a flag") {
  for (const ConfigKey& key : ConfigKeys()) {
    using google::protobuf::FieldDescriptor;
    INFO(key.field->name());
    const bool is_bool = key.field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL;
    TrainConfig flags = Flags({"--" + key.field->name(), is_bool ? "true" : "1"});
    std::vector<const FieldDescriptor*> set;
    const auto* message = MessageOf(key, &flags);
    message->GetReflection()->ListFields(*message, &set);
    CHECK(set == std::vector<const FieldDescriptor*>{key.field});
  }
}

TEST_CASE("a key of the shape lands in the shape") {
  const TrainConfig flags = Flags({"--layers", "4", "--hidden-size=32"});
  CHECK(flags.model_shape().layers() == 4);
  CHECK(flags.model_shape().hidden_size() == 32);
}

TEST_CASE("data takes many values, up to the next flag, and may be repeated") {
  const TrainConfig flags = Flags({"--data", "a", "b", "--steps", "3", "--data=c"});
  CHECK(std::vector<std::string>(flags.data().begin(), flags.data().end()) ==
        std::vector<std::string>{"a", "b", "c"});
  CHECK(flags.steps() == 3);
}

TEST_CASE("a bool needs no value, but can have one") {
  CHECK(Flags({"--tied-embeddings"}).model_shape().tied_embeddings());
  CHECK(Flags({"--tied-embeddings", "--steps", "3"}).model_shape().tied_embeddings());
  CHECK_FALSE(Flags({"--tied-embeddings", "false"}).model_shape().tied_embeddings());
  CHECK_FALSE(Flags({"--tied-embeddings", "False"}).model_shape().tied_embeddings());
  CHECK(Flags({"--tied-embeddings=false"}).model_shape().has_tied_embeddings());
}

TEST_CASE("said twice, the last wins; a negative number is a value") {
  CHECK(Flags({"--steps", "1", "--steps", "2"}).steps() == 2);
  CHECK(Flags({"--seed", "-1"}).seed() == -1);
}

TEST_CASE("a second file is refused, the same one is not") {
  CHECK_STATUS(ParseCommandLine({"--config", "base.yaml", "--steps", "1", "--config=over.yaml"}),
               kInvalid, "--config names two files, base.yaml and over.yaml");
  CHECK(ParseCommandLine({"--config", "a.yaml", "--config", "a.yaml"})->config_path == "a.yaml");
}

TEST_CASE("help and the file's name are kept apart from the keys") {
  const auto line = ParseCommandLine({"--config", "train.yaml", "--help", "--no-such-flag"});
  REQUIRE_OK(line);
  CHECK(line->query_text == HelpText());
  CHECK(line->config_path == "train.yaml");
  CHECK(ParseCommandLine({"--config=a=b.yaml"})->config_path == "a=b.yaml");
  CHECK(ParseCommandLine({"-h"})->query_text == HelpText());
  CHECK(ParseCommandLine({"--help-exit-codes"})->query_text == ExitCodeTable());
  CHECK(ParseCommandLine({"--version"})->query_text ==
        absl::StrCat("convene-train ", kVersion, "\n"));
}

TEST_CASE("a wrong command line says what is wrong with which flag") {
  CHECK_STATUS(ParseCommandLine({"--learnin-rate", "1"}), kInvalid,
               "unknown flag \"--learnin-rate\"; did you mean --learning-rate?");
  CHECK_STATUS(ParseCommandLine({"--confg=x"}), kInvalid, "did you mean --config?");
  CHECK_STATUS(ParseCommandLine({"--vocab-size", "300"}), kInvalid,
               "did you mean --vocabulary-size?");
  CHECK_STATUS(ParseCommandLine({"--batch-size=4"}), kInvalid,
               "did you mean --global-batch-size or --rampup-batch-size or --micro-batch-size?");
  CHECK_STATUS(ParseCommandLine({"--lr=1"}), kInvalid, "did you mean --learning-rate?");
  CHECK_STATUS(ParseCommandLine({"--no-deterministic"}), kInvalid, "write --deterministic false");
  CHECK_STATUS(ParseCommandLine({"--quantum-entanglement"}), kInvalid, "--help lists all");
  CHECK_STATUS(ParseCommandLine({"--compact-vocabulary"}), kInvalid,
               "flag of `convene data prepare`");
  CHECK_STATUS(ParseCommandLine({"--steps", "many"}), kInvalid,
               "--steps \"many\" must be a whole number");
  CHECK_STATUS(ParseCommandLine({"--steps="}), kInvalid, "--steps \"\" must be a whole number");
  CHECK_STATUS(ParseCommandLine({"--steps"}), kInvalid, "--steps needs a value");
  CHECK_STATUS(ParseCommandLine({"--steps", "--seed", "1"}), kInvalid,
               "--steps needs a value, but --seed follows");
  CHECK_STATUS(ParseCommandLine({"--config="}), kInvalid, "--config needs a file");
  CHECK_STATUS(ParseCommandLine({"--steps", "1", "a.txt"}), kInvalid,
               "unexpected argument \"a.txt\"");
}

TEST_CASE("help shows every flag with its default in lines that fit a terminal") {
  const std::string help = HelpText();
  for (const ConfigKey& key : ConfigKeys()) {
    std::string flag = "\n  --" + key.field->name();
    std::replace(flag.begin(), flag.end(), '_', '-');
    CHECK_THAT(help, Catch::Contains(flag));
  }
  CHECK_THAT(help, Catch::Contains("--steps INT"));
  CHECK_THAT(help, Catch::Contains("in all, also after a resume [100]\n"));
  size_t begin = 0;
  for (size_t end = help.find('\n'); end != std::string::npos; end = help.find('\n', begin)) {
    INFO(help.substr(begin, end - begin));
    CHECK(end - begin <= 120);
    begin = end + 1;
  }
  CHECK(begin == help.size());
}

}  // namespace
}  // namespace convene::worker
