#include "launcher/doctor/compare.h"

#include <algorithm>

#include "tools/base/testing/status_testing.h"

namespace convene::launcher {
namespace {

using agent::Finding;
using agent::Severity;

struct Nodes {
  std::vector<pb::NodeReport> reports;
  std::vector<pb::NodeProbes> probes;
};

Nodes MakeNodes(int count) {
  Nodes nodes;
  for (int node = 0; node < count; ++node) {
    pb::NodeReport report;
    report.set_host("n" + std::to_string(node));
    report.set_address("10.0.0." + std::to_string(node));
    report.set_port(4000);
    report.add_addresses("127.0.0.1");
    report.add_addresses("10.9.0." + std::to_string(node));
    report.add_addresses(report.address());
    (*report.mutable_traits())["driver"] = "580.95";
    (*report.mutable_traits())["NCCL_DEBUG"] = "INFO";
    pb::Folder* const folder = report.add_folders();
    folder->set_path("/ckpt");
    folder->set_write_bytes_per_second(2e8);
    nodes.reports.push_back(report);
    pb::NodeProbes probes;
    for (int other = 0; other < count; ++other) {
      if (other == node) continue;
      pb::PeerProbe* const peer = probes.add_peers();
      peer->set_node(other);
      peer->set_round_trip_seconds(1e-4);
      peer->add_named_addresses("10.9.0." + std::to_string(other));
      peer->set_address_name("n" + std::to_string(other) + ".example.org");
      peer->set_clock_ahead_seconds(0.002);
    }
    probes.add_files_seen(count);
    nodes.probes.push_back(probes);
  }
  return nodes;
}

std::vector<Finding> Of(const Nodes& nodes) { return CompareNodes(nodes.reports, nodes.probes); }

// The findings that are not good.
std::vector<Finding> Bad(const Nodes& nodes) {
  std::vector<Finding> findings = Of(nodes);
  findings.erase(
      std::remove_if(findings.begin(), findings.end(),
                     [](const Finding& each) { return each.severity == Severity::kGood; }),
      findings.end());
  return findings;
}

TEST_CASE("nodes that are alike: a good finding for each subject") {
  const std::vector<Finding> findings = Of(MakeNodes(3));
  REQUIRE(findings.size() == 4);
  for (const Finding& finding : findings) CHECK(finding.severity == Severity::kGood);
  CHECK(findings[1].what.find("all 6 ways") != std::string::npos);
}

TEST_CASE("ways that no time was left to try are not told as open") {
  Nodes nodes = MakeNodes(3);
  nodes.probes[1].mutable_peers()->RemoveLast();
  CHECK(Bad(nodes).empty());
  CHECK(Of(nodes)[1].what.find("5 of 6 ways between the nodes are open") == 0);
}

TEST_CASE("another version, a variable that only some have") {
  Nodes nodes = MakeNodes(8);
  (*nodes.reports[5].mutable_traits())["driver"] = "570.10";
  for (pb::NodeReport& report : nodes.reports) {
    (*report.mutable_traits())["NCCL"] = report.host() == "n2" ? "2.28.9" : "2.27.3";
  }
  nodes.reports[7].mutable_traits()->erase("NCCL_DEBUG");
  (*nodes.reports[1].mutable_traits())["HOME"] = "/root";
  (*nodes.reports[1].mutable_traits())["NCCL_SOCKET_IFNAME"] = "eth1";
  const std::vector<Finding> findings = Bad(nodes);
  REQUIRE(findings.size() == 3);
  CHECK(findings[0].severity == Severity::kError);
  CHECK(findings[0].what == "NCCL: 2.27.3 on n0, n1, n3, n4 and 3 more, 2.28.9 on n2");
  CHECK(findings[1].what == "driver: 580.95 on n0, n1, n2, n3 and 3 more, 570.10 on n5");
  CHECK(findings[2].what == "NCCL_DEBUG: INFO on n0, n1, n2, n3 and 3 more, none on n7");
}

TEST_CASE("a library that only some nodes have is a warning: a program may bring its own") {
  Nodes nodes = MakeNodes(2);
  (*nodes.reports[1].mutable_traits())["NCCL"] = "2.28.9";
  REQUIRE(Bad(nodes).size() == 1);
  CHECK(Bad(nodes)[0].severity == Severity::kWarning);
  CHECK(Bad(nodes)[0].what == "NCCL: none on n0, 2.28.9 on n1");
}

TEST_CASE("a closed way is an error, an unknown name a note") {
  Nodes nodes = MakeNodes(3);
  nodes.probes[0].mutable_peers(1)->set_connect_error("Connection timed out");
  nodes.probes[1].mutable_peers(1)->set_connect_error("Connection timed out");
  nodes.probes[0].mutable_peers(1)->clear_address_name();  // one thing is enough to tell
  nodes.probes[2].mutable_peers(0)->set_name_error("no such host");
  const std::vector<Finding> findings = Bad(nodes);
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].severity == Severity::kError);
  CHECK(findings[0].what == "n2 (10.0.0.2 port 4000) does not answer n0, n1: Connection timed out");
  CHECK(findings[1].severity == Severity::kNote);
  CHECK(findings[1].what == "the name n0 is unknown on n2");
}

