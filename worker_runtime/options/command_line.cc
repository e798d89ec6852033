#include "worker_runtime/options/command_line.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "tools/base/closest_flag.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"
#include "tools/base/version.h"
#include "worker_runtime/options/config_keys.h"

namespace convene::worker {
namespace {

using google::protobuf::FieldDescriptor;

std::string FlagName(const std::string& key) {
  return absl::StrCat("--", absl::StrReplaceAll(key, {{"_", "-"}}));
}

// "--learning-rate": learning_rate.
std::string KeyName(const std::string& flag) {
  return absl::StrReplaceAll(flag.substr(2), {{"-", "_"}});
}

bool IsFlag(const std::string& argument) { return absl::StartsWith(argument, "--"); }

absl::Status UnknownFlag(const std::string& flag) {
  if (flag == "--compact-vocabulary" || flag == "--vocabulary-of") {
    return absl::InvalidArgumentError(absl::StrCat(
        flag,
        " is a flag of `convene data prepare`: make a token file with it, and give that file "
        "to --data"));
  }
  const std::string positive(absl::StripPrefix(KeyName(flag), "no_"));
  const ConfigKey* const switched = FindConfigKey(positive);
  if (switched != nullptr && positive != KeyName(flag) &&
      switched->field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown flag \"", flag, "\"; write ", FlagName(positive), " false"));
  }
  std::vector<std::string> names = {"--help", "--help-exit-codes", "--version", "--config"};
  for (const ConfigKey& key : ConfigKeys()) names.push_back(FlagName(key.field->name()));
  const std::string closest = ClosestFlag(flag, names);
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown flag \"", flag, "\"; ",
      closest.empty() ? "--help lists all" : absl::StrCat("did you mean ", closest, "?")));
}

// "" for an argument that asks for no text.
std::string QueryText(const std::string& argument) {
  if (argument == "--help" || argument == "-h") return HelpText();
  if (argument == "--help-exit-codes") return ExitCodeTable();
  if (argument == "--version") return absl::StrCat("convene-train ", kVersion, "\n");
  return "";
}

// One pass over the arguments.
class Parser {
 public:
  explicit Parser(const std::vector<std::string>& arguments) : arguments_(arguments) {}

  absl::StatusOr<CommandLine> Parse() {
    while (next_ < arguments_.size() && result_.query_text.empty()) {
      CONVENE_RETURN_IF_ERROR(ParseFlag(arguments_[next_++]));
    }
    return std::move(result_);
  }

 private:
  absl::Status ParseFlag(const std::string& argument) {
    result_.query_text = QueryText(argument);
    if (!result_.query_text.empty()) return absl::OkStatus();
    if (!IsFlag(argument)) {
      return absl::InvalidArgumentError(
          absl::StrCat("unexpected argument \"", argument,
                       "\"; values follow their flag, as in --steps 100 or --data a.txt b.txt"));
    }
    const size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    std::vector<std::string> values;
    const bool has_value = equals != std::string::npos;
    if (has_value) values.push_back(argument.substr(equals + 1));
    if (flag == "--config") return SetConfigPath(has_value, std::move(values));
    const ConfigKey* key = FindConfigKey(KeyName(flag));
    if (key == nullptr) return UnknownFlag(flag);
    if (!has_value) CONVENE_RETURN_IF_ERROR(TakeValues(flag, key->field, &values));
    for (const std::string& value : values) {
      const absl::Status status = SetFromText(MessageOf(*key, &result_.flags), key->field, value);
      if (!status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(flag, " \"", value, "\" ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status SetConfigPath(bool has_value, std::vector<std::string> values) {
    if (!has_value) CONVENE_RETURN_IF_ERROR(TakeOne("--config", &values));
    if (values[0].empty()) return absl::InvalidArgumentError("--config needs a file");
    std::string& path = result_.config_path;
    if (!path.empty() && path != values[0]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--config names two files, ", path, " and ", values[0],
          ": files are not merged. Give one file, and the keys that differ as flags, which win "
          "over the file's"));
    }
    path = values[0];
    return absl::OkStatus();
  }

  absl::Status TakeValues(const std::string& flag, const FieldDescriptor* field,
                          std::vector<std::string>* values) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_BOOL) {
      const bool is_said = HasValue() && BoolOf(arguments_[next_]).has_value();
      values->push_back(is_said ? arguments_[next_++] : "true");
      return absl::OkStatus();
    }
    CONVENE_RETURN_IF_ERROR(TakeOne(flag, values));
    while (field->is_repeated() && HasValue()) values->push_back(arguments_[next_++]);
    return absl::OkStatus();
  }

  absl::Status TakeOne(const std::string& flag, std::vector<std::string>* values) {
    if (!HasValue()) {
      return absl::InvalidArgumentError(absl::StrCat(
          flag, " needs a value",
          next_ < arguments_.size() ? absl::StrCat(", but ", arguments_[next_], " follows") : ""));
    }
    values->push_back(arguments_[next_++]);
    return absl::OkStatus();
  }

  bool HasValue() const { return next_ < arguments_.size() && !IsFlag(arguments_[next_]); }

  const std::vector<std::string>& arguments_;
  size_t next_ = 0;
  CommandLine result_;
};

const char* ValueName(const FieldDescriptor* field) {
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT64:
      return " INT";
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return " NUMBER";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "";
    default:
      return field->is_repeated() ? " TEXT..." : " TEXT";
  }
}

}  // namespace

absl::StatusOr<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments) {
  return Parser(arguments).Parse();
}

std::string HelpText() {
  std::string text =
      "usage: convene-train --data FILE... [--config train.yaml] [--KEY VALUE]...\n"
      "\n"
      "Trains a language model on text. Every key below can stand in the YAML file\n"
      "(learning_rate: 3e-4; those of the model's shape under model_shape:) and on the command "
      "line\n"
      "(--learning-rate 3e-4 or --learning_rate=3e-4). The command line wins. [Defaults in "
      "brackets.]\n"
      "This command is one worker. Several workers, on one machine or many, are started by\n"
      "`convene run`: convene run --standalone --nproc-per-node 2 convene-train --data FILE...\n";
  const std::string next_line = absl::StrCat("\n", std::string(38, ' '));
  for (const ConfigKey& key : ConfigKeys()) {
    const KeyDoc& doc = key.doc();
    if (!doc.heading().empty()) absl::StrAppend(&text, "\n", doc.heading(), "\n");
    absl::StrAppendFormat(&text, "  %-36s%s", FlagName(key.field->name()) + ValueName(key.field),
                          absl::StrReplaceAll(doc.help(), {{"\n", next_line}}));
    if (!doc.default_value().empty()) absl::StrAppend(&text, " [", doc.default_value(), "]");
    absl::StrAppend(&text, "\n");
  }
  absl::StrAppendFormat(&text, "\n  %-36s%s\n  %-36s%s\n  %-36s%s\n  %-36s%s\n", "--config FILE",
                        "YAML with the keys above", "--help", "this text", "--help-exit-codes",
                        "the meaning of each exit code", "--version", "the version");
  return text;
}

}  // namespace convene::worker
