// Checks whether this node is fit to run workers: --health-check.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/custody/bounded_command.h"
#include "agent/options.h"
#include "tools/base/event_loop.h"

namespace convene::agent {

// Runs check.program, or check.command by /bin/sh -c. `on_done` is called once from the loop: OK,
// or FailedPrecondition with how the command ended and its last lines; it may destroy the command.
// Errors as BoundedCommand's.
absl::StatusOr<std::unique_ptr<BoundedCommand>> StartHealthCheck(
    EventLoop& loop, const HealthCheck& check, const std::vector<std::string>& environment,
    std::function<void(absl::Status)> on_done);

}  // namespace convene::agent
