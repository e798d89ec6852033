#include "launcher/launch/plan.h"

#include <map>
#include <optional>

#include "absl/strings/str_join.h"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

const std::vector<LaunchHost> kHosts = {{"u@n1", 8, {}}, {"n2", 4, {1, 3}}, {"n3", {}, {}}};

absl::StatusOr<LaunchPlan> Plan(std::vector<std::string> words,
                                const std::vector<LaunchHost>& hosts = kHosts,
                                const std::map<std::string, std::string>& variables = {},
                                const Variables& exported = {{"A", "x y"}}) {
  words.insert(words.end(), {"train.py", "--lr", "a b"});
  LaunchFlags flags;
  FlagReader reader("convene launch", "", {.variable_prefix = "PET_"});
  AddFlags(&reader, &flags);
  const auto read = reader.Read(words, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
  REQUIRE_OK(read);
  return MakeLaunchPlan(flags, hosts, {"/home/me", "/opt/convene", "abc", 20123, exported});
}

std::string Arguments(const LaunchPlan& plan, size_t host) {
  return absl::StrJoin(plan.tasks[host].arguments, " ");
}

void Bad(const std::vector<std::string>& words, const std::string& text) {
  CHECK_STATUS(Plan(words), absl::StatusCode::kInvalidArgument, text);
}

TEST_CASE("each host gets the same job, its own rank, and as many workers as it has slots") {
  const auto plan = Plan({"--max-restarts", "3", "--no-python", "-t", "3"});
  REQUIRE_OK(plan);
  const std::string common =
      "--max-restarts=3 --no-python --tee=3 --nnodes=3 --rdzv-id=abc --rdzv-endpoint=n1:20123 ";
  CHECK(Arguments(*plan, 0) == common +
                                   "--node-rank=0 --rdzv-conf=is_host=1 --nproc-per-node=8 "
                                   "-- train.py --lr a b");
  CHECK(Arguments(*plan, 1) == common +
                                   "--node-rank=1 --rdzv-conf=is_host=0 --nproc-per-node=2 "
                                   "-- train.py --lr a b");
  CHECK(Arguments(*plan, 2) == common + "--node-rank=2 --rdzv-conf=is_host=0 -- train.py --lr a b");
  CHECK(plan->fleet.hosts == std::vector<std::string>{"n1", "n2", "n3"});
  CHECK(plan->fleet.nodes_min == 3);
  CHECK(plan->fleet.first_serves);
  CHECK(absl::StrJoin(plan->commands[0], " ").find(" u@n1 exec '/opt/convene' launched") !=
        std::string::npos);
  CHECK(plan->tasks[1].name == "abc.1");
  CHECK(plan->tasks[1].directory == "/home/me");
}

TEST_CASE("chosen slots become CUDA_VISIBLE_DEVICES, there alone") {
  const auto plan = Plan({});
  REQUIRE_OK(plan);
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  CHECK(plan->tasks[0].variables == Pairs{{"A", "x y"}});
  CHECK(plan->tasks[1].variables == Pairs{{"A", "x y"}, {"CUDA_VISIBLE_DEVICES", "1,3"}});
}

TEST_CASE("flags that say it otherwise win") {
  const auto plan = Plan({"--nproc-per-node=2", "--nnodes=2:3", "--rdzv-endpoint=d:29400",
                          "--rdzv-id=mine", "--rdzv-conf=timeout=9", "--convene=convene"});
  REQUIRE_OK(plan);
  CHECK(Arguments(*plan, 1) ==
        "--nproc-per-node=2 --nnodes=2:3 --rdzv-endpoint=d:29400 --rdzv-id=mine "
        "--rdzv-conf=timeout=9 --node-rank=1 -- train.py --lr a b");
  CHECK(plan->fleet.nodes_min == 2);
  CHECK_FALSE(plan->fleet.first_serves);
  CHECK(plan->commands[1].back() == "exec 'convene' launched");
}

TEST_CASE("where the first host serves, its place is told whoever named it") {
  auto plan = Plan({});
  REQUIRE_OK(plan);
  CHECK_THAT(plan->reasons.back(), Catch::StartsWith("the nodes meet at n1:20123, which"));
  plan = Plan({"--rdzv-endpoint=n1:29400"});
  REQUIRE_OK(plan);
  CHECK_THAT(plan->reasons.back(), Catch::StartsWith("the nodes meet at n1:29400, which"));
}

TEST_CASE("a variable turns a switch on by any word that `convene run` takes") {
  const auto plan = Plan({}, kHosts, {{"PET_NO_PYTHON", "true"}, {"PET_OPEN_STORE", "0"}});
  REQUIRE_OK(plan);
  CHECK_THAT(Arguments(*plan, 0), Catch::StartsWith("--no-python --nnodes="));
}

TEST_CASE("hosts may meet at daemons that take turns") {
  const auto plan = Plan({"--rdzv-endpoint=d1,d2:7"});
  REQUIRE_OK(plan);
  CHECK_THAT(Arguments(*plan, 0), Catch::Contains("--rdzv-endpoint=d1,d2:7"));
  CHECK_FALSE(plan->fleet.first_serves);
}

TEST_CASE("hosts may look up where the daemons are, each for itself") {
  const auto plan = Plan({"--rdzv-endpoint=srv:_convene._tcp.x"});
  REQUIRE_OK(plan);
  CHECK_THAT(Arguments(*plan, 0), Catch::Contains("--rdzv-endpoint=srv:_convene._tcp.x"));
  CHECK_FALSE(plan->fleet.first_serves);
}

TEST_CASE("a number within what the hosts' unknown devices may allow is theirs to judge") {
  for (const std::string workers : {"gpu", "cpu", "xpu", "auto"}) {
    CHECK_OK(Plan({"--nproc-per-node=" + workers, "--warm-workers=2", "--debug-rank=7"}));
  }
}

TEST_CASE("the user's --rdzv-conf stays, and is_host in it wins") {
  auto plan = Plan({"--rdzv-conf=join_timeout=9"});
  REQUIRE_OK(plan);
  CHECK_THAT(Arguments(*plan, 0), Catch::Contains("--rdzv-conf=join_timeout=9,is_host=1"));
  plan = Plan({"--rdzv-conf=is_host=1"});
  REQUIRE_OK(plan);
  CHECK_THAT(Arguments(*plan, 2), !Catch::Contains("is_host=0"));
}

TEST_CASE("a token may lock the place that this command chose, if the user has named no secret") {
  CHECK(Plan({})->door == "n1:20123");
  CHECK(Plan({"--rdzv-id", "run7"})->run_id == "run7");
  CHECK(Plan({"--open-door"})->door.empty());
  // A daemon of the user's own may serve there, without a token.
  CHECK(Plan({"--rdzv-endpoint", "n1:29400"})->door.empty());
  CHECK(Plan({}, {{"n1", 2, {}}})->door.empty());
  for (const char* lock : {"CONVENE_JOIN_TOKEN", "CONVENE_JOIN_TOKEN_FILE", "CONVENE_TLS_CERT"}) {
    CHECK(Plan({}, kHosts, {}, {{lock, "of --export, or of .deepspeed_env"}})->door.empty());
  }
}

TEST_CASE("one host alone needs no place to meet") {
  const auto plan = Plan({}, {{"n1", 2, {}}});
  REQUIRE_OK(plan);
  CHECK(Arguments(*plan, 0) ==
        "--nnodes=1 --rdzv-id=abc --node-rank=0 --nproc-per-node=2 -- train.py --lr a b");
  CHECK_FALSE(plan->fleet.first_serves);
}

TEST_CASE("what cannot be is refused before a host is touched") {
  Bad({"--standalone"}, "--standalone is one node by itself");
  Bad({"--node-rank=1"}, "--node-rank is one node's");
  Bad({"--local-addr=x"}, "--local-addr is one node's");
  Bad({"--nnodes=4"}, "the job needs 4 nodes (--nnodes), and the list has only 3 host(s)");
  Bad({"--nnodes=2"}, "--num-nodes 2");
  Bad({"--nnodes=3:2"}, "MIN is larger than MAX");
  Bad({"--log-max-bytes=x"}, "--log-max-bytes");
  CHECK_OK(Plan({"--nnodes=2", "--spares=1"}));
}

}  // namespace
}  // namespace convene::launcher
