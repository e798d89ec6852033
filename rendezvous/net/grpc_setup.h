// Settings that a process makes before it uses gRPC.
#pragma once

namespace convene::rendezvous {

// Before the process's first gRPC server or channel; again costs nothing. Thread-safe.
void SetUpGrpc();

}  // namespace convene::rendezvous
