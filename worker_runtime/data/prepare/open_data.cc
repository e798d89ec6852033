#include "worker_runtime/data/prepare/open_data.h"

#include <unistd.h>

#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/prepare/sources.h"

namespace convene::worker {
namespace {

bool IsThere(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// At the commas that stand in no braces.
std::vector<std::string> SplitSpecs(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    if (c == '{') ++depth;
    if (c == '}' && depth > 0) --depth;
    if (c == ',' && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

absl::StatusOr<DataSpec> ParseSpec(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || IsThere(text)) return DataSpec{.pattern = text};
  DataSpec spec = {.pattern = text.substr(0, colon)};
  const std::string number = text.substr(colon + 1);
  double weight = 0;
  // A name may have a colon; what no number follows is a name.
  if (!absl::SimpleAtod(number, &weight) && !number.empty()) return DataSpec{.pattern = text};
  if (!std::isfinite(weight) || weight <= 0 || spec.pattern.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data: '", text, "': write a weight above 0 behind a path, as in a.bin:0.7,b.bin:0.3"));
  }
  spec.weight = weight;
  return spec;
}

// One of the token files that a pattern names: all its files must be such.
struct Group {
  std::vector<std::string> patterns;
  std::optional<double> weight;
  bool is_tokens = false;
  std::string token_path;
};

// Token files each by itself; neighbouring texts together, where no weights part them.
absl::StatusOr<std::vector<Group>> GroupsOf(const std::vector<DataSpec>& specs) {
  std::vector<Group> groups;
  std::optional<size_t> texts;
  for (const DataSpec& spec : specs) {
    // Megatron's common prefix of .bin and .idx is no file's name.
    std::vector<std::string> paths = {spec.pattern};
    if (!TokenFormatOf(spec.pattern).has_value()) {
      CONVENE_ASSIGN_OR_RETURN(paths, ExpandPattern(spec.pattern));
    }
    std::vector<std::string> tokens;
    for (const std::string& path : paths) {
      if (TokenFormatOf(path).has_value()) tokens.push_back(path);
    }
    if (!tokens.empty() && tokens.size() < paths.size()) {
      return absl::InvalidArgumentError(absl::StrCat("data: '", spec.pattern,
                                                     "' stands for token files (", tokens[0],
                                                     ") and for other files; name them apart"));
    }
    if (!tokens.empty() && tokens.size() > 1 && spec.weight.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("data: '", spec.pattern, "' stands for ",
                                                     tokens.size(),
                                                     " token files; give each its own weight"));
    }
    if (!tokens.empty()) {
      for (const std::string& path : tokens) {
        groups.push_back({{spec.pattern}, spec.weight, true, path});
      }
    } else if (texts.has_value() && !spec.weight.has_value()) {
      groups[*texts].patterns.push_back(spec.pattern);
    } else {
      texts = groups.size();
      groups.push_back({{spec.pattern}, spec.weight, false, ""});
    }
  }
  return groups;
}

absl::StatusOr<std::string> PathOf(const Group& group, PrepareOptions options,
                                   const TokenCache& cache, const PrepareProgress& progress) {
  if (group.is_tokens) return group.token_path;
  if (options.tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data: ", group.patterns[0], " is no token file, and no tokenizer is given to make one"));
  }
  options.input.patterns = group.patterns;
  return PrepareTokenFile(options, cache, progress);
}

absl::Status CheckSameTokenizer(const std::vector<OpenedData>& opened) {
  const TokenSource* first = nullptr;
  for (const OpenedData& data : opened) {
    const TokenizerIdentity& identity = data.tokens->tokenizer();
    if (identity.fingerprint == 0) continue;
    if (first == nullptr) first = data.tokens.get();
    if (identity.fingerprint == first->tokenizer().fingerprint) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "data: ", first->path(), " was made by the tokenizer ", first->tokenizer().path, " (",
        first->tokenizer().kind, ", fingerprint ", absl::Hex(first->tokenizer().fingerprint),
        ") and ", data.tokens->path(), " by ", identity.path, " (", identity.kind, ", fingerprint ",
        absl::Hex(identity.fingerprint),
        "): their ids mean different texts. Prepare both with one tokenizer"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<DataSpec>> ParseDataSpecs(const std::vector<std::string>& texts) {
  std::vector<DataSpec> specs;
  size_t weighted = 0;
  for (const std::string& text : texts) {
    const std::vector<std::string> parts =
        IsThere(text) ? std::vector<std::string>{text} : SplitSpecs(text);
    for (const std::string& part : parts) {
      const std::string stripped(absl::StripAsciiWhitespace(part));
      if (stripped.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("data: '", text, "' has an empty part between commas"));
      }
      CONVENE_ASSIGN_OR_RETURN(DataSpec spec, ParseSpec(stripped));
      if (spec.weight.has_value()) ++weighted;
      specs.push_back(std::move(spec));
    }
  }
  if (specs.empty()) {
    return absl::InvalidArgumentError("data: no file and no pattern is given");
  }
  if (weighted > 0 && weighted < specs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("data: ", weighted, " of ", specs.size(),
                                                   " paths have a weight; give all one, or none"));
  }
  return specs;
}

absl::StatusOr<std::vector<OpenedData>> OpenData(const std::vector<DataSpec>& specs,
                                                 const PrepareOptions& options,
                                                 const TokenCache& cache,
                                                 const PrepareProgress& progress) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<Group> groups, GroupsOf(specs));
  std::vector<OpenedData> opened;
  for (const Group& group : groups) {
    CONVENE_ASSIGN_OR_RETURN(const std::string path, PathOf(group, options, cache, progress));
    CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<TokenSource> tokens, OpenTokenSource(path));
    opened.push_back({group.patterns, group.weight, std::move(tokens)});
  }
  CONVENE_RETURN_IF_ERROR(CheckSameTokenizer(opened));
  return opened;
}

}  // namespace convene::worker
