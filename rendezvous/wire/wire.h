// Converts between the values of rendezvous/quorum and the messages of proto/rendezvous.proto. Both
// ends of the wire use it.
#pragma once

#include <variant>

#include "absl/status/statusor.h"
#include "proto/rendezvous.pb.h"
#include "rendezvous/quorum/job_view.h"
#include "rendezvous/quorum/log_lines.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/strong_int.h"

namespace convene::rendezvous {

namespace pb = ::convene::rendezvous::v1;

struct AgentEnvelope {
  Incarnation incarnation;
  Epoch epoch;
  std::variant<Hello, AgentEvent> body;
};

pb::AgentMessage ToWire(const AgentEnvelope& envelope);
// Unimplemented for a message of a kind that this version does not know: the reader ignores it.
// InvalidArgument for a message without a body, or with a port that is none. Log lines beyond the
// contract are cut off.
absl::StatusOr<AgentEnvelope> FromWire(const pb::AgentMessage& message);

pb::DaemonMessage ToWire(Incarnation daemon, const DaemonEvent& event);
// Errors as above.
absl::StatusOr<DaemonEvent> FromWire(const pb::DaemonMessage& message);

void ToWire(const JobView& view, pb::JobStatus* status);
JobView FromWire(const pb::JobStatus& status);

pb::WatchLogsRequest ToWire(const LogRequest& request);
// InvalidArgument for a list that is too long.
absl::StatusOr<LogRequest> FromWire(const pb::WatchLogsRequest& wire);

// The messages to a viewer.
using LogNews = std::variant<LogStart, LogBatch, LogsGone, RunEnded>;

pb::LogBatch ToWire(const LogBatch& batch);
pb::LogNews ToWire(const LogNews& news);
// InvalidArgument for a message without a body: a daemon of another version.
absl::StatusOr<LogNews> FromWire(const pb::LogNews& wire);

}  // namespace convene::rendezvous
