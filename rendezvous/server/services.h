// The daemon's gRPC services: one for members, and one for readers, which changes nothing.
#pragma once

#include <memory>

#include "grpcpp/impl/codegen/service_type.h"
#include "rendezvous/attend/daemon.h"
#include "rendezvous/logs/log_hub.h"

namespace convene::rendezvous {

// Everything. `daemon` and `log_hub` outlive the services.
std::unique_ptr<grpc::Service> MakeMembersService(Daemon* daemon, LogHub* log_hub);

// The calls that change nothing: Status and WatchLogs. The others end with PermissionDenied, and a
// method that is new and has no line in this service with Unimplemented.
std::unique_ptr<grpc::Service> MakeReadersService(Daemon* daemon, LogHub* log_hub);

}  // namespace convene::rendezvous
