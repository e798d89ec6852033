#include "rendezvous/web/metrics.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kLongestKeys = 200;

// Enough digits to read back the same number.
std::string Number(double value) { return absl::StrFormat("%.17g", value); }
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
    const std::string escaped =
        absl::StrReplaceAll(label_value, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
    absl::StrAppend(&text_, name_, suffix, "{", label, "=\"", escaped, "\"} ", Number(value), "\n");
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
  per_run("convene_epoch", "gauge", "The job's epoch; it rises with each change of members.",
          [](const JobView& view) { return view.epoch.value(); });
  per_run("convene_restarts_total", "counter", "Failures that cost the job's budget.",
          [](const JobView& view) { return view.restart_count; });
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
                        const ProcessUsage& process) {
  Writer writer;
  WriteJobs(views, &writer);
  WriteDaemon(counters, &writer);
  WriteStore(store.value_or(StoreServer::Counts()), &writer);
  WriteProcess(process, &writer);
  return writer.text();
}

}  // namespace convene::rendezvous
