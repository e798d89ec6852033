#include "rendezvous/net/port_mark.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::rendezvous {
namespace {

TEST_CASE("a port belongs to a daemon with a journal until that one ends in order") {
  const testing::TempDir notes;
  const testing::TempDir state;
  CHECK_FALSE(PortMark::Find(29400, notes.path()).has_value());
  auto mark = PortMark::Leave(29400, state.path(), notes.path());
  REQUIRE_OK(mark);
  CHECK_FALSE(PortMark::Find(29400, notes.path()).has_value());  // There is no journal.
  REQUIRE_OK(WriteFileAtomic(state.File("journal"), "convene-journal 1\n"));
  CHECK(PortMark::Find(29400, notes.path()) == state.path());
  CHECK_FALSE(PortMark::Find(29401, notes.path()).has_value());
  mark->reset();
  CHECK_FALSE(PortMark::Find(29400, notes.path()).has_value());
}

TEST_CASE("a link in the place of the note is none") {
  const testing::TempDir notes;
  const testing::TempDir state;
  REQUIRE_OK(WriteFileAtomic(state.File("journal"), "convene-journal 1\n"));
  REQUIRE_OK(WriteFileAtomic(state.File("note"), state.path()));
  REQUIRE(symlink(state.File("note").c_str(), PortMark::PathOf(1, notes.path()).c_str()) == 0);
  CHECK_FALSE(PortMark::Find(1, notes.path()).has_value());
}

}  // namespace
}  // namespace convene::rendezvous
