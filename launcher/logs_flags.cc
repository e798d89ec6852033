#include "launcher/logs_flags.h"

#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/options.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

absl::Status TooMany(const std::string& flag) {
  return absl::InvalidArgumentError(absl::StrCat(
      flag, " names more than ", rendezvous::kMostFilterEntries, " of them; leave it out for all"));
}

// "0,3" or "0-7".
absl::Status ReadRanks(const std::string& flag, const std::string& text, std::set<int>* ranks) {
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.first, &first) ||
        !absl::SimpleAtoi(ends.second.empty() ? ends.first : ends.second, &last) || first < 0 ||
        last < first) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " \"", text, "\": write ranks as in 0,3 or 0-7"));
    }
    if (last - first >= rendezvous::kMostFilterEntries) return TooMany(flag);
    for (int rank = first; rank <= last; ++rank) ranks->insert(rank);
  }
  return ranks->size() > rendezvous::kMostFilterEntries ? TooMany(flag) : absl::OkStatus();
}

}  // namespace

void LogsFlagReader::AddTo(FlagReader* reader) {
  reader->Switch("follow", &flags_.request.follow,
                 "go on until the run is over, across restarts and with nodes that join",
                 {.letter = 'f'});
  reader->Option("tail", &tail_,
                 "begin with so many of the lines that each node keeps (the last MiB); all: with "
                 "all of them (default 100)",
                 {.value = "N"});
  reader->Option("rank", &ranks_, "only these global ranks: 0,3 or 0-7", {.value = "RANKS"});
  reader->Option("local-rank", &local_ranks_, "only these local ranks", {.value = "RANKS"});
  reader->Option("node", &nodes_, "only these nodes: names as `convene status` shows them",
                 {.value = "NODES"});
  reader->Switch("stdout", &stdout_only_, "only what is written to stdout");
  reader->Switch("stderr", &stderr_only_, "only what is written to stderr");
  reader->Switch("timestamps", &timestamps_, "the time before each line, by the clock of its node");
  reader->Option("log-line-prefix-template", &prefix_template_,
                 "what stands before each line, as of `convene run`: ${role_name} ${local_rank} "
                 "${rank} ${hostname} ${time} (default \"[${rank}] \")",
                 {.value = "TEMPLATE"});
  reader->Switch("json", &flags_.json, "each line as a JSON object");
}

absl::StatusOr<LogsFlags> LogsFlagReader::Finish() {
  rendezvous::LogRequest& request = flags_.request;
  if (request.job_id.empty()) {
    return absl::InvalidArgumentError(
        "which run? `convene logs RUN`; `convene status` shows those there are");
  }
  if (tail_ == "all") {
    request.tail = -1;
  } else if (!absl::SimpleAtoi(tail_, &request.tail) || request.tail < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tail \"", tail_, "\": write a number of lines, or all"));
  }
  CONVENE_RETURN_IF_ERROR(ReadRanks("--rank", ranks_, &request.filter.ranks));
  CONVENE_RETURN_IF_ERROR(ReadRanks("--local-rank", local_ranks_, &request.filter.local_ranks));
  request.hosts = absl::StrSplit(nodes_, ',', absl::SkipEmpty());
  if (request.hosts.size() > rendezvous::kMostFilterEntries) return TooMany("--node");
  request.filter.without_stdout = stderr_only_ && !stdout_only_;
  request.filter.without_stderr = stdout_only_ && !stderr_only_;
  const std::string plain = agent::LogOptions().prefix_template;
  flags_.prefix_template = !prefix_template_.empty() ? prefix_template_
                           : timestamps_             ? "${time} " + plain
                                                     : plain;
  return std::move(flags_);
}

}  // namespace convene::launcher
