#include "launcher/plan/cluster_file.h"

#include "catch2/catch.hpp"
#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

constexpr char kOther[] = R"(
gpu: mi300x
memory_gib: 192
bf16_tflops: 1307
fp32_tflops: 163
fp8_tflops: 2615
memory_gb_per_s: 5300
link_gb_per_s: 448
node: 8
network: slingshot
network_gb_per_s: 25
)";

TEST_CASE("a GPU of the tables keeps what the file does not name") {
  const auto cluster = ParseCluster("gpu: h100\nnode: 4\nnetwork: roce-400\nmemory_gib: 94\n");
  REQUIRE_OK(cluster);
  CHECK(cluster->gpu.bf16 == 989e12);
  CHECK(cluster->gpu.memory_bytes == Approx(94.0 * 1024 * 1024 * 1024));
  CHECK(cluster->gpu.node == 4);
  CHECK(cluster->network.name == "roce-400");
  CHECK(cluster->network.bandwidth == 50e9);
}

TEST_CASE("another GPU and network are described whole") {
  const auto cluster = ParseCluster(kOther);
  REQUIRE_OK(cluster);
  CHECK(cluster->gpu.name == "mi300x");
  CHECK(cluster->gpu.fp8 == 2615e12);
  CHECK(cluster->gpu.domain == 8);
  CHECK(cluster->network.name == "slingshot");
  CHECK(cluster->network.bandwidth == 25e9);
}

TEST_CASE("a link has the file's name where the file has its bandwidth, and the table's else") {
  CHECK(ParseCluster("gpu: h100\nlink_gb_per_s: 26\n")->gpu.link.name == "the file's link");
  CHECK(ParseCluster("gpu: h100\nnode: 4\n")->gpu.link.name == "NVLink 4");
}

TEST_CASE("a network of the tables whose numbers the file changes has the file's name") {
  const auto name_of = [](const std::string& text) { return ParseCluster(text)->network.name; };
  CHECK(name_of("gpu: h100\nnetwork: ndr400\nnetwork_gb_per_s: 1\n") == "the file's network");
  CHECK(name_of("gpu: h100\nnetwork_microseconds: 50\n") == "the file's network");
  CHECK(name_of("gpu: h100\nnetwork: ndr400\n") == "ndr400");
  CHECK(name_of(kOther) == "slingshot");
}

TEST_CASE("a domain is a machine or more") {
  CHECK(ParseCluster("gpu: h100\nnode: 4\ndomain: 32\n")->gpu.domain == 32);
  CHECK(ParseCluster("gpu: h100\nnode: 4\ndomain: 4\n")->gpu.domain == 4);
  CHECK(ParseCluster("gpu: gb200\nnode: 128\n")->gpu.domain == 128);
  // Pairs with a bridge.
  CHECK_STATUS(ParseCluster("gpu: a100\nnode: 8\ndomain: 2\n"), absl::StatusCode::kInvalidArgument,
               "domain: 2 is below node: 8");
}

TEST_CASE("another network takes the place of one that the file lacks") {
  const std::string text = std::string(kOther).substr(0, std::string(kOther).find("network"));
  CHECK_STATUS(ParseCluster(text), absl::StatusCode::kInvalidArgument, "network is missing");
  REQUIRE_OK(ParseCluster(text, /*needs_network=*/false));
}

TEST_CASE("a file that is wrong is told the right form") {
  const auto says = [](const std::string& text, const std::string& words) {
    const auto cluster = ParseCluster(text);
    INFO(text);
    CHECK(absl::IsInvalidArgument(cluster.status()));
    CHECK_THAT(std::string(cluster.status().message()), Catch::Contains(words));
  };
  says("- a", "write a map");
  says("a: [", "no YAML");
  says("gpu: [h100]", "one value");
  says("node: 8", "gpu is missing");
  says("gpu: h100\nnodes: 4", "did you mean node?");
  says("gpu: h100\nnode: -4", "no number above 0");
  says("gpu: h100\nnode: many", "no number above 0");
  says("gpu: h100\nbf16_tflops: 989e12",
       "bf16_tflops: 989e12 is too large; its unit is in its name");
  says("gpu: h100\nnode: 2.7", "node: 2.7 is no whole number");
  says("gpu: h100\nnode: 4\nnode: 8", "node stands there twice");
  says("gpu: mi300x\nnode: 8", "has to name its bf16_tflops");
  says("gpu: h100\nnetwork: slingshot", "network_gb_per_s");
  CHECK(absl::IsNotFound(ReadCluster("/nonexistent/cluster.yaml").status()));
}

}  // namespace
}  // namespace convene::launcher
