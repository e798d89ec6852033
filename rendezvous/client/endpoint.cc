#include "rendezvous/client/endpoint.h"

#include "rendezvous/lock/tls_context.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

absl::StatusOr<TlsPump*> Endpoint::Pump() const {
  MutexLock lock(&lock_->mutex);
  if (lock_->pump == nullptr) {
    CONVENE_ASSIGN_OR_RETURN(lock_->pump,
                             TlsPump::Start(lock_->credentials, TlsContext::Side::kClient));
  }
  return lock_->pump.get();
}

}  // namespace convene::rendezvous
