#include "rendezvous/web/metrics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kLongestKeys = 200;

// Enough digits to read back the same number. Prometheus takes NaN without a sign alone, and
// refuses all metrics of the daemon for one line that it cannot read.
std::string Number(double value) {
  return std::isnan(value) ? "NaN" : absl::StrFormat("%.17g", value);
}
std::string Number(int64_t value) { return absl::StrCat(value); }

class Writer {
 public:
  // Begins a metric: its samples follow.
  void Metric(absl::string_view name, absl::string_view type, absl::string_view help) {
    name_ = std::string(name);
    absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }

  // `suffix`: "_bucket" and the like of a histogram.
  template <typename Value>
  void Sample(absl::string_view label, absl::string_view label_value, Value value,
              absl::string_view suffix = "") {
    absl::StrAppend(&text_, name_, suffix, "{", Label(label, label_value), "} ", Number(value),
                    "\n");
  }

  // With the label `run` and a second one.
  void RunSample(absl::string_view run, absl::string_view label, absl::string_view label_value,
                 double value) {
    absl::StrAppend(&text_, name_, "{", Label("run", run), ",", Label(label, label_value), "} ",
                    Number(value), "\n");
  }

  template <typename Value>
  void Single(absl::string_view name, absl::string_view type, absl::string_view help, Value value) {
    Metric(name, type, help);
    absl::StrAppend(&text_, name, " ", Number(value), "\n");
  }

  void Histogram(absl::string_view name, absl::string_view help,
                 const LatencyHistogram& histogram) {
    Metric(name, "histogram", help);
    int64_t so_far = 0;
    for (size_t i = 0; i < histogram.counts.size(); ++i) {
      so_far += histogram.counts[i];
      const bool is_last = i == histogram.kBoundsSeconds.size();
      const std::string bound =
          is_last ? "+Inf" : absl::StrFormat("%g", histogram.kBoundsSeconds[i]);
      Sample("le", bound, so_far, "_bucket");
    }
    absl::StrAppend(&text_, name, "_sum ", Number(histogram.sum_seconds), "\n", name, "_count ",
                    so_far, "\n");
  }

  const std::string& text() const { return text_; }

 private:
  static std::string Label(absl::string_view name, absl::string_view value) {
    return absl::StrCat(name, "=\"",
                        absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}),
                        "\"");
  }

  std::string text_;
  std::string name_;
};

void WriteJobs(const std::vector<JobView>& views, Writer* writer) {
  std::map<std::string, int64_t> jobs_in_phase = {
      {"forming", 0}, {"running", 0}, {"stopping", 0}, {"succeeded", 0}, {"failed", 0}};
  for (const JobView& view : views) ++jobs_in_phase[view.phase];
  writer->Metric("convene_jobs", "gauge", "Jobs this daemon knows, closed ones included.");
  for (const auto& [phase, count] : jobs_in_phase) writer->Sample("phase", phase, count);
  const auto per_run = [&](const char* name, const char* type, const char* help, auto value_of) {
    writer->Metric(name, type, help);
    for (const JobView& view : views) {
      writer->Sample("run", view.job_id, static_cast<int64_t>(value_of(view)));
    }
  };
  per_run("convene_nodes", "gauge", "Nodes whose agents are in the job.",
          [](const JobView& view) { return view.nodes.size(); });
  per_run("convene_nodes_in_epoch", "gauge", "Nodes that have a rank in the job's epoch.",
          [](const JobView& view) {
            return std::count_if(view.nodes.begin(), view.nodes.end(),
                                 [](const NodeView& node) { return node.group_rank >= 0; });
          });
  per_run("convene_ranks", "gauge", "Ranks of the job's epoch.", [](const JobView& view) {
    int ranks = 0;
    for (const NodeView& node : view.nodes) {
      if (node.group_rank >= 0) ranks += node.local_world_size;
    }
    return ranks;
  });
  per_run("convene_epoch", "gauge", "The job's epoch; it rises with each change of members.",
          [](const JobView& view) { return view.epoch.value(); });
  per_run("convene_restarts_total", "counter", "Failures that cost the job's budget.",
          [](const JobView& view) { return view.restart_count; });
}

using PerRun = std::function<std::optional<double>(const JobView&)>;

