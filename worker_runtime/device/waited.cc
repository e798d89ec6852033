#include "worker_runtime/device/waited.h"

namespace convene::worker {
namespace {

thread_local absl::Duration waited;

}  // namespace

absl::Duration ThreadWaited() { return waited; }

WaitScope::~WaitScope() { waited += Clock::Real().Now() - since_; }

}  // namespace convene::worker
