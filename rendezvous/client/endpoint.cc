#include "rendezvous/client/endpoint.h"

#include "absl/strings/str_split.h"
#include "rendezvous/lock/tls_context.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

std::vector<Endpoint> Endpoint::Each(int turn) const {
  const std::vector<std::string> addresses = absl::StrSplit(address_, ',');
  if (addresses.size() == 1) return {*this};
  std::vector<Endpoint> each;
  for (const std::string& address : addresses) {
    each.push_back(At(address, server_name_, {.is_once = true, .turn = turn}));
  }
  return each;
}

absl::StatusOr<TlsPump*> Endpoint::Pump() const {
  MutexLock lock(&lock_->mutex);
  if (lock_->pump == nullptr) {
    CONVENE_ASSIGN_OR_RETURN(lock_->pump,
                             TlsPump::Start(lock_->credentials, TlsContext::Side::kClient));
  }
  return lock_->pump.get();
}

}  // namespace convene::rendezvous
