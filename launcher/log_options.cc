#include "launcher/log_options.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

constexpr char kTorchrunPrefix[] = "[${role_name}${local_rank}]:";
// A smaller size is a slip, such as 100 for 100M: a file would hold a few lines only.
constexpr int64_t kLogBytesMin = 4096;

bool ParseStreamsNumber(absl::string_view text, agent::Streams* streams) {
  int number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < 0 || number > 3) return false;
  *streams = static_cast<agent::Streams>(number);
  return true;
}

// "3", or "0:1,1:2".
absl::StatusOr<agent::StreamsByRank> ParseStreams(const std::string& flag,
                                                  const std::string& text) {
  agent::StreamsByRank streams;
  if (ParseStreamsNumber(text, &streams.others)) return streams;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(item, absl::MaxSplits(':', 1));
    int local_rank = 0;
    agent::Streams of_rank;
    if (!absl::SimpleAtoi(pair.first, &local_rank) || local_rank < 0 ||
        !ParseStreamsNumber(pair.second, &of_rank)) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " ", text,
                       ": write 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or one of them for "
                       "each local rank, such as 0:1,1:2"));
    }
    streams.by_local_rank[local_rank] = of_rank;
  }
  return streams;
}

// Words between commas, ",," in a word being one comma.
std::vector<std::string> ParseFilters(const std::string& text) {
  constexpr char kComma[] = "\x01";  // stands for ",," while the rest is split
  const std::string marked = absl::StrReplaceAll(text, {{",,", kComma}});
  std::vector<std::string> words;
  for (const absl::string_view word : absl::StrSplit(marked, ',', absl::SkipEmpty())) {
    words.push_back(absl::StrReplaceAll(word, {{kComma, ","}}));
  }
  return words;
}

}  // namespace

absl::StatusOr<agent::LogOptions> MakeLogOptions(const RunFlags& flags) {
  agent::LogOptions log = flags.options.log;
  CONVENE_ASSIGN_OR_RETURN(log.redirects,
                           ParseStreams("--redirects", flags.redirects.value_or("0")));
  CONVENE_ASSIGN_OR_RETURN(log.tee, ParseStreams("--tee", flags.tee.value_or("0")));
  log.stdout_filters = ParseFilters(flags.duplicate_stdout_filters);
  log.stderr_filters = ParseFilters(flags.duplicate_stderr_filters);
  const bool wants_files =
      !log.directory.empty() || !log.stdout_filters.empty() || !log.stderr_filters.empty();
  if (!flags.as_torchrun && wants_files && !flags.redirects.has_value() && !flags.tee.has_value()) {
    log.tee.others = agent::Streams::kBoth;
  }
  if (flags.as_torchrun) {
    log.prefix_template = kTorchrunPrefix;
    log.prefix_all = false;
  }
  if (!flags.log_line_prefix_template.empty()) {
    log.prefix_template = flags.log_line_prefix_template;
  }
  int64_t& most = log.max_file_bytes;
  if (!flags.log_max_bytes.empty() &&
      (!ParseSize(flags.log_max_bytes, &most).ok() || (most > 0 && most < kLogBytesMin))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-max-bytes ", flags.log_max_bytes,
                     ": write a size of at least 4K, such as 100M or 2G, or 0 for no limit"));
  }
  return log;
}

}  // namespace convene::launcher
