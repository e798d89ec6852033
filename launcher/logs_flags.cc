#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/options.h"
#include "launcher/flags.h"

namespace convene::launcher {
namespace {

constexpr int kDefaultTail = 100;

absl::Status TooMany(int most = rendezvous::kMostFilterEntries) {
  return absl::InvalidArgumentError(
      absl::StrCat("these are more than ", most, "; leave the flag out for all"));
}

// "0,3" or "0-7".
absl::Status ReadRanks(const std::string& text, int most, std::set<int>* ranks) {
  ranks->clear();
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.first, &first) ||
        !absl::SimpleAtoi(ends.second.empty() ? ends.first : ends.second, &last) || first < 0 ||
        last < first) {
      return absl::InvalidArgumentError("write ranks as in 0,3 or 0-7");
    }
    if (last - first >= most) return TooMany(most);
    for (int i = 0; i <= last - first; ++i) ranks->insert(first + i);
  }
  return static_cast<int>(ranks->size()) > most ? TooMany(most) : absl::OkStatus();
}

absl::Status ReadHosts(const std::string& text, std::vector<std::string>* hosts) {
  *hosts = absl::StrSplit(text, ',', absl::SkipEmpty());
  return hosts->size() > rendezvous::kMostFilterEntries ? TooMany() : absl::OkStatus();
}

absl::Status ReadTail(const std::string& text, int* tail) {
  if (text == "all") {
    *tail = -1;
  } else if (!absl::SimpleAtoi(text, tail) || *tail < 0) {
    return absl::InvalidArgumentError("write a number of lines, or all");
  }
  return absl::OkStatus();
}

absl::Status Finish(LogsFlags* flags) {
  rendezvous::LogRequest& request = flags->request;
  if (request.job_id.empty()) {
    return absl::InvalidArgumentError(
        "name a run: `convene logs RUN`; `convene status` shows the runs");
  }
  request.filter.without_stdout = flags->stderr_only && !flags->stdout_only;
  request.filter.without_stderr = flags->stdout_only && !flags->stderr_only;
  if (flags->prefix_template.empty()) {
    flags->prefix_template =
        absl::StrCat(flags->timestamps ? "${time} " : "", agent::LogOptions().prefix_template);
  }
  return absl::OkStatus();
}

}  // namespace

void AddRanksFlag(FlagReader* reader, const std::string& name, int most, std::set<int>* ranks,
                  const std::string& help) {
  reader->Custom(name,
                 [most, ranks](const std::string& text) { return ReadRanks(text, most, ranks); },
                 help, {.value = "RANKS"});
}

void AddFlags(FlagReader* reader, LogsFlags* flags) {
  rendezvous::LogRequest& request = flags->request;
  request.tail = kDefaultTail;
  reader->Word("RUN", &request.job_id);
  AddPlaceFlags(reader, &flags->endpoint, &flags->credentials, &request.job_id);
  reader->Switch("follow", &request.follow,
                 "go on until the run is over, across restarts and with nodes that join",
                 {.letter = 'f'});
  reader->Custom(
      "tail", [&request](const std::string& text) { return ReadTail(text, &request.tail); },
      absl::StrCat(
          "begin with so many of each node's kept lines (the last MiB), or with all (default ",
          kDefaultTail, ")"),
      {.value = "N"});
  constexpr int kMost = rendezvous::kMostFilterEntries;
  AddRanksFlag(reader, "rank", kMost, &request.filter.ranks, "only these global ranks: 0,3 or 0-7");
  AddRanksFlag(reader, "local-rank", kMost, &request.filter.local_ranks, "only these local ranks");
  reader->Custom("node",
                 [&request](const std::string& text) { return ReadHosts(text, &request.hosts); },
                 "only these nodes: names as `convene status` shows them", {.value = "NODES"});
  reader->Switch("stdout", &flags->stdout_only, "only lines of stdout");
  reader->Switch("stderr", &flags->stderr_only, "only lines of stderr");
  reader->Switch("timestamps", &flags->timestamps,
                 "the time before each line, by the clock of its node");
  reader->Option("log-line-prefix-template", &flags->prefix_template,
                 "the prefix of each line, as in `convene run`: ${role_name} ${local_rank} "
                 "${rank} ${hostname} ${time} (default \"[${rank}] \")",
                 {.value = "TEMPLATE"});
  reader->Switch("json", &flags->json, "each line as a JSON object");
  reader->Check([flags] { return Finish(flags); });
}

}  // namespace convene::launcher
