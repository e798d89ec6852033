#include "agent/custody/process_table.h"

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

TEST_CASE("a process is older than its child, also when the kernel's numbers began anew between") {
  ProcessEntry parent;
  parent.pid = 32'700;
  parent.start_time = 500;
  ProcessEntry child;
  child.pid = 12;
  child.parent = parent.pid;
  child.start_time = 600;
  CHECK(parent.IsOlderThan(child));
  CHECK_FALSE(child.IsOlderThan(parent));
  child.start_time = parent.start_time;
  CHECK(child.IsOlderThan(parent));
  CHECK_FALSE(parent.IsOlderThan(child));
}

}  // namespace
}  // namespace convene::agent
