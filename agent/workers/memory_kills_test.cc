#include "agent/workers/memory_kills.h"

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

TEST_CASE("the kernel's kills for want of memory stand on a line of their own") {
  CHECK(MemoryKillsIn("drop_pagecache 1\noom_kill 7\nnuma_pte_updates 0\n") == 7);
  CHECK(MemoryKillsIn("oom_kill 0\n") == 0);
  CHECK(MemoryKillsIn("noom_kill 7\noom_kills 7\n") == std::nullopt);
  CHECK(MemoryKillsIn("") == std::nullopt);
}

}  // namespace
}  // namespace convene::agent
