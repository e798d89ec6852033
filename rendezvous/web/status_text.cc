#include "rendezvous/web/status_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "rendezvous/web/curves.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kMostNodeChanges = 20;
constexpr size_t kMostStragglers = 5;

struct Column {
  const char* name;
  bool is_number;
};
// The last but one is of the node's rank whose own work takes longest: its work and its wait, in a
// step. A table in which no rank tells them has no such column.
constexpr Column kColumns[] = {{"group", true},  {"ranks", true},        {"host", false},
                               {"state", false}, {"step", true},         {"steps/s", true},
                               {"heard", true},  {"compute+wait", true}, {"why", false}};
constexpr size_t kTimesColumn = 7;
using Row = std::vector<std::string>;

// "0.4s", "12s", "3m5s".
std::string Age(absl::Duration age) {
  const absl::Duration unit = age < absl::Seconds(10) ? absl::Milliseconds(100) : absl::Seconds(1);
  const absl::Duration whole = absl::Trunc(age, unit);
  return whole == absl::ZeroDuration() ? "0s" : absl::FormatDuration(whole);
}

std::string State(const NodeView& node) {
  if (!node.tells_progress() || node.progress->phase.empty()) return node.state;
  return absl::StrCat(node.state, " (", node.progress->phase, ")");
}

// `first_rank`: RANK of the node's first worker, -1 when it has none.
Row RowOf(const NodeView& node, int first_rank) {
  Row row(std::size(kColumns), "-");
  if (node.group_rank >= 0) row[0] = absl::StrCat(node.group_rank);
  if (first_rank >= 0) {
    const int last = first_rank + node.local_world_size - 1;
    row[1] = last == first_rank ? absl::StrCat(last) : absl::StrCat(first_rank, "-", last);
  }
  row[2] = node.host;
  row[3] = State(node);
  if (node.tells_progress()) {
    row[4] = absl::StrCat(node.progress->step);
    if (node.progress->steps_per_second > 0) {
      row[5] = absl::StrFormat("%.3g", node.progress->steps_per_second);
    }
  }
  row[6] = Age(node.heard_ago);
  const auto slowest = std::max_element(
      node.ranks.begin(), node.ranks.end(),
      [](const RankProgress& a, const RankProgress& b) { return a.compute_ms < b.compute_ms; });
  if (slowest != node.ranks.end() && slowest->compute_ms > 0) {
    row[kTimesColumn] = absl::StrFormat("%.3g+%.3gms", slowest->compute_ms, slowest->wait_ms);
  }
  row[8] = node.why;
  return row;
}

void AppendTable(const std::vector<Row>& rows, std::string* text) {
  std::vector<size_t> widths(std::size(kColumns));
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  const bool has_times = std::any_of(rows.begin() + 1, rows.end(),
                                     [](const Row& row) { return row[kTimesColumn] != "-"; });
  for (const Row& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      if (i == kTimesColumn && !has_times) continue;
      const std::string padding(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, " ", kColumns[i].is_number ? padding : "", row[i],
                      kColumns[i].is_number ? "" : padding, " ");
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(text, line, "\n");
  }
}

// "1 ready, 2 spare": the nodes without a rank in the epoch; "" for none.
std::string Waiting(const JobView& job) {
  std::map<std::string, int> counts;
  for (const NodeView& node : job.nodes) {
    if (node.group_rank < 0) ++counts[node.state];
  }
  return absl::StrJoin(counts, ", ", [](std::string* out, const auto& entry) {
    absl::StrAppend(out, entry.second, " ", entry.first);
  });
}

// "restarts 1 of 3": the failures that count for the budget, each of which cost a restart. After
// the last failure of a job there was none; and with --restart-window more may have failed than
// counts.
std::string Restarts(const JobView& job) {
  const int counted = job.restart_count - job.failures_outside_window;
  if (job.phase == "failed" || counted > job.max_restarts) {
    return absl::StrCat("failures ", job.restart_count, ", --max-restarts ", job.max_restarts);
  }
  return absl::StrCat(
      "restarts ", counted, " of ", job.max_restarts,
      counted == job.restart_count ? "" : absl::StrCat(" (", job.restart_count, " in all)"));
}

