#include "launcher/logs_view.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "launcher/json_text.h"
#include "launcher/terminal_text.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

using rendezvous::AgentId;
using rendezvous::LogBatch;
using rendezvous::LogLine;

constexpr size_t kMostNamed = 8;
// The most marks in a request, which the daemon takes up to 64 KiB. With more nodes, some lines are
// shown twice after a break.
constexpr size_t kMostMarks = 2048;

std::string JsonLine(const std::string& host, const LogLine& line) {
  return absl::StrCat(
      "{\"time\":\"", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", line.time, absl::UTCTimeZone()),
      "\",\"node\":", JsonText(host), ",\"rank\":", line.rank, ",\"local_rank\":", line.local_rank,
      ",\"stream\":\"", line.is_stderr ? "stderr" : "stdout", "\",\"text\":", JsonText(line.text),
      line.is_cut ? ",\"cut\":true}\n" : "}\n");
}

}  // namespace

void LogsView::Begin(MonotonicTime now) {
  hosts_.clear();
  unanswered_.clear();
  has_started_ = false;
  is_live_ = false;
  deadline_ = now + kAnswerPatience;
}

void LogsView::Take(MonotonicTime now, rendezvous::LogClient::News news) {
  std::visit([this](auto& piece) { Take(std::move(piece)); }, news);
  Decide(now);
}

void LogsView::Take(rendezvous::LogStart start) {
  has_started_ = true;
  std::vector<std::string> old;
  for (rendezvous::LogNode& node : start.nodes) {
    if (node.publishes_logs) {
      unanswered_.insert(node.agent);
      hosts_.emplace(node.agent, std::move(node.host));
    } else {
      old.push_back(std::move(node.host));
    }
  }
  if (start.nodes.empty()) Note("no node is there now");
  if (old.empty()) return;
  Note(absl::StrCat("not shown: ", JoinCapped(old, kMostNamed),
                    ", whose agents are of an older version"));
}

void LogsView::Take(LogBatch batch) {
  const bool is_new = hosts_.emplace(batch.agent, batch.host).second;
  if (is_new && next_line_.count(batch.agent) == 0) Note(batch.host + " has joined");
  next_line_[batch.agent] = batch.next_line;
  if (batch.caught_up) unanswered_.erase(batch.agent);
  if (batch.is_last) complete_.insert(batch.agent);
  if (batch.lost_lines > 0) ShowLoss(batch.host, batch.lost_lines);
  if (!is_live_) return Hold(std::move(batch));
  for (const LogLine& line : batch.lines) Show(batch.host, batch.role, line);
}

void LogsView::Take(const rendezvous::LogsGone& gone) {
  unanswered_.erase(gone.agent);
  const auto node = hosts_.find(gone.agent);
  if (node == hosts_.end()) return;
  // At the end all nodes go, which is no news.
  if (options_.follow && !ended_.has_value()) Note(node->second + " is gone");
  if (options_.follow && complete_.count(gone.agent) == 0) NoteCutOff({node->second});
  hosts_.erase(node);
}

void LogsView::Take(const rendezvous::RunEnded& ended) { ended_ = ended; }

void LogsView::Hold(LogBatch batch) {
  for (LogLine& line : batch.lines) {
    held_bytes_ += sizeof(HeldLine) + line.text.size();
    held_.push_back({batch.host, batch.role, std::move(line)});
  }
  if (held_bytes_ > kMostHeldBytes) ShowHeld();
}

void LogsView::ShowHeld() {
  std::stable_sort(held_.begin(), held_.end(),
                   [](const HeldLine& a, const HeldLine& b) { return a.line.time < b.line.time; });
  for (const HeldLine& held : held_) Show(held.host, held.role, held.line);
  held_.clear();
  held_bytes_ = 0;
}

void LogsView::Show(const std::string& host, const std::string& role, const LogLine& line) {
  std::string& text = Text(false);
  if (options_.json) {
    text += JsonLine(host, line);
    return;
  }
  if (line.rank != prefix_rank_ || host != prefix_host_) {
    prefix_ = agent::LinePrefix(options_.prefix_template, {role, line.local_rank, line.rank, host});
    prefix_rank_ = line.rank;
    prefix_host_ = host;
  }
  absl::StrAppend(&text, prefix_.At(line.time),
                  options_.to_terminal ? ForTerminal(line.text) : line.text,
                  line.is_cut ? " [...]\n" : "\n");
}

void LogsView::ShowLoss(const std::string& host, uint64_t count) {
  if (options_.json) {
    absl::StrAppend(&Text(false), "{\"node\":", JsonText(host), ",\"lost_lines\":", count, "}\n");
  } else {
    Note(absl::StrCat("... ", count, " lines of ", host, " lost: this viewer was too slow"));
  }
}

void LogsView::NoteCutOff(const std::vector<std::string>& hosts) {
  Note(absl::StrCat("the last lines of ", JoinCapped(hosts, kMostNamed), " may be missing here"));
}

void LogsView::Note(const std::string& text) {
  absl::StrAppend(&Text(true), "convene: ", text, "\n");
}

std::string& LogsView::Text(bool is_notice) {
  if (chunks_.empty() || chunks_.back().is_notice != is_notice) chunks_.push_back({is_notice, ""});
  return chunks_.back().text;
}

void LogsView::OnTime(MonotonicTime now) {
  if (now < deadline_) return;
  if (has_started_ && !unanswered_.empty()) {
    std::vector<std::string> silent;
    for (const AgentId agent : unanswered_) silent.push_back(hosts_.at(agent));
    Note(absl::StrCat("no answer within ", absl::FormatDuration(kAnswerPatience), " from ",
                      JoinCapped(silent, kMostNamed)));
    unanswered_.clear();
  } else if (ended_.has_value()) {
    ForgetHosts();
  }
  Decide(now);
}

void LogsView::ForgetHosts() {
  std::vector<std::string> cut_off;
  for (const auto& [agent, host] : hosts_) {
    if (complete_.count(agent) == 0) cut_off.push_back(host);
  }
  hosts_.clear();
  if (!cut_off.empty()) NoteCutOff(cut_off);
}

void LogsView::Break() {
  unanswered_.clear();
  // While the run goes on, the next call brings the missing lines.
  ended_.has_value() ? ForgetHosts() : hosts_.clear();
  Decide(MonotonicTime());
}

void LogsView::Decide(MonotonicTime now) {
  if (!has_started_ || done_) return;
  if (!is_live_ && unanswered_.empty()) {
    ShowHeld();
    is_live_ = true;
    deadline_ = MonotonicTime::InfiniteFuture();
    done_ = !options_.follow;
  }
  if (!options_.follow || !ended_.has_value()) return;
  if (is_live_ && hosts_.empty()) {
    Note(absl::StrCat("the run ", options_.job_id, " is over: ", ended_->phase, " (", ended_->why,
                      ")"));
    done_ = true;
  } else if (deadline_ == MonotonicTime::InfiniteFuture()) {
    deadline_ = now + kEndPatience;
  }
}

std::vector<LogsView::Chunk> LogsView::TakeChunks() { return std::exchange(chunks_, {}); }

std::vector<rendezvous::LogMark> LogsView::seen() const {
  std::vector<rendezvous::LogMark> marks;
  for (const auto& [agent, next_line] : next_line_) {
    if (marks.size() < kMostMarks) marks.push_back({agent, next_line});
  }
  return marks;
}

}  // namespace convene::launcher
