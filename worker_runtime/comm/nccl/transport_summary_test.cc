#include "worker_runtime/comm/nccl/transport_summary.h"

#include <catch2/catch.hpp>

namespace convene::worker {
namespace {

// Lines in the form in which NCCL writes them, with short host names and fewer of them. The sources
// are logs in NVIDIA/nccl's issue tracker, by number, and the format strings inside libnccl.so
// 2.28.9.

// #892, #1538 and 2.28.9's strings: one node with NVSwitch.
constexpr char kNvSwitchNode[] =
    "node:733:733 [0] NCCL INFO NET/IB : No device found.\n"
    "node:733:733 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>\n"
    "node:733:733 [0] NCCL INFO Using network Socket\n"
    "node:733:733 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)\n"
    "node:733:733 [0] NCCL INFO Channel 00/24 :    0   1   2   3\n"
    "node:733:733 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    "node:733:733 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    "node:733:733 [0] NCCL INFO Channel 00/1 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
    "node:733:733 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1\n"
    "node:733:733 [0] NCCL INFO NVLS comm 0x55c0 headRank 0 nHeads 4 nvlsRanks 4 buffSize "
    "1048576\n";

// #707, #1358 and #1814: two nodes over RoCE.
constexpr char kRoceNodes[] =
    "server1:730:605 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_3:1/RoCE [RO]; OOB "
    "ens3f0:10.158.112.21<0>\n"
    "server1:730:605 [1] NCCL INFO Using network IB\n"
    "server1:730:605 [1] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read\n"
    "server1:730:605 [1] NCCL INFO Channel 00/0 : 7[7] -> 0[0] [receive] via NET/IB/0/GDRDMA\n"
    "server1:730:605 [1] NCCL INFO Channel 00/0 : 1[1] -> 8[0] [send] via NET/IB/0/GDRDMA\n"
    "server1:730:605 [1] NCCL INFO Channel 01/0 : 1[1] -> 8[0] [send] via NET/IB/0(3)/GDRDMA\n"
    "server1:730:605 [1] NCCL INFO Channel 02/0 : 1[1] -> 8[0] [send] via NET/IB/1\n";

// #952 and #226: nodes without InfiniBand.
constexpr char kSocketNodes[] =
    "ip-172-31-0-11:453:453 [0] NCCL INFO NET/IB : No device found.\n"
    "ip-172-31-0-11:453:453 [0] NCCL INFO NET/Socket : Using [0]ens3:172.31.0.11<0> "
    "[1]ens4:172.31.0.12<0>\n"
    "ip-172-31-0-11:453:453 [0] NCCL INFO Channel 03/0 : 15[7] -> 6[6] [send] via NET/Socket/1\n"
    "ip-172-31-0-11:453:453 [0] NCCL INFO Channel 07/0 : 15[7] -> 6[6] [send] via NET/Socket/1\n";

// #1053 has the first line; 2.28.9's strings the form of the others.
constexpr char kSharedMemory[] =
    "axa:304:356 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>\n"
    "axa:304:356 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"
    "axa:304:356 [0] NCCL INFO Channel 01 : 0[0] -> 1[1] via SHM/CE/direct\n"
    "axa:304:356 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[2] via P2P/direct pointer\n";

TEST_CASE("NVLink inside a node") {
  const TransportSummary summary = SummarizeTransports(kNvSwitchNode, "2.28.9");
  CHECK(summary.line == "NCCL 2.28.9: 3 x P2P/CUMEM, NVLS");
  CHECK(summary.warning.empty());
}

TEST_CASE("InfiniBand between nodes, with the devices that carry it") {
  const TransportSummary summary = SummarizeTransports(kRoceNodes, "2.22.3");
  CHECK(summary.line ==
        "NCCL 2.22.3: 1 x P2P/IPC, 2 x NET/IB/GDRDMA over mlx5_0, 1 x NET/IB over mlx5_3");
  CHECK(summary.warning.empty());
}

TEST_CASE("sockets between nodes are warned of") {
  const TransportSummary summary = SummarizeTransports(kSocketNodes, "2.18.5");
  CHECK(summary.line == "NCCL 2.18.5: 2 x NET/Socket over ens4");
  CHECK_THAT(summary.warning, Catch::StartsWith("GPU traffic goes through TCP sockets over ens4") &&
                                  Catch::Contains("no InfiniBand or RoCE device was found"));
}

TEST_CASE("sockets beside an unused InfiniBand device are warned of by its name") {
  const std::string log = std::string(kSocketNodes) +
                          "n:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_2:1/IB ; OOB ib0:10.1.1.1<0>";
  CHECK_THAT(SummarizeTransports(log, "2.28.9").warning,
             Catch::Contains("although there is mlx5_2: see NCCL_NET, NCCL_IB_DISABLE"));
}

TEST_CASE("sockets that were asked for are not taken for a missing InfiniBand device") {
  CHECK_THAT(SummarizeTransports("n:1:1 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via "
                                 "NET/Socket/0",
                                 "2.28.9")
                 .warning,
             Catch::Contains("did not look for InfiniBand or RoCE; see NCCL_NET") &&
                 !Catch::Contains("was found"));
}

TEST_CASE("shared memory is one transport, whatever copies into it") {
  const TransportSummary summary = SummarizeTransports(kSharedMemory, "2.28.9");
  CHECK(summary.line == "NCCL 2.28.9: 2 x SHM, 1 x P2P/direct pointer");
  CHECK(summary.warning.empty());
}

TEST_CASE("a plugin's network is named as it calls itself") {
  // aws-ofi-nccl, and Mellanox's plugin as in #1814.
  CHECK(SummarizeTransports("n:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS "
                            "Libfabric/0/GDRDMA\n"
                            "n:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via "
                            "NET/IBext_v8/2\n",
                            "2.28.9")
            .line == "NCCL 2.28.9: 1 x NET/AWS Libfabric/GDRDMA, 1 x NET/IBext_v8");
}

// #1105, sglang#3820, and 2.28.9's strings: nodes that do not reach each other where NCCL tries it.
TEST_CASE("a failure is explained by the interface and the last warnings, each once") {
  const std::string log =
      "ps-8:796:796 [1] NCCL INFO Bootstrap : Using virbr0:192.168.122.1<0>\n"
      "ps-8:796:796 [1] NCCL INFO NET/IB : No device found.\n"
      "ps-8:796:822 [1] NCCL INFO socketPollConnect: connect to 192.168.1.9<54263> returned No "
      "route "
      "to host, retrying (1/34) after sleep for 100 msec\n"
      "\n"
      "ps-8:795:822 [0] include/socket.h:409 NCCL WARN Net : Connect to 192.168.1.9<54263> failed\n"
      "[2026-11-30 09:00:00] ps-8:795:822 [0] socket.cc:1 NCCL WARN first\n"
      "ps-8:795:822 [0] include/socket.h:409 NCCL WARN Net : Connect to 192.168.1.9<54263> failed\n"
      "ps-8:795:822 [0] NCCL INFO init.cc:1 -> 2\n";
  CHECK(ExplainFailure(log) ==
        "NCCL chose the network interface virbr0:192.168.122.1<0> "
        "(NCCL_SOCKET_IFNAME is how to choose); its last warnings: socketPollConnect: connect to "
        "192.168.1.9<54263> returned No route to host, retrying (1/34) after sleep for 100 msec; "
        "first; Net : Connect to "
        "192.168.1.9<54263> failed");
  CHECK(ExplainFailure("n:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>") ==
        "NCCL chose the network interface eth0:10.0.0.1<0> (NCCL_SOCKET_IFNAME is how to choose)");
  CHECK(ExplainFailure("n:1:1 [0] NCCL WARN Cuda failure 'out of memory'") ==
        "its last warnings: Cuda failure 'out of memory'");
  CHECK(ExplainFailure("").empty());
}

TEST_CASE("a log that says nothing gives a line that says so") {
  CHECK(SummarizeTransports("", "2.28.9").line == "NCCL 2.28.9: no channels in its log");
  CHECK(
      SummarizeTransports("NCCL INFO Channel via \n[]\nNCCL INFO NET/X : Using [", "2.28.9").line ==
      "NCCL 2.28.9: no channels in its log");
}

}  // namespace
}  // namespace convene::worker
