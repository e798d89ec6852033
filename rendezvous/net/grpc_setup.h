// Settings that a process makes before it uses gRPC.
#pragma once

namespace convene::rendezvous {

// Call it before the process's first gRPC server or channel; a second call costs nothing.
// Thread-safe.
void SetUpGrpc();

}  // namespace convene::rendezvous
