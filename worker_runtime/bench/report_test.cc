#include "worker_runtime/bench/report.h"

#include <set>
#include <string>
#include <utility>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/bench/sweep.h"

namespace convene::worker {
namespace {

using Links = std::vector<std::pair<int, int>>;

std::string ReadWith(const std::vector<std::string>& words, BenchFlags* flags) {
  FlagReader reader("convene bench", kBenchHelp);
  AddFlags(&reader, flags);
  const auto read = reader.Read(words, [](const std::string&) { return std::nullopt; });
  return read.ok() ? "" : std::string(read.status().message());
}

TEST_CASE("nccl-tests' flags and sizes") {
  BenchFlags flags;
  REQUIRE(
      ReadWith({"-b", "8", "-e", "128M", "-f", "2", "-n", "20", "-c", "1", "all_reduce"}, &flags)
          .empty());
  std::vector<int64_t> sizes = BenchSizes(flags);
  CHECK(sizes.size() == 25);
  CHECK(sizes.front() == 8);
  CHECK(sizes.back() == 128 << 20);
  flags = {};
  REQUIRE(ReadWith({"-b1K", "-e4K", "-i", "1K", "-d", "bfloat16", "-o", "max"}, &flags).empty());
  CHECK(BenchSizes(flags) == std::vector<int64_t>{1024, 2048, 3072, 4096});
  CHECK(flags.dtype == DType::kBFloat16);
  CHECK(flags.op == ReduceOp::kMax);
  // A factor near 1 still goes on.
  flags = {};
  REQUIRE(ReadWith({"-b1", "-e5", "-f", "1.1"}, &flags).empty());
  CHECK(BenchSizes(flags) == std::vector<int64_t>{1, 2, 3, 4, 5});
}

TEST_CASE("flags that cannot be meant are refused") {
  const auto refused = [](const std::vector<std::string>& words) {
    BenchFlags flags;
    return ReadWith(words, &flags);
  };
  CHECK(refused({"allreduce"}).find("write all_reduce, all_gather") != std::string::npos);
  CHECK(refused({"-b", "2M", "-e", "1M"}).find("--maxbytes 1048576") != std::string::npos);
  CHECK(refused({"-b", "0"}).find("at least 1") != std::string::npos);
  CHECK(refused({"-b", "1", "-e", "1G", "-i", "1"}).find("--stepbytes 1") != std::string::npos);
  CHECK(refused({"--pairs", "-e", "8G"}).find("at most 4G") != std::string::npos);
  CHECK(refused({"--pairs", "-b", "1", "-e", "3"}).find("at least 4") != std::string::npos);
  CHECK(refused({"--json", "--compare", "a.json"}).find("do not go together") != std::string::npos);
  CHECK(refused({"-T", "0"}).find("at least 0.001") != std::string::npos);
}

BenchResult SomeResult() {
  return {.ranks = 4,
          .hosts = {"a", "a", "b", "c\x1b"},
          .transport = "Gloo",
          .device = "CPU, 2 threads",
          .rows = {{"all_reduce", 4000000, 1000000, 0.001, 0}, {"broadcast", 8, 2, 1e-5, {}}}};
}

PairTable Table(int size, double usual) {
  PairTable table = {.members = {}, .bytes = 1 << 20};
  for (int i = 0; i < size; ++i) table.members.push_back("n" + std::to_string(i));
  table.bytes_per_second.assign(size * size, usual);
  table.latency_seconds.assign(size * size, 2e-5);
  return table;
}

void SetLink(PairTable* table, int from, int to, double value) {
  const size_t size = table->members.size();
  table->bytes_per_second[from * size + to] = table->bytes_per_second[to * size + from] = value;
}

TEST_CASE("the lines are nccl-tests'") {
  BenchResult result = SomeResult();
  const BenchFlags flags;
  CHECK(BenchHead(result, flags).find("a (ranks 0-1), b (rank 2), c? (rank 3)") !=
        std::string::npos);
  // 4 MB in 1 ms are 4 GB/s, and 1.5 times that on the bus of four ranks.
  CHECK(BenchLine(result.rows[0], result, flags) ==
        " all_reduce           4000000      1000000     float    sum    -1     1000.00     4.000   "
        "  6.000       0\n");
  CHECK(BenchLine(result.rows[1], result, flags).find(" none     0 ") != std::string::npos);
  CHECK(BenchLine(result.rows[1], result, flags).find("N/A\n") != std::string::npos);
  const BenchRow gathered = {"all_gather", 1024, 256, 0.001, 0};
  CHECK(BenchLine(gathered, result, flags).find(" 1024           64 ") != std::string::npos);
  CHECK(BenchFoot(result) == "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.0004\n");
  result.rows[0].wrong = 3;
  CHECK(BenchFoot(result).find("values : 3 FAILED") != std::string::npos);
}

TEST_CASE("a slow node, a slow link, and nothing slow") {
  for (const int size : {3, 4, 9, 64}) {
    PairTable table = Table(size, 1e10);
    CHECK(FindSlowSpots(table).members.empty());
    CHECK(FindSlowSpots(table).links.empty());
    SetLink(&table, 0, size - 1, 6e9);
    CHECK(FindSlowSpots(table).members.empty());
    CHECK(FindSlowSpots(table).links == Links{{0, size - 1}});
    CHECK(PairsText(table).find("# SLOW: the link n0 - n" + std::to_string(size - 1) + ": 6.000") !=
          std::string::npos);
    for (int other = 0; other < size; ++other) {
      if (other != 1) SetLink(&table, 1, other, 5e9);
    }
    SetLink(&table, 0, size - 1, 1e10);
    CHECK(FindSlowSpots(table).members == std::vector<int>{1});
    CHECK(FindSlowSpots(table).links.empty());
    CHECK(PairsText(table).find("# SLOW: n1: most of its links") != std::string::npos);
    // Among them one link is far slower still.
    SetLink(&table, 1, size - 1, 1e9);
    CHECK(FindSlowSpots(table).members == std::vector<int>{1});
    CHECK(FindSlowSpots(table).links == Links{{1, size - 1}});
  }
  // Two racks: the fault is no member's.
  PairTable racks = Table(4, 4e9);
  SetLink(&racks, 0, 1, 1e10);
  SetLink(&racks, 2, 3, 1e10);
  CHECK(FindSlowSpots(racks).is_uneven);
  CHECK(FindSlowSpots(racks).members.empty());
  CHECK(FindSlowSpots(racks).links.empty());
  CHECK(PairsText(racks).find("differ by place") != std::string::npos);
  CHECK(PairsText(racks).find("SLOW") == std::string::npos);
  CHECK(PairsText(racks).find("No link") == std::string::npos);
  // Two members have one link, and nothing to compare it with.
  CHECK(FindSlowSpots(Table(2, 1)).members.empty());
  CHECK(FindSlowSpots(Table(1, 1)).links.empty());
}

TEST_CASE("a result survives its file; a file with a fault is refused by its place") {
  BenchResult result = SomeResult();
  result.hosts[3] = "c";
  CHECK(*ParseBenchJson(BenchJson(result)) == result);
  result.memory_bytes = 1e9;
  result.compute = {{kProduct, DType::kBFloat16, 64, 256, 1e9, 1e6, 0.25},
                    {kPass, DType::kFloat32, 64, 256, 0, 1e6, 0.125}};
  CHECK(*ParseBenchJson(BenchJson(result)) == result);
  result.pairs = Table(3, 1.25e9);
  CHECK(*ParseBenchJson(BenchJson(result)) == result);
  const std::string good = BenchJson(result);
  const auto fault = [&](const std::string& old, const std::string& with) {
    std::string bad = good;
    bad.replace(bad.find(old), old.size(), with);
    return std::string(ParseBenchJson(bad).status().message());
  };
  CHECK(fault("\"ranks\":4", "\"ranks\":0").find("ranks") != std::string::npos);
  CHECK(fault("\"seconds\":0.001", "\"seconds\":0").find("rows[0].seconds") != std::string::npos);
  CHECK(fault("\"seconds\":0.25", "\"seconds\":0").find("compute[0].seconds") != std::string::npos);
  CHECK(fault("\"flops\":1000000000", "\"flops\":0").find("compute[0].flops") != std::string::npos);
  CHECK(fault("\"bf16\"", "\"fp16\"").find("not fp32 or bf16") != std::string::npos);
  CHECK(fault("\"members\":[\"n0\",", "\"members\":[").find("pairs.bytes_per_second") !=
        std::string::npos);
  CHECK_FALSE(ParseBenchJson(good.substr(0, good.size() / 2)).ok());
}

TEST_CASE("two runs side by side") {
  BenchResult before = SomeResult(), now = SomeResult();
  now.rows[0].seconds = 0.002;
  const std::string text = ComparisonText(before, now);
  CHECK(text.find(" all_reduce           4000000        6.000        3.000     0.50x  slower\n") !=
        std::string::npos);
  CHECK(text.find("broadcast") != std::string::npos);
  CHECK(text.find("another") == std::string::npos);
  now.ranks = 2;
  CHECK(ComparisonText(before, now).find("number of ranks: 4, now 2") != std::string::npos);
  before.pairs = Table(2, 1e9);
  now.pairs = Table(2, 2e9);
  CHECK(ComparisonText(before, now)
            .find("# pair                         then (GB/s)   now (GB/s)  now/then\n"
                  " n0 - n1                             1.000        2.000     2.00x\n") !=
        std::string::npos);
  std::swap(now.pairs->members[0], now.pairs->members[1]);
  CHECK(ComparisonText(before, now).find(" n0 - n1 ") != std::string::npos);
  now.pairs->members = {"a", "b"};
  now.rows = {{"all_reduce", 12, 3, 0.001}, {"broadcast", 64, 16, 0.001}};
  CHECK(ComparisonText(before, now)
            .find("none of these operations at these sizes.\n# The saved run has none of these "
                  "pairs.\n") != std::string::npos);
  CHECK(ComparisonText(before, now).find("now/then") == std::string::npos);
}

TEST_CASE("another number of ranks cuts the same size a little otherwise") {
  BenchResult before = SomeResult(), now = SomeResult();
  before.ranks = 8;
  before.rows = {{"all_reduce", 1024, 256, 0.001}, {"all_reduce", 2048, 512, 0.001}};
  now.ranks = 7;
  now.rows = {{"all_reduce", 1008, 252, 0.001},
              {"all_reduce", 2044, 511, 0.001},
              {"all_reduce", 4088, 1022, 0.001},
              {"broadcast", 1024, 256, 0.001}};
  const std::string text = ComparisonText(before, now);
  CHECK(text.find(" all_reduce              1008 ") != std::string::npos);
  CHECK(text.find(" all_reduce              2044 ") != std::string::npos);
  CHECK(text.find("4088") == std::string::npos);
  CHECK(text.find("broadcast") == std::string::npos);
  CHECK(text.find("none of these") == std::string::npos);
  // The same ranks cut sizes alike: another size is another row.
  now.ranks = 8;
  CHECK(ComparisonText(before, now).find("1008") == std::string::npos);
}

TEST_CASE("two runs' arithmetic side by side, and operations of one rank") {
  BenchResult before = SomeResult(), now = SomeResult();
  before.ranks = now.ranks = 1;
  before.compute = {{kProduct, DType::kBFloat16, 64, 256, 1e9, 1e6, 0.25},
                    {kPass, DType::kFloat32, 64, 256, 0, 1e6, 0.125}};
  now.compute = before.compute;
  now.compute[0].seconds = 0.125;
  std::string text = ComparisonText(before, now);
  CHECK(text.find("# compute   type   rows  width then (GFLOP/s) now (GFLOP/s)  now/then\n"
                  " product   bf16     64    256        4.000        8.000     2.00x\n") !=
        std::string::npos);
  CHECK(text.find(" pass      fp32     64    256        0.008        0.008     1.00x\n") !=
        std::string::npos);
  CHECK(text.find("nan") == std::string::npos);
  now.compute[0].rows = now.compute[1].rows = 65;
  CHECK(ComparisonText(before, now).find("none of this arithmetic") != std::string::npos);
}

TEST_CASE("each two members meet once, and nobody meets two at a time") {
  for (const int size : {1, 2, 3, 4, 7, 10}) {
    std::set<std::pair<int, int>> met;
    for (int round = 0; round < PairRounds(size); ++round) {
      for (int own = 0; own < size; ++own) {
        const int partner = PartnerOf(own, size, round);
        REQUIRE(partner >= 0);
        REQUIRE(partner < size);
        CHECK(PartnerOf(partner, size, round) == own);
        if (partner > own) CHECK(met.emplace(own, partner).second);
      }
      CHECK(PartnerOf(size + 3, size, round) == size + 3);
    }
    CHECK(static_cast<int>(met.size()) == size * (size - 1) / 2);
  }
}

}  // namespace
}  // namespace convene::worker
