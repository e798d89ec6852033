#include "rendezvous/web/page_json.h"

#include <rapidjson/writer.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/base/json_buffer.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kLeastSilence = absl::Seconds(3);

// Values one after the other, into objects and lists that the caller opens and closes.
class Json {
 public:
  void Open(char bracket) { bracket == '{' ? writer_.StartObject() : writer_.StartArray(); }
  void Close(char bracket) { bracket == '}' ? writer_.EndObject() : writer_.EndArray(); }
  Json& Key(const char* key) {
    writer_.Key(key);
    return *this;
  }
  void Add(absl::string_view text) {
    writer_.String(text.data(), static_cast<rapidjson::SizeType>(text.size()));
  }
  void Add(int64_t number) { writer_.Int64(number); }
  void Add(int number) { writer_.Int(number); }
  void Add(size_t number) { writer_.Uint64(number); }
  void Add(bool value) { writer_.Bool(value); }
  // Six digits are more than a curve or a table shows.
  void Add(double number) {
    if (!std::isfinite(number)) {
      writer_.Null();
      return;
    }
    const std::string text = absl::StrCat(number);
    writer_.RawValue(text.data(), text.size(), rapidjson::kNumberType);
  }
  void Add(absl::Duration duration) { Add(absl::ToInt64Seconds(duration)); }
  void Add(absl::Time time) { Add(absl::ToUnixMicros(time)); }
  void Add(Epoch epoch) { Add(epoch.value()); }
  // A loss that is no number is news.
  void Add(const std::optional<double>& number) {
    if (number.has_value() && !std::isfinite(*number)) {
      Add(absl::string_view("NaN"));
    } else {
      Add(number.value_or(std::nan("")));
    }
  }
  template <typename T>
  void Add(const std::optional<T>& value) {
    if (value.has_value()) {
      Add(*value);
    } else {
      writer_.Null();
    }
  }
  template <typename... Values>
  void Row(const Values&... values) {
    Open('[');
    (Add(values), ...);
    Close(']');
  }
  std::string Text() const { return {buffer_.GetString(), buffer_.GetSize()}; }

 private:
  JsonBuffer buffer_;
  rapidjson::Writer<JsonBuffer> writer_{buffer_};
};

// By protobuf's rules a number that is not told is 0.
std::optional<double> Told(double number) {
  return number == 0 ? std::nullopt : std::optional<double>(number);
}

// The members that both answers have.
void AddSummary(const JobView& view, const CurvesOf& curves_of, Json* json) {
  const auto in_epoch = std::count_if(view.nodes.begin(), view.nodes.end(),
                                      [](const NodeView& node) { return node.group_rank >= 0; });
  const TrainingSample sample = SampleOf(view);
  json->Key("id").Add(view.job_id);
  json->Key("phase").Add(view.phase);
  json->Key("epoch").Add(view.epoch);
  json->Key("why").Add(view.why);
  json->Key("nodes").Row(static_cast<int64_t>(in_epoch), view.nodes.size(), view.nodes_min,
                         view.nodes_max);
  json->Key("restarts")
      .Row(view.restart_count - view.failures_outside_window, view.max_restarts,
           view.restart_count);
  json->Key("sample").Row(sample.step, sample.steps_per_second, sample.loss,
                          sample.tokens_per_second);
  json->Key("mfu").Add(sample.mfu);
  json->Key("goodput").Add(GoodputOf(view.job_id, curves_of));
  json->Key("stragglers").Add(view.stragglers.size());
  json->Key("failure").Add(view.last_failures.empty()
                               ? absl::string_view()
                               : absl::string_view(view.last_failures.front().what));
}

void AddNode(const NodeView& node, int first_rank, Json* json) {
  std::optional<int64_t> step;
  std::optional<double> steps_per_second;
  std::string phase;
  if (node.tells_progress()) {
    step = node.progress->step;
    steps_per_second = Told(node.progress->steps_per_second);
    phase = node.progress->phase;
  }
  // A node speaks each third of its lease.
  const bool is_silent = node.heard_ago >= std::max(kLeastSilence, node.lease / 2);
  const absl::Duration silent = is_silent ? node.heard_ago : absl::ZeroDuration();
  // As text: JavaScript's numbers have 53 bits.
  json->Row(node.host, absl::StrCat(node.agent.value()), node.group_rank, node.state, node.why,
            node.local_world_size, first_rank, silent, step, steps_per_second, phase);
}

