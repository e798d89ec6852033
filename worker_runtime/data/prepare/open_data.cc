#include "worker_runtime/data/prepare/open_data.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/prepare/sources.h"
#include "worker_runtime/data/prepare/token_cache.h"
#include "worker_runtime/data/store/foreign_formats.h"

namespace convene::worker {
namespace {

// One of the token files that a pattern names: all its files must be such.
struct Group {
  std::vector<std::string> patterns;
  std::optional<double> weight;
  bool is_tokens = false;
  std::string token_path;
};

bool IsTokens(const std::string& path) { return TokenFormatOf(path).has_value(); }

// One name for all names of a token file: Megatron's .bin and .idx are one, and so are "a" and
// "./a".
std::string CanonicalTokenPath(const std::string& path) {
  const bool is_megatron = TokenFormatOf(path) == TokenFormat::kMegatron;
  const std::string tokens = is_megatron ? MegatronPathsOf(path).tokens : path;
  std::error_code error;
  const std::filesystem::path canonical = std::filesystem::canonical(tokens, error);
  return error ? tokens : canonical.string();
}

// The token files among `files` that `seen` does not have yet.
std::vector<std::string> NewTokenFiles(const std::vector<std::string>& files,
                                       std::set<std::string>* seen) {
  std::vector<std::string> tokens;
  for (const std::string& path : files) {
    if (!IsTokens(path)) continue;
    if (seen->insert(CanonicalTokenPath(path)).second) tokens.push_back(path);
  }
  return tokens;
}

// Token files each by itself; neighbouring texts together, where no weights part them.
absl::StatusOr<std::vector<Group>> GroupsOf(const std::vector<WeightedPath>& paths) {
  std::vector<Group> groups;
  std::optional<size_t> texts;
  std::set<std::string> seen_tokens;
  for (const WeightedPath& spec : paths) {
    // Megatron's common prefix of .bin and .idx is no file's name.
    std::vector<std::string> files = {spec.path};
    if (!IsTokens(spec.path)) {
      CONVENE_ASSIGN_OR_RETURN(files, ExpandPattern(spec.path));
    }
    const auto other = std::find_if_not(files.begin(), files.end(), IsTokens);
    const std::vector<std::string> tokens = NewTokenFiles(files, &seen_tokens);
    const bool has_tokens = std::any_of(files.begin(), files.end(), IsTokens);
    if (has_tokens && other != files.end()) {
      return absl::InvalidArgumentError(absl::StrCat("data: '", spec.path,
                                                     "' stands for token files and for others (",
                                                     *other, "); name them apart"));
    }
    if (has_tokens && spec.weight.has_value() && tokens.size() != 1) {
      return absl::InvalidArgumentError(
          tokens.empty() ? absl::StrCat("data: the token file '", spec.path,
                                        "' is given twice; give it once, with one weight")
                         : absl::StrCat("data: '", spec.path, "' stands for ", tokens.size(),
                                        " token files; give each its own weight"));
    }
    if (has_tokens) {
      for (const std::string& path : tokens) {
        groups.push_back({{spec.path}, spec.weight, true, path});
      }
      continue;
    }
    if (texts.has_value() && !spec.weight.has_value()) {
      groups[*texts].patterns.push_back(spec.path);
    } else {
      texts = groups.size();
      groups.push_back({{spec.path}, spec.weight, false, ""});
    }
  }
  return groups;
}

// The tokens, and for a file of the cache the use of it, which ends with them.
struct Held {
  std::optional<TokenFileUse> use;
  std::unique_ptr<TokenSource> tokens;
};

absl::StatusOr<Held> Open(const Group& group, PrepareOptions options, const TokenCache& cache,
                          const PrepareProgress& progress) {
  Held held;
  if (group.is_tokens) {
    CONVENE_ASSIGN_OR_RETURN(held.tokens, OpenTokenSource(group.token_path));
    return held;
  }
  if (options.tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data: ", group.patterns[0], " is no token file, and no tokenizer is given to make one"));
  }
  options.input.patterns = group.patterns;
  CONVENE_ASSIGN_OR_RETURN(PreparedTokens prepared, PrepareTokenFile(options, cache, progress));
  held.use = std::move(prepared.use);
  CONVENE_ASSIGN_OR_RETURN(held.tokens, OpenTokenSource(prepared.path));
  return held;
}

}  // namespace

absl::StatusOr<std::vector<WeightedPath>> ParseDataPaths(const std::vector<std::string>& texts) {
  std::vector<WeightedPath> paths;
  for (const std::string& text : texts) {
    std::vector<WeightedPath> parsed = {{text, std::nullopt}};
    if (access(text.c_str(), F_OK) != 0) {
      CONVENE_ASSIGN_OR_RETURN(parsed, ParseBlend(text));
    }
    paths.insert(paths.end(), parsed.begin(), parsed.end());
  }
  if (paths.empty()) return absl::InvalidArgumentError("data: no file and no pattern is given");
  const auto weighted = std::count_if(
      paths.begin(), paths.end(), [](const WeightedPath& path) { return path.weight.has_value(); });
  if (weighted > 0 && weighted < static_cast<std::ptrdiff_t>(paths.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", weighted, " of ", paths.size(),
                     " sources have a share: give all of them one (a.bin:0.7,b.bin:0.3), or none"));
  }
  return paths;
}

absl::StatusOr<std::vector<OpenedData>> OpenData(const std::vector<WeightedPath>& paths,
                                                 const PrepareOptions& options,
                                                 const TokenCache& cache,
                                                 const PrepareProgress& progress) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<Group> groups, GroupsOf(paths));
  std::vector<OpenedData> opened;
  std::vector<const TokenSource*> sources;
  for (const Group& group : groups) {
    CONVENE_ASSIGN_OR_RETURN(Held opening, Open(group, options, cache, progress));
    const auto held = std::make_shared<Held>(std::move(opening));
    sources.push_back(held->tokens.get());
    opened.push_back({group.patterns, group.weight,
                      std::shared_ptr<const TokenSource>(held, held->tokens.get())});
  }
  CONVENE_RETURN_IF_ERROR(CheckSameVocabulary(sources));
  return opened;
}

}  // namespace convene::worker