TEST_CASE("names both ways: a name leads to its node, an address has no other node's name") {
  Nodes nodes = MakeNodes(3);
  nodes.probes[0].mutable_peers(0)->set_named_addresses(0, "127.0.1.1");  // a copied /etc/hosts
  nodes.probes[2].mutable_peers(0)->set_address_name("n1");               // n0's
  nodes.probes[1].mutable_peers(1)->clear_address_name();                 // n2's
  std::vector<Finding> findings = Bad(nodes);
  REQUIRE(findings.size() == 3);
  CHECK(findings[0].severity == Severity::kWarning);
  CHECK(findings[0].what ==
        "the name n1 leads to 127.0.1.1 on n0, which is no address of that node");
  CHECK(findings[1].severity == Severity::kWarning);
  CHECK(findings[1].what == "the address 10.0.0.0 of n0 has the name n1 on n2");
  CHECK(findings[2].severity == Severity::kNote);
  CHECK(findings[2].what == "the addresses of n2 have no names on n1");

  // Where no time was left to look names up, nothing is known of them.
  nodes = MakeNodes(2);
  nodes.probes[0].mutable_peers(0)->clear_named_addresses();
  nodes.probes[0].mutable_peers(0)->clear_address_name();
  CHECK(Bad(nodes).empty());

  // A node of an older build tells no addresses: nothing is known against its name.
  nodes = MakeNodes(2);
  nodes.reports[1].clear_addresses();
  CHECK(Bad(nodes).empty());

  // The loopback's own address is no way to another machine.
  nodes = MakeNodes(2);
  nodes.probes[0].mutable_peers(0)->set_named_addresses(0, "127.0.0.1");
  CHECK(Bad(nodes).size() == 1);
  // On one machine it is the way to all nodes, and any name will do.
  for (pb::NodeReport& report : nodes.reports) report.set_address("127.0.0.1");
  nodes.probes[1].mutable_peers(0)->set_address_name("localhost");
  CHECK(Bad(nodes).empty());
}

TEST_CASE("the collective check: a row of figures, and an error for a wrong sum") {
  worker::BenchResult result;
  result.ranks = 4;
  result.transport = "NCCL";
  result.rows = {
      {.operation = "all_reduce", .bytes = 1 << 10, .count = 256, .seconds = 1e-5, .wrong = 0},
      {.operation = "all_reduce",
       .bytes = 16 << 20,
       .count = 4 << 20,
       .seconds = 0.01,
       .wrong = 0}};
  CHECK(CollectiveFinding(result).severity == Severity::kGood);
  CHECK(CollectiveFinding(result).what ==
        "4 ranks over NCCL, time and busbw: 1.0 KiB 0.01 ms 0.15 GB/s, 16.0 MiB 10 ms 2.52 GB/s");
  result.rows[0].wrong = 3;
  CHECK(CollectiveFinding(result).severity == Severity::kError);
  CHECK(CollectiveFinding(result).what.find("3 elements are wrong; 4 ranks") == 0);
}