void AddRanks(size_t index, const NodeView& node, int first_rank, Json* json) {
  for (const RankProgress& rank : node.ranks) {
    json->Row(index, first_rank < 0 ? -1 : first_rank + rank.local_rank, rank.step,
              Told(rank.steps_per_second), rank.phase, rank.compute_ms, rank.wait_ms, rank.data_ms,
              rank.checkpoint_ms, Told(rank.loss), Told(rank.tokens_per_second), rank.memory_bytes,
              rank.memory_peak_bytes);
  }
}

// The nodes and their ranks. Ranks are given in the order of the group ranks, so behind a gap they
// are not known.
void AddNodes(const JobView& view, Json* json) {
  const size_t shown = std::min(view.nodes.size(), kMostPageNodes);
  std::vector<int> first_ranks(shown, -1);
  int next_rank = 0;
  for (size_t i = 0; i < shown && view.nodes[i].group_rank == static_cast<int>(i); ++i) {
    first_ranks[i] = next_rank;
    next_rank += view.nodes[i].local_world_size;
  }
  json->Key("node_rows").Open('[');
  for (size_t i = 0; i < shown; ++i) AddNode(view.nodes[i], first_ranks[i], json);
  json->Close(']');
  json->Key("rank_rows").Open('[');
  for (size_t i = 0; i < shown; ++i) {
    if (view.nodes[i].group_rank >= 0) AddRanks(i, view.nodes[i], first_ranks[i], json);
  }
  json->Close(']');
}

void AddNews(const JobView& view, Json* json) {
  json->Key("failures").Open('[');
  for (const FailureView& failure : view.last_failures) {
    json->Row(failure.epoch, failure.what, failure.ago);
  }
  json->Close(']');
  json->Key("events").Open('[');
  for (const EventView& event : view.events) {
    json->Row(event.number, event.time, event.kind, event.text, event.epoch);
  }
  json->Close(']');
  json->Key("stragglers_now").Open('[');
  for (const StragglerView& straggler : view.stragglers) {
    json->Row(straggler.kind, straggler.rank, straggler.host, straggler.slower_by, straggler.why,
              straggler.since);
  }
  json->Close(']');
  json->Key("incidents").Open('[');
  for (const IncidentView& incident : view.incidents) {
    json->Row(incident.number, incident.epoch, incident.verdict, incident.cause, incident.time);
  }
  json->Close(']');
}

}  // namespace

std::string JobsJson(const std::vector<JobView>& views, const CurvesOf& curves_of) {
  Json json;
  json.Open('{');
  json.Key("jobs").Open('[');
  for (const JobView& view : views) {
    json.Open('{');
    AddSummary(view, curves_of, &json);
    json.Close('}');
  }
  json.Close(']');
  json.Close('}');
  return json.Text();
}

std::string JobJson(const JobView& view, const CurvesOf& curves_of) {
  Json json;
  json.Open('{');
  AddSummary(view, curves_of, &json);
  AddNodes(view, &json);
  AddNews(view, &json);
  json.Key("curve").Open('[');
  curves_of(view.job_id, [&](const JobCurves::Job* job) {
    if (job == nullptr) return;
    for (const CurvePoint& point : job->curve.points()) {
      json.Row(static_cast<int64_t>(point.time_seconds), point.step, point.loss,
               point.tokens_per_second, point.steps_per_second);
    }
  });
  json.Close(']');
  json.Close('}');
  return json.Text();
}

std::string LogsJson(const FeedAnswer& answer) {
  Json json;
  json.Open('{');
  json.Key("feed").Add(answer.feed);
  json.Key("next").Add(answer.next);
  json.Key("skipped").Add(answer.skipped);
  json.Key("lost").Add(answer.lost);
  json.Key("more").Add(answer.has_more);
  json.Key("over").Add(answer.over);
  json.Key("lines").Open('[');
  for (const FeedLine& line : answer.lines) {
    json.Row(line.time_us, line.rank, line.host, line.is_stderr, line.text);
  }
  json.Close(']');
  json.Close('}');
  return json.Text();
}

}  // namespace convene::rendezvous