void WriteTraining(const std::vector<JobView>& views, const CurvesOf& curves_of, Writer* writer) {
  const auto per_run = [&](const char* name, const char* help, const PerRun& value_of) {
    writer->Metric(name, "gauge", help);
    for (const JobView& view : views) {
      const std::optional<double> value = value_of(view);
      if (value.has_value()) writer->Sample("run", view.job_id, *value);
    }
  };
  per_run("convene_training_step", "The last step that every node of the epoch has finished.",
          [](const JobView& view) -> std::optional<double> {
            const std::optional<int64_t> step = SampleOf(view).step;
            return step.has_value() ? std::optional<double>(*step) : std::nullopt;
          });
  per_run("convene_training_steps_per_second", "Steps a second of the slowest node, lately.",
          [](const JobView& view) { return SampleOf(view).steps_per_second; });
  per_run("convene_training_tokens_per_second", "Tokens a second of all ranks, lately.",
          [](const JobView& view) { return SampleOf(view).tokens_per_second; });
  per_run("convene_training_loss", "Loss of the last step, the mean over the ranks that tell it.",
          [](const JobView& view) { return SampleOf(view).loss; });
  per_run("convene_training_mfu_ratio",
          "Model FLOPs utilization of the last step, with all scores of attention (PaLM).",
          [](const JobView& view) { return SampleOf(view).mfu; });
  per_run("convene_training_goodput_ratio",
          "Share of the job's time in which it made steps that it keeps, since this daemon began.",
          [&](const JobView& view) { return GoodputOf(view.job_id, curves_of); });
  per_run("convene_stragglers", "Ranks, nodes, links and disks that hold the job up now.",
          [](const JobView& view) { return static_cast<double>(view.stragglers.size()); });
  per_run("convene_rank_memory_peak_bytes", "The most memory that a rank of the job has used.",
          [](const JobView& view) -> std::optional<double> {
            int64_t most = 0;
            for (const NodeView& node : view.nodes) {
              for (const RankProgress& rank : node.ranks) {
                most = std::max(most, rank.memory_peak_bytes);
              }
            }
            return most > 0 ? std::optional<double>(most) : std::nullopt;
          });
}

// The ranks of the job's epoch with their global numbers; none where a number is not known.
std::vector<std::pair<int, const RankProgress*>> RanksOf(const JobView& view) {
  std::vector<std::pair<int, const RankProgress*>> ranks;
  int first_rank = 0;
  for (size_t i = 0; i < view.nodes.size(); ++i) {
    const NodeView& node = view.nodes[i];
    if (node.group_rank != static_cast<int>(i)) break;
    for (const RankProgress& rank : node.ranks) {
      ranks.emplace_back(first_rank + rank.local_rank, &rank);
    }
    first_rank += node.local_world_size;
  }
  return ranks;
}

// The same of the ranks that tell times.
std::vector<std::pair<int, const RankProgress*>> TimedRanksOf(const JobView& view) {
  std::vector<std::pair<int, const RankProgress*>> ranks = RanksOf(view);
  std::erase_if(ranks, [](const auto& entry) {
    const RankProgress& rank = *entry.second;
    return rank.compute_ms == 0 && rank.wait_ms == 0 && rank.data_ms == 0;
  });
  return ranks;
}

// A time of each rank, in a step: the job's median and its longest, and the single ranks' of small
// jobs. `milliseconds_of` is a member of RankProgress.
void WriteRankTimes(const std::vector<JobView>& views, const std::string& name,
                    const std::string& help, double RankProgress::*milliseconds_of,
                    Writer* writer) {
  constexpr double kSeconds = 1e-3;
  writer->Metric(absl::StrCat("convene_step_", name, "_seconds"), "gauge",
                 absl::StrCat(help, ": the median and the longest of the job's ranks."));
  for (const JobView& view : views) {
    std::vector<double> times;
    for (const auto& [number, rank] : TimedRanksOf(view)) times.push_back(rank->*milliseconds_of);
    if (times.empty()) continue;
    std::sort(times.begin(), times.end());
    writer->RunSample(view.job_id, "rank_is", "median", kSeconds * times[times.size() / 2]);
    writer->RunSample(view.job_id, "rank_is", "longest", kSeconds * times.back());
  }
  writer->Metric(
      absl::StrCat("convene_rank_step_", name, "_seconds"), "gauge",
      absl::StrCat(help, ", by rank, of jobs with at most ", kMostRanksMeasured, " ranks."));
  int room = kMostRanksMeasuredInAll;
  for (const JobView& view : views) {
    const auto ranks = TimedRanksOf(view);
    if (ranks.size() > std::min<size_t>(kMostRanksMeasured, room)) continue;
    room -= static_cast<int>(ranks.size());
    for (const auto& [number, rank] : ranks) {
      writer->RunSample(view.job_id, "rank", absl::StrCat(number),
                        kSeconds * rank->*milliseconds_of);
    }
  }
}

