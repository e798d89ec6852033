// The adapter of one Attend call: proto and gRPC on this side, values and the daemon on the other.
#pragma once

#include "grpcpp/grpcpp.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/wire/wire.h"

namespace convene::rendezvous {

// Begins a call. `daemon` outlives it.
grpc::ServerBidiReactor<pb::AgentMessage, pb::DaemonMessage>* StartAttendStream(
    Daemon* daemon, Incarnation daemon_incarnation, grpc::CallbackServerContext* context);

}  // namespace convene::rendezvous
