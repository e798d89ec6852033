#include "rendezvous/store/spaces.h"

#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kAfter = absl::Hours(1);

MonotonicTime At(absl::Duration since_boot) { return MonotonicTime::FromEpoch(since_boot); }

bool Holds(const std::string& /*space*/) { return true; }

TEST_CASE("a space is what comes before the first inner slash") {
  CHECK(Spaces::SpaceOf("/torch.rendezvous.run.0/agent/1") == "/torch.rendezvous.run.0");
  CHECK(Spaces::SpaceOf("/torch.rendezvous.run") == "/torch.rendezvous.run");
  CHECK(Spaces::SpaceOf("//worker/attempt_0") == "/");
  CHECK(Spaces::SpaceOf("init/") == "init");
  CHECK(Spaces::SpaceOf("/").size() == 1);
  CHECK(Spaces::SpaceOf("").empty());
  CHECK(Spaces::RunOf("/run/a") == "/run");
  CHECK(Spaces::RunOf("/run").empty());
}

TEST_CASE("a space is forgotten once its time after the last user is over, and others are not") {
  Spaces spaces(kAfter);
  spaces.Use(1, {"/run1/a", "/run1/b"});
  spaces.Use(2, {"/run1/c", "/run2/a"});
  spaces.Leave(1, At(absl::ZeroDuration()), Holds);
  CHECK_FALSE(spaces.Forget(At(absl::Hours(9))));
  spaces.Use(3, {"/run2/b"});
  spaces.Leave(2, At(absl::Hours(10)), Holds);
  CHECK_FALSE(spaces.Forget(At(absl::Hours(11) - absl::Nanoseconds(1))));
  CHECK_FALSE(spaces.IsForgotten("/run1/a"));
  CHECK(spaces.Forget(At(absl::Hours(11))));
  CHECK(spaces.IsForgotten("/run1/a"));
  CHECK_FALSE(spaces.IsForgotten("/run2/a"));
  CHECK_FALSE(spaces.Forget(At(absl::Hours(12))));
}

TEST_CASE("a space that is used again in time lives on") {
  Spaces spaces(kAfter);
  spaces.Use(1, {"/run/a"});
  spaces.Leave(1, At(absl::ZeroDuration()), Holds);
  spaces.Use(2, {"/run/a"});
  CHECK_FALSE(spaces.Forget(At(absl::Hours(5))));
  spaces.Leave(2, At(absl::Hours(5)), Holds);
  CHECK_FALSE(spaces.Forget(At(absl::Hours(5.5))));
  spaces.Use(3, {"/run/a"});
  spaces.Leave(3, At(absl::Hours(5.75)), Holds);
  CHECK_FALSE(spaces.Forget(At(absl::Hours(6.5))));
  CHECK(spaces.Forget(At(absl::Hours(6.75))));
}

TEST_CASE("while somebody uses very many spaces nothing is forgotten, and later all that is over") {
  Spaces spaces(kAfter);
  spaces.Use(1, {"/over/a"});
  spaces.Leave(1, At(absl::ZeroDuration()), Holds);
  for (int i = 0; i < 1000; ++i) spaces.Use(2, {"/" + std::to_string(i)});
  spaces.Use(3, {"/live/a"});
  CHECK_FALSE(spaces.Forget(At(absl::Hours(5))));
  spaces.Leave(2, At(absl::Hours(5)), Holds);
  CHECK_FALSE(spaces.Forget(At(absl::Hours(6) - absl::Nanoseconds(1))));
  CHECK(spaces.Forget(At(absl::Hours(6))));
  CHECK(spaces.IsForgotten("/over/a"));
  CHECK(spaces.IsForgotten("/0"));
  CHECK(spaces.IsForgotten("/999"));
  CHECK_FALSE(spaces.IsForgotten("/live/a"));
}

TEST_CASE("a space that nobody uses and that holds nothing is not remembered") {
  Spaces spaces(kAfter);
  spaces.Use(1, {"/empty/a", "/full/a"});
  spaces.Use(2, {"/full/a"});
  spaces.Leave(1, At(absl::ZeroDuration()),
               [](const std::string& space) { return space == "/full"; });
  CHECK(spaces.size() == 1);
  spaces.Leave(2, At(absl::ZeroDuration()), Holds);
  CHECK(spaces.size() == 1);
  spaces.Use(3, {std::string(20000, 'n')});  // longer than a connection may have: it uses all
  CHECK(spaces.size() == 1);
}

TEST_CASE("a store without a limit of time forgets nothing") {
  Spaces spaces(absl::InfiniteDuration());
  spaces.Use(1, {"/run/a"});
  spaces.Leave(1, At(absl::ZeroDuration()), Holds);
  CHECK_FALSE(spaces.Forget(At(absl::Hours(1000000))));
}

}  // namespace
}  // namespace convene::rendezvous
