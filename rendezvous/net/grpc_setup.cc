#include "rendezvous/net/grpc_setup.h"

#include "absl/synchronization/mutex.h"
#include "grpc/support/log.h"
#include "spdlog/spdlog.h"

namespace convene::rendezvous {
namespace {

void LogAtDebug(gpr_log_func_args* line) {
  spdlog::debug("grpc {}:{}: {}", line->file, line->line, line->message);
}

}  // namespace

void SetUpGrpc() {
  static const bool is_set_up = [] {
    // gRPC's own log lines are of little use: its errors come back as a status, in our words.
    gpr_set_log_function(LogAtDebug);
    // Debian's Abseil is built without NDEBUG: it enters each lock that gRPC takes in one graph for
    // the whole process, behind one spin lock, and ends the process when two orders contradict each
    // other. The graph alone is a fifth of what an agent's joining costs.
    absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
    return true;
  }();
  (void)is_set_up;
}

}  // namespace convene::rendezvous
