#include "launcher/cluster/host_list.h"

#include "absl/strings/str_join.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

std::string Hosts(const std::string& list) {
  const auto hosts = ExpandHostList(list);
  return hosts.ok() ? absl::StrJoin(*hosts, " ") : std::string(hosts.status().message());
}

TEST_CASE("a list is expanded as scontrol show hostnames does it") {
  CHECK(Hosts("login") == "login");
  CHECK(Hosts("b,a,b") == "b a b");
  CHECK(Hosts("x[08-11]") == "x08 x09 x10 x11");
  CHECK(Hosts("x[8-11]") == "x8 x9 x10 x11");
  CHECK(Hosts("x[001-2]") == "x001 x002");
  CHECK(Hosts("node[003-005,9],login") == "node003 node004 node005 node9 login");
  CHECK(Hosts("c[0-1]-[0-1]") == "c0-0 c0-1 c1-0 c1-1");
  CHECK(Hosts("n[1-2][3-4]") == "n13 n14 n23 n24");
  CHECK(Hosts("[1-2]") == "1 2");
}

TEST_CASE("text behind the last group, which scontrol refuses, is part of the name") {
  CHECK(Hosts("n[01-02,20]-ib0") == "n01-ib0 n02-ib0 n20-ib0");
  CHECK(Hosts("rack[2-3]n[1-2].cluster,head") ==
        "rack2n1.cluster rack2n2.cluster rack3n1.cluster rack3n2.cluster head");
}

TEST_CASE("what is no list is refused with the reason") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "a name is empty"},
      {",a", "a name is empty"},
      {"a,,b", "a name is empty"},
      {"a,", "a name is empty"},
      {"node[", "not closed"},
      {"node[01-04", "not closed"},
      {"node]", "no part of a name"},
      {"a b", "no part of a name"},
      {"node[]", "no number"},
      {"node[1,]", "no number"},
      {"node[1-]", "no number"},
      {"node[a-c]", "no number"},
      {"node[1-9:2]", "no number"},
      {"node[[1]]", "no number"},
      {"node[1-2-3]", "no number"},
      {"node[1234567890123456789]", "no number"},
      {"node[4-1]", "counts down"},
      {"node[0-65536]", "more than 65536 hosts"},
      {"node[0-999][0-999]", "more than 65536 hosts"},
      {"a[0-65535],b", "more than 65536 hosts"},
  };
  for (const auto& [list, why] : cases) {
    INFO(list);
    CHECK_STATUS(ExpandHostList(list), absl::StatusCode::kInvalidArgument, why);
  }
  CHECK_STATUS(ExpandHostList(std::string(256, 'n')), absl::StatusCode::kInvalidArgument,
               "longer than 255");
}

TEST_CASE("the longest list that Slurm itself allows is expanded") {
  const auto hosts = ExpandHostList("n[0-65535]");
  REQUIRE_OK(hosts);
  CHECK(hosts->size() == kMostHosts);
  CHECK(hosts->back() == "n65535");
}

}  // namespace
}  // namespace convene::launcher
