#include "rendezvous/net/port_mark.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
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

TEST_CASE("a port belongs to a daemon that takes turns with others, too") {
  const testing::TempDir notes;
  const testing::TempDir state;
  const auto shared = PortMark::Leave(1, state.path(), notes.path());
  const auto in_etcd = PortMark::Leave(2, "etcd://a:2379,b:2379/convene", notes.path());
  CHECK_FALSE(PortMark::Find(1, notes.path()).has_value());
  REQUIRE_OK(WriteFileAtomic(state.File("term"), "1\n"));
  CHECK(PortMark::Find(1, notes.path()) == state.path());
  CHECK(PortMark::Find(2, notes.path()) == "etcd://a:2379,b:2379/convene");
}

TEST_CASE("a link in the place of the note is none") {
  const testing::TempDir notes;
  const testing::TempDir state;
  REQUIRE_OK(WriteFileAtomic(state.File("journal"), "convene-journal 1\n"));
  REQUIRE_OK(WriteFileAtomic(state.File("note"), state.path()));
  REQUIRE(symlink(state.File("note").c_str(), PortMark::PathOf(1, notes.path()).c_str()) == 0);
  CHECK_FALSE(PortMark::Find(1, notes.path()).has_value());
}

TEST_CASE("a note is not written through a link that somebody laid out for it") {
  const testing::TempDir notes;
  const testing::TempDir state;
  const std::string victim = state.File("victim");
  REQUIRE_OK(WriteFileAtomic(victim, "precious"));
  const std::string path = PortMark::PathOf(2, notes.path());
  // The note is written under this name before it gets its own.
  REQUIRE(symlink(victim.c_str(), absl::StrCat(path, ".tmp.", getpid()).c_str()) == 0);
  const auto mark = PortMark::Leave(2, state.path(), notes.path());
  REQUIRE_OK(mark);
  const auto kept = ReadFile(victim);
  REQUIRE_OK(kept);
  CHECK(*kept == "precious");
  const auto note = ReadFile(path);
  REQUIRE_OK(note);
  CHECK(*note == state.path());
}

}  // namespace
}  // namespace convene::rendezvous