void WriteDaemon(const DaemonCounters& counters, Writer* writer) {
  writer->Single("convene_epochs_total", "counter", "Epochs begun, of all jobs.", counters.epochs);
  writer->Single("convene_joins_total", "counter", "Agents that joined a job.", counters.joins);
  writer->Single("convene_joins_refused_total", "counter", "Agents that were refused.",
                 counters.joins_refused);
  writer->Single("convene_heartbeats_total", "counter", "Heartbeats of agents.",
                 counters.heartbeats);
  writer->Single("convene_agent_streams", "gauge", "Agents' streams that are open.",
                 counters.streams_open);
  writer->Histogram(
      "convene_decision_seconds",
      "Time from an agent's message until the last answer that it causes is on its way.",
      counters.decisions);
}

void WriteStore(const StoreServer::Counts& counts, Writer* writer) {
  const auto gauge = [&](const char* name, const char* help, size_t value) {
    writer->Single(name, "gauge", help, static_cast<int64_t>(value));
  };
  gauge("convene_store_connections", "Clients of the daemon's TCPStore.", counts.connections);
  gauge("convene_store_waiting", "Clients of the daemon's TCPStore in a wait or a barrier.",
        counts.waiting);
  gauge("convene_store_keys", "Keys with a value; queues are not among them.", counts.keys);
  gauge("convene_store_bytes", "Bytes of all that clients make the store hold.",
        counts.budget.bytes);
  gauge("convene_store_bytes_max", "The most bytes that the store may hold (--store-memory).",
        counts.budget.bytes_max);
  writer->Single("convene_store_refusals_total", "counter",
                 "Requests that the store had no room for; each ended its connection.",
                 counts.budget.refusals);
  writer->Metric("convene_store_run_bytes", "gauge",
                 "Bytes of the runs that hold most, by the beginning of their keys.");
  std::map<std::string, int64_t> by_name;  // cut names may be equal
  for (const Budget::RunBytes& run : counts.budget.largest) {
    by_name[Utf8(run.run, kLongestKeys)] += static_cast<int64_t>(run.bytes);
  }
  for (const auto& [name, bytes] : by_name) writer->Sample("keys", name, bytes);
}

void WriteProcess(const ProcessUsage& process, Writer* writer) {
  writer->Single("process_cpu_seconds_total", "counter", "User and system CPU time spent.",
                 process.cpu_seconds);
  writer->Single("process_resident_memory_bytes", "gauge", "Resident memory size.",
                 process.resident_bytes);
  writer->Single("process_virtual_memory_bytes", "gauge", "Virtual memory size.",
                 process.virtual_bytes);
  writer->Single("process_start_time_seconds", "gauge", "Start of the process since 1970.",
                 process.start_time_seconds);
  writer->Single("process_open_fds", "gauge", "Open file descriptors.", process.open_fds);
  writer->Single("process_max_fds", "gauge", "Most file descriptors that may be open.",
                 process.most_fds);
}

}  // namespace

std::string MetricsText(const std::vector<JobView>& views, const DaemonCounters& counters,
                        const std::optional<StoreServer::Counts>& store,
                        const ProcessUsage& process, const CurvesOf& curves_of) {
  Writer writer;
  WriteJobs(views, &writer);
  WriteTraining(views, curves_of, &writer);
  WriteRankTimes(views, "compute", "Time of a rank's own work in a step", &RankProgress::compute_ms,
                 &writer);
  WriteRankTimes(views, "wait", "Time in which a rank waits for others in a step",
                 &RankProgress::wait_ms, &writer);
  WriteRankTimes(views, "data", "Time in which a rank waits for its samples in a step",
                 &RankProgress::data_ms, &writer);
  WriteRankTimes(views, "checkpoint", "Time that a rank's saves take from a step",
                 &RankProgress::checkpoint_ms, &writer);
  WriteDaemon(counters, &writer);
  WriteStore(store.value_or(StoreServer::Counts()), &writer);
  WriteProcess(process, &writer);
  return writer.text();
}

std::string CertificateMetricText(absl::Time end) {
  if (end == absl::InfiniteFuture()) return "";
  Writer writer;
  writer.Single("convene_certificate_expires_seconds", "gauge",
                "End of the daemon's certificate, or its CA's, since 1970.",
                static_cast<int64_t>(absl::ToUnixSeconds(end)));
  return writer.text();
}

}  // namespace convene::rendezvous
