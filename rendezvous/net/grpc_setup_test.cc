#include "rendezvous/net/grpc_setup.h"

#include <catch2/catch.hpp>

#include "absl/synchronization/mutex.h"

namespace convene::rendezvous {
namespace {

TEST_CASE("nobody keeps a book of the order in which gRPC takes its locks") {
  SetUpGrpc();
  SetUpGrpc();
  absl::Mutex first;
  absl::Mutex second;
  first.Lock();
  second.Lock();
  second.Unlock();
  first.Unlock();
  second.Lock();
  first.Lock();  // with the book, the process ends here
  first.Unlock();
  second.Unlock();
  SUCCEED();
}

}  // namespace
}  // namespace convene::rendezvous
