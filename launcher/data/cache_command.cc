#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "launcher/data/data_command.h"
#include "tools/base/clock.h"
#include "tools/base/exit_code.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/data/prepare/token_cache.h"

namespace convene::launcher {
namespace {

std::string Bytes(int64_t bytes) { return HumanBytes(static_cast<double>(bytes)); }

std::string StateOf(const worker::CachedTokens& tokens) {
  if (tokens.is_in_use) return tokens.is_whole ? "in use" : "being made";
  return tokens.is_whole ? "" : "half made";
}

void Print(const std::vector<worker::CachedTokens>& cache,
           const std::map<std::string, std::string>& surplus) {
  int64_t bytes = 0;
  std::printf("%-27s %10s  %-16s  %-10s  MADE FROM\n", "FILE", "SIZE", "LAST USED", "STATE");
  for (const worker::CachedTokens& tokens : cache) {
    bytes += tokens.bytes;
    const std::string name = tokens.path.substr(tokens.path.rfind('/') + 1);
    const std::string used = absl::FormatTime("%Y-%m-%d %H:%M", tokens.used, absl::LocalTimeZone());
    std::printf("%-27s %10s  %-16s  %-10s  %s\n", name.c_str(), Bytes(tokens.bytes).c_str(),
                used.c_str(), StateOf(tokens).c_str(),
                tokens.source.empty() ? "not known" : tokens.source.c_str());
    const auto why = surplus.find(tokens.path);
    if (why != surplus.end()) std::printf("  surplus: %s\n", why->second.c_str());
  }
  std::printf("in all %zu, %s; surplus %zu%s\n", cache.size(), Bytes(bytes).c_str(), surplus.size(),
              surplus.empty() ? "" : " (--prune removes them)");
}

}  // namespace

absl::StatusOr<int> CacheCommand(const CacheFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const auto cache, worker::ListTokenCache(flags.directory));
  CONVENE_ASSIGN_OR_RETURN(const auto surplus,
                           worker::TokenCacheSurplus(flags.directory, flags.bounds));
  if (!flags.prune) {
    std::printf("%s\n", flags.directory.c_str());
    std::map<std::string, std::string> why;
    for (const worker::SurplusTokens& one : surplus) why[one.tokens.path] = one.why;
    Print(cache, why);
    return static_cast<int>(ExitCode::kOk);
  }
  int64_t bytes = 0;
  size_t removed = 0;
  for (const auto& [tokens, why] : surplus) {
    if (!worker::RemoveCachedTokens(tokens.path)) {
      std::printf("%s stays: it is in use by now, or another user's\n", tokens.path.c_str());
      continue;
    }
    std::printf("removed %s (%s): %s\n", tokens.path.c_str(), Bytes(tokens.bytes).c_str(),
                why.c_str());
    bytes += tokens.bytes;
    ++removed;
  }
  std::printf("removed %zu of %zu, %s\n", removed, cache.size(), Bytes(bytes).c_str());
  return static_cast<int>(ExitCode::kOk);
}

}  // namespace convene::launcher
