// As wire.h, for workers' lines.
#pragma once

#include <variant>

#include "absl/status/statusor.h"
#include "rendezvous/quorum/log_lines.h"
#include "rendezvous/quorum/messages.h"
#include "rendezvous/wire/wire.h"

namespace convene::rendezvous {

// The news that a viewer hears.
using LogNews = std::variant<LogStart, LogBatch, LogsGone, RunEnded>;

void ToWire(const LogsWanted& wanted, pb::LogsWanted* wire);
LogsWanted FromWire(const pb::LogsWanted& wire);

pb::WatchLogsRequest ToWire(const LogRequest& request);
// InvalidArgument for a list that is too long.
absl::StatusOr<LogRequest> FromWire(const pb::WatchLogsRequest& wire);

// Take the lines' text from their argument.
pb::LogBatch ToWire(LogBatch&& batch);
// InvalidArgument for a message without a body: a daemon of another version.
absl::StatusOr<LogNews> FromWire(pb::LogNews&& wire);

}  // namespace convene::rendezvous