TEST_CASE("slow links: one, none, and links that differ by place") {
  worker::PairTable table = {.members = {"a", "b", "c", "d"}, .bytes = 1 << 20};
  table.bytes_per_second.assign(16, 1e10);
  worker::BenchResult result = {.ranks = 4, .transport = "Gloo", .pairs = table};
  REQUIRE(LinkFindings(result).size() == 1);
  CHECK(LinkFindings(result)[0].what ==
        "usual speed 10.00 GB/s over Gloo, and none is much slower");
  result.pairs->bytes_per_second[1] = 1e9;
  CHECK(LinkFindings(result)[0].what == "slow link: a - b, 1.00 GB/s");
  // a and b are in one rack, c and d in another one.
  result.pairs->bytes_per_second.assign(16, 4e9);
  for (const int link : {1, 4, 11, 14}) result.pairs->bytes_per_second[link] = 1e10;
  REQUIRE(LinkFindings(result).size() == 1);
  CHECK(LinkFindings(result)[0].severity == Severity::kNote);
  CHECK(LinkFindings(result)[0].what.find("most links of more than half") == 0);
}

TEST_CASE("the clock that is off is named, whoever looks") {
  Nodes nodes = MakeNodes(4);
  // Node 1 is three seconds fast: it sees the others as slow.
  for (int node = 0; node < 4; ++node) {
    for (pb::PeerProbe& peer : *nodes.probes[node].mutable_peers()) {
      peer.set_clock_ahead_seconds(node == 1 ? -3 : peer.node() == 1 ? 3 : 0.001);
    }
  }
  const std::vector<Finding> findings = Bad(nodes);
  REQUIRE(findings.size() == 1);
  CHECK(findings[0].what == "the clock of n1 is 3.0 s fast");
  // Of three nodes each right one is seen by a right one and by the slow one.
  nodes = MakeNodes(3);
  for (int node = 0; node < 3; ++node) {
    for (pb::PeerProbe& peer : *nodes.probes[node].mutable_peers()) {
      peer.set_clock_ahead_seconds(node == 1 ? 3 : peer.node() == 1 ? -3 : 0.001);
    }
  }
  REQUIRE(Bad(nodes).size() == 1);
  CHECK(Bad(nodes)[0].what == "the clock of n1 is 3.0 s slow");
  // Of two nodes nobody knows which is right.
  nodes = MakeNodes(2);
  nodes.probes[0].mutable_peers(0)->set_clock_ahead_seconds(3);
  nodes.probes[1].mutable_peers(0)->set_clock_ahead_seconds(-3);
  CHECK(Bad(nodes).size() == 2);
}

TEST_CASE("folders: shared, each node's own, not coherent, slow") {
  Nodes nodes = MakeNodes(3);
  nodes.probes[2].set_files_seen(0, 2);
  CHECK(Bad(nodes)[0].severity == Severity::kError);
  CHECK(Bad(nodes)[0].what.find("/ckpt: n2 did not see") != std::string::npos);
  for (pb::NodeProbes& probes : nodes.probes) probes.set_files_seen(0, 1);
  CHECK(Bad(nodes)[0].what == "/ckpt is another folder on each node");
  nodes = MakeNodes(3);
  nodes.reports[1].mutable_folders(0)->set_write_bytes_per_second(1e6);
  CHECK(Bad(nodes)[0].severity == Severity::kNote);
  CHECK(Bad(nodes)[0].what.find("the slowest wrote 1 MB/s") != std::string::npos);
}

TEST_CASE("links that could not be measured: long packets are lost, or another reason") {
  const Finding lost = UnmeasuredLinks(
      "the command ended with exit code 1: [x] warning: the last collectives:\n 1 ms  #1\n"
      "convene bench: world all_reduce #17 (131072 B): rank 1 did not answer in time");
  CHECK(lost.severity == Severity::kError);
  CHECK(lost.what ==
        "a long message did not arrive: convene bench: world all_reduce #17 (131072 B): rank 1 did "
        "not answer in time");
  // A node that stands still is no lost packet.
  CHECK(UnmeasuredLinks("convene bench: world all_reduce #1 (8 B): rank 1 did not answer in time")
            .severity == Severity::kWarning);
  const Finding other = UnmeasuredLinks("n1 has no program convene-train");
  CHECK(other.severity == Severity::kWarning);
  CHECK(other.what == "they could not be measured: n1 has no program convene-train");
}

