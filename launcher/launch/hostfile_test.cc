#include "launcher/launch/hostfile.h"

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using Hosts = std::vector<LaunchHost>;

Hosts Read(const std::string& text) {
  const auto hosts = ParseHostfile(text, "hosts");
  REQUIRE_OK(hosts);
  return *hosts;
}

void Bad(const std::string& text, const std::string& words) {
  INFO(text);
  CHECK_STATUS(ParseHostfile(text, "hosts"), absl::StatusCode::kInvalidArgument, words);
}

Hosts Choose(const HostChoice& choice) {
  const auto hosts = ChooseHosts(Read("n1 slots=4\nn2 slots=4\nu@n3 slots=2\n"), choice);
  REQUIRE_OK(hosts);
  return *hosts;
}

void BadChoice(const HostChoice& choice, const std::string& words) {
  CHECK_STATUS(ChooseHosts(Read("n1 slots=4\nn2\n"), choice), absl::StatusCode::kInvalidArgument,
               words);
}

TEST_CASE("DeepSpeed's and MPI's files, with comments and blank lines, keep their order") {
  CHECK(Read("# mine\n\nworker-2 slots=8\nworker-1\tslots=4  # old\r\n") ==
        Hosts{{"worker-2", 8, {}}, {"worker-1", 4, {}}});
  CHECK(Read("a:8\nb slots=2 max_slots=4\nc max-slots=3 slots=1") ==
        Hosts{{"a", 8, {}}, {"b", 2, {}}, {"c", 1, {}}});
  CHECK(Read("user@a\nfd77::1\nfd77::2 slots=2") ==
        Hosts{{"user@a", {}, {}}, {"fd77::1", {}, {}}, {"fd77::2", 2, {}}});
  CHECK(HostOf({"user@a", {}, {}}) == "a");
}

TEST_CASE("repeated names are slots, as PBS writes them") {
  CHECK(Read("n1\nn1\nn2\nn1\n") == Hosts{{"n1", 3, {}}, {"n2", 1, {}}});
}

TEST_CASE("LSF's pairs") {
  const auto hosts = ParseLsfHosts("h1 4 h2 2 ");
  REQUIRE_OK(hosts);
  CHECK(*hosts == Hosts{{"h1", 4, {}}, {"h2", 2, {}}});
  CHECK_STATUS(ParseLsfHosts("h1 4 h2"), absl::StatusCode::kInvalidArgument, "LSB_MCPU_HOSTS=h1");
  CHECK_STATUS(ParseLsfHosts("h1 h2"), absl::StatusCode::kInvalidArgument, "\"h2\" is no count");
}

TEST_CASE("a bad line is named with its number") {
  Bad("a slots=1\n\na slots=2\n", "hosts, line 3: the host a is there twice");
  Bad("a slots=1\na\n", "hosts, line 2: the host a is there twice");
  Bad("a slots=0", "line 1: \"0\" is no count of slots");
  Bad("a slots=x", "\"x\" is no count");
  Bad("a:b", "\"b\" is no count");
  Bad("a gpus=3", "\"gpus=3\" is not understood");
  Bad("a slots=1 slots=2", "\"slots=2\" is not understood");
  Bad("-oProxyCommand=x", "is no host name");
  Bad("$(reboot)", "is no host name");
  Bad("# none\n", "hosts: no host is in it");
}

TEST_CASE("--include keeps hosts and slots, in the list's order") {
  CHECK(Choose({.include = "n2:0,2@n1"}) == Hosts{{"n1", 4, {}}, {"n2", 4, {0, 2}}});
  CHECK(Choose({.include = "u@n3:1@n1"}) == Hosts{{"n1", 4, {}}, {"u@n3", 2, {1}}});
}

TEST_CASE("--exclude leaves out hosts and slots") {
  CHECK(Choose({.exclude = "n1:0@u@n3"}) == Hosts{{"n1", 4, {1, 2, 3}}, {"n2", 4, {}}});
  CHECK(Choose({.exclude = "n1:0,1,2,3@n2"}) == Hosts{{"u@n3", 2, {}}});
}

TEST_CASE("--num-nodes and --num-gpus take the first ones") {
  CHECK(Choose({.num_nodes = 1}) == Hosts{{"n1", 4, {}}});
  CHECK(Choose({.num_nodes = 2, .num_gpus = 2}) == Hosts{{"n1", 4, {0, 1}}, {"n2", 4, {0, 1}}});
}

TEST_CASE("choices that the list does not have") {
  BadChoice({.include = "n1", .exclude = "n2"}, "leave one out");
  BadChoice({.include = "n1", .num_gpus = 2}, "use one of the two");
  BadChoice({.include = "n9"}, "--include: there is no host n9 in the list of hosts");
  BadChoice({.include = "n1@"}, "there is no host");
  BadChoice({.include = "n1:4"}, "whose slots are 0 to 3");
  BadChoice({.include = "n1:0@n1:1"}, "named twice");
  BadChoice({.exclude = "n1:x"}, "\"x\" is no slot");
  BadChoice({.exclude = "n2:0"}, "does not say how many slots n2 has");
  BadChoice({.exclude = "n1@n2"}, "leaves no host");
  BadChoice({.num_nodes = 3}, "the list has only 2");
  BadChoice({.num_gpus = 5}, "n1 has only 4");
}

}  // namespace
}  // namespace convene::launcher