std::string JobLine(const JobView& job) {
  const std::string waiting = Waiting(job);
  return absl::StrCat("job ", job.job_id, ": ", job.phase, ", epoch ", job.epoch.value(), ", ",
                      job.nodes.size(), job.nodes.size() == 1 ? " node" : " nodes", " (--nnodes ",
                      job.nodes_min, ":", job.nodes_max, ")",
                      waiting.empty() ? "" : absl::StrCat(", not in the epoch: ", waiting), ", ",
                      Restarts(job));
}

// "step 1200, 3.25 steps/s, loss 2.31, 41200 tokens/s, MFU 41.3 %"; "" when nothing is told.
std::string TrainingLine(const JobView& job) {
  const TrainingSample sample = SampleOf(job);
  std::vector<std::string> parts;
  if (sample.step.has_value()) parts.push_back(absl::StrCat("step ", *sample.step));
  const auto add = [&](const char* before, int digits, const char* behind,
                       const std::optional<double>& value) {
    if (!value.has_value()) return;
    // A number that is none may have a sign, which tells nothing.
    parts.push_back(std::isnan(*value)
                        ? absl::StrCat(before, "NaN", behind)
                        : absl::StrFormat("%s%.*g%s", before, digits, *value, behind));
  };
  add("", 3, " steps/s", sample.steps_per_second);
  add("loss ", 5, "", sample.loss);
  add("", 6, " tokens/s", sample.tokens_per_second);
  if (sample.mfu.has_value()) parts.push_back(absl::StrFormat("MFU %.1f %%", 100 * *sample.mfu));
  return absl::StrJoin(parts, ", ");
}

// "rank 3 on node1"; the link of a whole job is on no host.
std::string StragglerName(const StragglerView& straggler) {
  return absl::StrCat(straggler.kind,
                      straggler.kind == "rank" ? absl::StrCat(" ", straggler.rank) : "",
                      straggler.host.empty() ? "" : " on ", straggler.host);
}

std::string StragglerLine(const StragglerView& straggler) {
  return absl::StrCat(StragglerName(straggler), ": ", straggler.why);
}

void AppendNews(const JobView& job, std::string* text) {
  if (!job.stragglers.empty()) absl::StrAppend(text, "  these hold the others up:\n");
  const size_t shown = std::min(job.stragglers.size(), kMostStragglers);
  for (size_t i = 0; i < shown; ++i) {
    const StragglerView& straggler = job.stragglers[i];
    absl::StrAppend(text, "    ", StragglerLine(straggler), ", for ", Age(straggler.since), "\n");
  }
  if (shown < job.stragglers.size()) {
    absl::StrAppend(text, "    and ", job.stragglers.size() - shown, " more\n");
  }
  if (!job.last_failures.empty()) absl::StrAppend(text, "  last failures:\n");
  for (const FailureView& failure : job.last_failures) {
    absl::StrAppend(text, "    epoch ", failure.epoch.value(), ", ", Age(failure.ago),
                    " ago: ", failure.what, "\n");
  }
  if (!job.events.empty()) absl::StrAppend(text, "  last event: ", job.events.back().text, "\n");
}

void AppendJob(const JobView& job, size_t most_nodes, std::string* text) {
  absl::StrAppend(text, JobLine(job), "\n  ", job.why, "\n");
  const std::string training = TrainingLine(job);
  if (!training.empty()) absl::StrAppend(text, "  ", training, "\n");
  const size_t shown = std::min(job.nodes.size(), most_nodes);
  if (shown > 0) {
    Row header;
    for (const Column& column : kColumns) header.push_back(column.name);
    std::vector<Row> rows = {std::move(header)};
    int next_rank = 0;
    for (size_t i = 0; i < shown; ++i) {
      const NodeView& node = job.nodes[i];
      // Ranks are given in the order of the nodes, so after a gap they are not known.
      const bool has_ranks = node.group_rank == static_cast<int>(i);
      rows.push_back(RowOf(node, has_ranks ? next_rank : -1));
      next_rank += node.local_world_size;
    }
    AppendTable(rows, text);
  }
  if (shown < job.nodes.size()) {
    absl::StrAppend(text, "  and ", job.nodes.size() - shown, " more nodes\n");
  }
  AppendNews(job, text);
}

std::string NodeLine(const NodeView& node) {
  return absl::StrCat(node.host, ": ", node.state,
                      node.group_rank < 0 ? "" : absl::StrCat(", group rank ", node.group_rank),
                      node.why.empty() ? "" : absl::StrCat(" (", node.why, ")"));
}

