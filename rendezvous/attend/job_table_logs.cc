// JobTable's functions that find the agents to ask for a job's output.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rendezvous/attend/job_table.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

// The most names in the text of an error.
constexpr size_t kMostNamed = 16;

std::string NoSuchJob(const std::string& job_id, const std::vector<std::string>& known) {
  return absl::StrCat("this rendezvous knows no run ", job_id,
                      known.empty()
                          ? ", nor any other; a run that is over is known for a few minutes only"
                          : "; it has ",
                      JoinCapped(known, kMostNamed));
}

std::string WhereFilesAre(const std::map<std::string, std::string>& directories, size_t nodes) {
  if (directories.empty()) {
    return "It wrote no log files: with --log-dir DIR its output is kept.";
  }
  std::string text = "Its log files:";
  for (const auto& [host, directory] : directories) {
    absl::StrAppend(&text, "\n  ", host, ":", directory);
  }
  if (nodes > directories.size()) absl::StrAppend(&text, "\n  and those of the other nodes");
  return text;
}

}  // namespace

void JobTable::NoteLogDirectory(const Hello& hello, Entry* entry) {
  if (hello.log_directory.empty()) return;
  if (entry->log_directories.size() >= kMostNamed &&
      entry->log_directories.count(hello.host) == 0) {
    return;
  }
  entry->log_directories[hello.host] = hello.log_directory;
}

absl::StatusOr<std::vector<JobTable::LogSource>> JobTable::LogSources(
    MonotonicTime now, const std::string& job_id) const {
  const auto found = jobs_.find(job_id);
  if (found == jobs_.end()) {
    std::vector<std::string> known;
    for (const auto& [id, entry] : jobs_) known.push_back(id);
    return absl::NotFoundError(NoSuchJob(job_id, known));
  }
  const Entry& entry = found->second;
  if (entry.job.closed()) {
    const JobView view = entry.job.View(now);
    return absl::FailedPreconditionError(absl::StrCat(
        "the run ", job_id, " is over (", view.phase, ": ", view.why,
        "): its agents are gone, and the lines that they held with them. ",
        WhereFilesAre(entry.log_directories, static_cast<size_t>(entry.job.policy().nodes_max))));
  }
  std::vector<LogSource> sources;
  for (const auto& [id, membership] : members_) {
    if (membership.entry != &entry) continue;
    if (std::optional<LogSource> source = LogSourceOf(MemberId(id))) {
      sources.push_back(*std::move(source));
    }
  }
  return sources;
}

std::optional<JobTable::LogSource> JobTable::LogSourceOf(MemberId id) const {
  const auto found = members_.find(id.value());
  if (found == members_.end()) return std::nullopt;
  const Membership& membership = found->second;
  const Node* node = membership.entry->job.state().Find(id);
  if (node == nullptr) return std::nullopt;
  return LogSource{id, {AgentIdOf(membership.incarnation), node->host, membership.publishes_logs}};
}

}  // namespace convene::rendezvous
