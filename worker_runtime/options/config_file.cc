#include "worker_runtime/options/config_file.h"

#include <sys/stat.h>
#include <yaml-cpp/yaml.h>

#include <cerrno>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "tools/base/closest_flag.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/options/config_keys.h"

namespace convene::worker {
namespace {

// Far above any configuration, so that a data file given by mistake is not read into memory.
constexpr int64_t kConfigBytesMax = 1 << 20;

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// yaml-cpp counts lines from 0.
absl::Status ErrorAt(const std::string& path, const YAML::Mark& mark, absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(path, ":", mark.line + 1, ": ", text));
}

std::string UnknownKeyText(const std::string& name, const Descriptor* message) {
  const std::string text = absl::StrCat("unknown key \"", name, "\"");
  const ConfigKey* key = FindConfigKey(name);
  if (key != nullptr) {
    return absl::StrCat(text, " here; it belongs ",
                        key->parent == nullptr ? "at the top level"
                                               : absl::StrCat("under ", key->parent->name(), ":"));
  }
  std::vector<std::string> names;
  for (int i = 0; i < message->field_count(); ++i) names.push_back(message->field(i)->name());
  const std::string closest = ClosestFlag(name, names);
  if (!closest.empty()) return absl::StrCat(text, "; did you mean \"", closest, "\"?");
  return absl::StrCat(text, "; `convene-train --help` lists the keys");
}

// `place` is the position for an error when the node itself has none, because it is empty.
absl::Status SetScalar(const std::string& path, const YAML::Mark& place, const YAML::Node& node,
                       const FieldDescriptor* field, Message* message) {
  if (node.IsNull()) {
    return ErrorAt(path, place,
                   absl::StrCat(field->name(), " has no value; give one or remove the key"));
  }
  if (!node.IsScalar()) {
    return ErrorAt(
        path, node.Mark(),
        absl::StrCat(field->name(), " takes one value, not a ", node.IsMap() ? "map" : "list"));
  }
  const absl::Status status = SetFromText(message, field, node.Scalar());
  if (status.ok()) return status;
  return ErrorAt(path, node.Mark(),
                 absl::StrCat(field->name(), " \"", node.Scalar(), "\" ", status.message()));
}

absl::Status SetMessage(const std::string& path, const YAML::Node& map, Message* message);

// Every rank reads the file, so it must be regular: a FIFO can be read once, and blocks its reader.
absl::Status CheckIsSmallFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("--config: ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--config: ", path, " is ", S_ISDIR(info.st_mode) ? "a directory" : "not a regular file",
        "; give a YAML file (every rank reads it)"));
  }
  if (info.st_size <= kConfigBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--config: ", path, " has ", info.st_size, " bytes, more than the ",
                   kConfigBytesMax, " that a configuration may have; is it the right file?"));
}

absl::Status SetField(const std::string& path, const YAML::Mark& place, const YAML::Node& node,
                      const FieldDescriptor* field, Message* message) {
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    if (!node.IsMap()) {
      return ErrorAt(path, node.Mark(), absl::StrCat(field->name(), " must be a map of keys"));
    }
    return SetMessage(path, node, message->GetReflection()->MutableMessage(message, field));
  }
  if (!field->is_repeated() || !node.IsSequence())
    return SetScalar(path, place, node, field, message);
  for (const YAML::Node& item : node) {
    CONVENE_RETURN_IF_ERROR(SetScalar(path, node.Mark(), item, field, message));
  }
  return absl::OkStatus();
}

// yaml-cpp takes the end of the file for the end of a quote.
bool IsClosed(const std::string& yaml, int begin) {
  const char quote = yaml[begin];
  for (size_t i = begin + 1; i < yaml.size(); ++i) {
    const bool is_doubled = i + 1 < yaml.size() && yaml[i] == '\'' && yaml[i + 1] == '\'';
    if (quote == '"' ? yaml[i] == '\\' : is_doubled) {
      ++i;
    } else if (yaml[i] == quote) {
      return true;
    }
  }
  return false;
}

// An alias may name what it stands in, so depth has a bound: keys are no deeper.
absl::Status CheckQuotes(const std::string& path, const std::string& yaml, const YAML::Node& node,
                         int depth = 0) {
  constexpr int kDepthMax = 4;
  if (depth > kDepthMax) return absl::OkStatus();
  for (const auto& item : node) {
    CONVENE_RETURN_IF_ERROR(CheckQuotes(path, yaml, node.IsMap() ? item.second : item, depth + 1));
  }
  const int begin = node.Mark().pos;
  if (!node.IsScalar() || node.Tag() != "!" || begin < 0 ||
      begin >= static_cast<int>(yaml.size())) {
    return absl::OkStatus();
  }
  const bool is_quote = yaml[begin] == '"' || yaml[begin] == '\'';
  if (!is_quote || IsClosed(yaml, begin)) return absl::OkStatus();
  return ErrorAt(path, node.Mark(), "the quote that begins here has no end");
}

absl::Status SetMessage(const std::string& path, const YAML::Node& map, Message* message) {
  std::map<std::string, int> first_line;
  for (const auto& entry : map) {
    const YAML::Mark mark = entry.first.Mark();
    if (!entry.first.IsScalar()) return ErrorAt(path, mark, "a key must be one word");
    const std::string& name = entry.first.Scalar();
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(name);
    if (field == nullptr) {
      return ErrorAt(path, mark, UnknownKeyText(name, message->GetDescriptor()));
    }
    const auto [first, is_new] = first_line.emplace(name, mark.line + 1);
    if (!is_new) {
      return ErrorAt(path, mark, absl::StrCat(name, " is already set in line ", first->second));
    }
    CONVENE_RETURN_IF_ERROR(SetField(path, mark, entry.second, field, message));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TrainConfig> ParseConfig(const std::string& yaml, const std::string& path) {
  TrainConfig config;
  // yaml-cpp throws, both while it parses and while nodes are walked.
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(yaml);
    if (documents.size() > 1) {
      return ErrorAt(path, documents[1].Mark(), "a second document (after ---) is not read");
    }
    if (documents.empty() || documents[0].IsNull()) return config;
    if (!documents[0].IsMap()) {
      return ErrorAt(path, documents[0].Mark(), "must be a map of keys, such as `steps: 100`");
    }
    CONVENE_RETURN_IF_ERROR(CheckQuotes(path, yaml, documents[0]));
    CONVENE_RETURN_IF_ERROR(SetMessage(path, documents[0], &config));
    return config;
  } catch (const YAML::Exception& error) {
    return ErrorAt(path, error.mark,
                   absl::StrCat("this is not YAML: ", error.msg,
                                error.msg == YAML::ErrorMsg::UNKNOWN_ANCHOR
                                    ? " (a value that begins with * needs quotes)"
                                    : ""));
  }
}

absl::StatusOr<TrainConfig> ReadConfigFile(const std::string& path) {
  CONVENE_RETURN_IF_ERROR(CheckIsSmallFile(path));
  const absl::StatusOr<std::string> yaml = ReadFile(path);
  if (!yaml.ok()) return Annotate(yaml.status(), "--config");
  return ParseConfig(*yaml, path);
}

}  // namespace convene::worker
