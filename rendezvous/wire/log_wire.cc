#include "rendezvous/wire/log_wire.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rendezvous/wire/fields.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::rendezvous {
namespace {

void PackFilter(const LogFilter& filter, pb::LogFilter* wire) {
  for (const int rank : filter.ranks) wire->add_ranks(rank);
  for (const int local_rank : filter.local_ranks) wire->add_local_ranks(local_rank);
  wire->set_without_stdout(filter.without_stdout);
  wire->set_without_stderr(filter.without_stderr);
}

LogFilter UnpackFilter(const pb::LogFilter& wire) {
  LogFilter filter;
  filter.ranks.insert(wire.ranks().begin(), wire.ranks().end());
  filter.local_ranks.insert(wire.local_ranks().begin(), wire.local_ranks().end());
  filter.without_stdout = wire.without_stdout();
  filter.without_stderr = wire.without_stderr();
  return filter;
}

absl::Status CheckLength(int length, const char* what) {
  if (length <= kMostFilterEntries) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a request for logs names ", length, " ", what,
                                                 "; at most ", kMostFilterEntries,
                                                 " can be named: leave them out for all"));
}

template <typename Value, typename Wire>
void CopyWanted(Value& value, Wire& wire) {
  CONVENE_FIELD(watch_id);
  CONVENE_FIELD(tail);
  CONVENE_FIELD(follow);
  CONVENE_FIELD(next_line);
}

// Without its lines and names, which move.
template <typename Value, typename Wire>
void CopyBatch(Value& value, Wire& wire) {
  CONVENE_FIELD(watch_id);
  CONVENE_FIELD_AS(agent, agent_id);
  CONVENE_FIELD(lost_lines);
  CONVENE_FIELD(next_line);
  CONVENE_FIELD(caught_up);
  CONVENE_FIELD(is_last);
}

LogBatch UnpackBatch(pb::LogBatch&& wire) {
  LogBatch batch;
  CopyBatch(batch, std::as_const(wire));
  batch.host = std::move(*wire.mutable_host());
  batch.role = std::move(*wire.mutable_role());
  batch.lines.reserve(wire.lines_size());
  for (pb::LogLine& line : *wire.mutable_lines()) {
    batch.lines.push_back({absl::FromUnixMicros(line.time_us()), line.rank(), line.local_rank(),
                           line.is_stderr(), std::move(*line.mutable_text()), line.is_cut()});
  }
  return batch;
}

}  // namespace

void ToWire(const LogsWanted& wanted, pb::LogsWanted* wire) {
  CopyWanted(wanted, *wire);
  PackFilter(wanted.filter, wire->mutable_filter());
}

LogsWanted FromWire(const pb::LogsWanted& wire) {
  LogsWanted wanted;
  CopyWanted(wanted, wire);
  wanted.filter = UnpackFilter(wire.filter());
  return wanted;
}

pb::WatchLogsRequest ToWire(const LogRequest& request) {
  pb::WatchLogsRequest wire;
  wire.set_job_id(Utf8(request.job_id));
  for (const std::string& host : request.hosts) wire.add_hosts(Utf8(host));
  PackFilter(request.filter, wire.mutable_filter());
  wire.set_tail(request.tail);
  wire.set_follow(request.follow);
  for (const LogMark& mark : request.seen) {
    pb::LogMark* packed = wire.add_seen();
    packed->set_agent_id(mark.agent.value());
    packed->set_next_line(mark.next_line);
  }
  return wire;
}

absl::StatusOr<LogRequest> FromWire(const pb::WatchLogsRequest& wire) {
  CONVENE_RETURN_IF_ERROR(CheckLength(wire.hosts_size(), "nodes"));
  CONVENE_RETURN_IF_ERROR(CheckLength(wire.filter().ranks_size(), "ranks"));
  CONVENE_RETURN_IF_ERROR(CheckLength(wire.filter().local_ranks_size(), "local ranks"));
  LogRequest request;
  request.job_id = wire.job_id();
  request.hosts.assign(wire.hosts().begin(), wire.hosts().end());
  request.filter = UnpackFilter(wire.filter());
  request.tail = wire.tail();
  request.follow = wire.follow();
  for (const pb::LogMark& mark : wire.seen()) {
    request.seen.push_back({AgentId(mark.agent_id()), mark.next_line()});
  }
  return request;
}

pb::LogBatch ToWire(LogBatch&& batch) {
  pb::LogBatch wire;
  CopyBatch(std::as_const(batch), wire);
  wire.set_host(Utf8(batch.host));
  wire.set_role(Utf8(batch.role));
  for (LogLine& line : batch.lines) {
    pb::LogLine* packed = wire.add_lines();
    packed->set_time_us(absl::ToUnixMicros(line.time));
    packed->set_rank(line.rank);
    packed->set_local_rank(line.local_rank);
    packed->set_is_stderr(line.is_stderr);
    packed->set_text(std::move(line.text));
    packed->set_is_cut(line.is_cut);
  }
  return wire;
}

absl::StatusOr<LogNews> FromWire(pb::LogNews&& wire) {
  switch (wire.body_case()) {
    case pb::LogNews::kStart: {
      LogStart start;
      for (const pb::LogNode& node : wire.start().nodes()) {
        start.nodes.push_back({AgentId(node.agent_id()), node.host(), node.publishes_logs()});
      }
      return LogNews(std::move(start));
    }
    case pb::LogNews::kBatch:
      return LogNews(UnpackBatch(std::move(*wire.mutable_batch())));
    case pb::LogNews::kGone:
      return LogNews(LogsGone{AgentId(wire.gone().agent_id())});
    case pb::LogNews::kEnded:
      return LogNews(RunEnded{wire.ended().phase(), wire.ended().why()});
    case pb::LogNews::BODY_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "a message without a body this program knows: are it and the daemon of one version?");
}

}  // namespace convene::rendezvous