// The stragglers that are new, and those that are none any more.
std::vector<std::string> StragglerChanges(const JobView& before, const JobView& after) {
  const auto name = [](const StragglerView& straggler) {
    return absl::StrCat(straggler.kind, " ", straggler.rank, " ", straggler.host);
  };
  std::map<std::string, const StragglerView*> old;
  for (const StragglerView& straggler : before.stragglers) old[name(straggler)] = &straggler;
  std::vector<std::string> lines;
  for (const StragglerView& straggler : after.stragglers) {
    if (old.erase(name(straggler)) > 0) continue;
    lines.push_back(absl::StrCat("holds the others up: ", StragglerLine(straggler)));
  }
  for (const auto& [key, straggler] : old) {
    lines.push_back(absl::StrCat("holds nobody up any more: ", StragglerName(*straggler)));
  }
  return lines;
}

// "epoch 1 failed: rank 3 on node1: killed by SIGKILL" for each failure that `before` has not.
std::vector<std::string> FailureChanges(const JobView& before, const JobView& after) {
  std::vector<std::string> lines;
  for (const FailureView& failure : after.last_failures) {
    const bool is_known = std::any_of(
        before.last_failures.begin(), before.last_failures.end(), [&](const FailureView& old) {
          return old.epoch == failure.epoch && old.what == failure.what;
        });
    if (is_known) continue;
    lines.push_back(absl::StrCat("epoch ", failure.epoch.value(), " failed: ", failure.what));
  }
  return lines;
}

// The lines of the nodes that changed.
std::vector<std::string> NodeChanges(const JobView& before, const JobView& after) {
  // Several agents may run on one host; their ids tell them apart.
  std::unordered_map<uint64_t, const NodeView*> old;
  for (const NodeView& node : before.nodes) old[node.agent.value()] = &node;
  std::vector<std::string> lines;
  for (const NodeView& node : after.nodes) {
    const auto found = old.find(node.agent.value());
    if (found == old.end() || NodeLine(*found->second) != NodeLine(node)) {
      lines.push_back(NodeLine(node));
    }
    if (found != old.end()) old.erase(found);
  }
  for (const NodeView& node : before.nodes) {
    if (old.count(node.agent.value()) > 0) lines.push_back(node.host + ": gone");
  }
  return lines;
}

}  // namespace

std::string StatusText(const std::vector<JobView>& jobs, size_t most_nodes) {
  if (jobs.empty()) return "no jobs\n";
  std::string text;
  for (const JobView& job : jobs) AppendJob(job, most_nodes, &text);
  return PrintableLines(text);
}

std::vector<std::string> StatusChanges(const std::vector<JobView>& before,
                                       const std::vector<JobView>& after) {
  std::map<std::string, const JobView*> old;
  for (const JobView& job : before) old[job.job_id] = &job;
  std::vector<std::string> lines;
  for (const JobView& job : after) {
    const auto found = old.find(job.job_id);
    const JobView none;
    const JobView& previous = found == old.end() ? none : *found->second;
    for (const std::string& line : FailureChanges(previous, job)) {
      lines.push_back(absl::StrCat("job ", job.job_id, ": ", line));
    }
    if (found == old.end() || JobLine(previous) != JobLine(job) || previous.why != job.why) {
      lines.push_back(absl::StrCat(JobLine(job), ": ", job.why));
    }
    const std::vector<std::string> nodes = NodeChanges(previous, job);
    for (size_t i = 0; i < std::min(nodes.size(), kMostNodeChanges); ++i) {
      lines.push_back(absl::StrCat("job ", job.job_id, ": ", nodes[i]));
    }
    if (nodes.size() > kMostNodeChanges) {
      lines.push_back(absl::StrCat("job ", job.job_id, ": and ", nodes.size() - kMostNodeChanges,
                                   " more nodes changed"));
    }
    for (const std::string& line : StragglerChanges(previous, job)) {
      lines.push_back(absl::StrCat("job ", job.job_id, ": ", line));
    }
    if (found != old.end()) old.erase(found);
  }
  for (const auto& [job_id, job] : old)
    lines.push_back(absl::StrCat("job ", job_id, ": forgotten"));
  for (std::string& line : lines) line = Printable(line);
  return lines;
}

}  // namespace convene::rendezvous