TEST_CASE("equal findings of nodes are told once, with their hosts") {
  Nodes nodes = MakeNodes(3);
  const auto add = [&](int node, Severity severity, const std::string& what) {
    pb::Finding* const finding = nodes.reports[node].add_findings();
    finding->set_severity(static_cast<int>(severity));
    finding->set_subject("limits");
    finding->set_what(what);
  };
  for (int node = 0; node < 3; ++node) add(node, Severity::kWarning, "ulimit -n is 1024");
  add(1, Severity::kError, "no memory");
  add(2, Severity::kGood, "fine");
  const std::vector<Finding> findings = MergeFindings(nodes.reports);
  REQUIRE(findings.size() == 2);
  CHECK(findings[0].what == "all nodes: ulimit -n is 1024");
  CHECK(findings[1].what == "n1: no memory");
}

TEST_CASE("NVLink domains that differ are usual, and cliques of one domain are not") {
  Nodes nodes = MakeNodes(3);
  const auto found = [&](const std::string& last_domain, const std::string& last_clique) {
    for (int node = 0; node < 3; ++node) {
      auto& traits = *nodes.reports[node].mutable_traits();
      traits[kDomainTrait] = node == 2 ? last_domain : "ab01";
      traits[kCliqueTrait] = node == 2 ? last_clique : "1";
    }
    std::vector<Finding> differ;
    for (const Finding& finding : CompareNodes(nodes.reports, nodes.probes)) {
      if (finding.subject == "nodes differ") differ.push_back(finding);
    }
    return differ;
  };
  CHECK(found("ab01", "1").empty());
  auto differ = found("ab02", "2");
  REQUIRE(differ.size() == 1);
  CHECK(differ[0].what == "NVLink domain: ab01 on n0, n1, ab02 on n2");
  CHECK(differ[0].severity == Severity::kNote);
  differ = found("ab01", "2");
  REQUIRE(differ.size() == 1);
  CHECK(differ[0].what == "NVLink clique: 1 on n0, n1, 2 on n2");
  CHECK(differ[0].severity == Severity::kWarning);
}

TEST_CASE("traits are the facts that nodes have in common") {
  agent::MachineFacts facts;
  facts.cpus = 8;
  facts.memory_bytes = int64_t{16} << 30;
  facts.interfaces = {{.name = "lo", .mtu = 65536, .addresses = {"127.0.0.1"}},
                      {.name = "eth0", .mtu = 9000, .megabits = 100000, .addresses = {"10.0.0.1"}}};
  facts.rdma_ports = {{.device = "mlx5_0", .state = "ACTIVE", .rate = "400 Gb/sec (4X NDR)"},
                      {.device = "mlx5_1", .state = "DOWN", .rate = "10 Gb/sec"}};
  facts.gpu_driver.gpus = {{.name = "H100"}, {.name = "H100"}};
  facts.environment = {{"NCCL_DEBUG", "INFO"}, {"PATH", "/bin"}, {"GLOO_SOCKET_IFNAME", "eth0"}};
  const auto traits = TraitsOf(facts, "10.0.0.1");
  CHECK(traits.at("MTU") == "9000");
  CHECK(traits.at("link speed") == "100000 Mbit/s");
  CHECK(traits.at("GPUs") == "2 x H100");
  CHECK(traits.at("RDMA ports") == "1 x 400 Gb/sec (4X NDR)");
  CHECK(traits.at("NCCL_DEBUG") == "INFO");
  CHECK(traits.find("PATH") == traits.end());
  CHECK(traits.find(kDomainTrait) == traits.end());
  auto& gpus = facts.gpu_driver.gpus;
  for (agent::Gpu& gpu : gpus) gpu.cluster_uuid = "ab01";
  gpus[0].clique = gpus[1].clique = 3;
  CHECK(TraitsOf(facts, "").at(kDomainTrait) == "ab01");
  CHECK(TraitsOf(facts, "").at(kCliqueTrait) == "3");
  gpus[1].clique = 4;
  CHECK_FALSE(TraitsOf(facts, "").contains(kCliqueTrait));
  for (agent::Gpu& gpu : gpus) gpu = {.name = "H100", .cluster_uuid = "0000"};
  CHECK_FALSE(TraitsOf(facts, "").contains(kDomainTrait));
  CHECK(traits.find("GLOO_SOCKET_IFNAME") == traits.end());
}

}  // namespace
}  // namespace convene::launcher
