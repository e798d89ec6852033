#include "worker_runtime/bench/sweep.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/testing/test_worlds.h"
#include "worker_runtime/device/device.h"

namespace convene::worker {
namespace {

// A transport that changes one element of each result of one rank, or hands two shards over in the
// other's place.
class FaultyCollective : public Collective {
 public:
  enum class Fault { kOneElement, kShardsSwapped };
  FaultyCollective(std::unique_ptr<Collective> inner, Fault fault)
      : inner_(std::move(inner)), fault_(fault) {}

  const std::string& name() const override { return inner_->name(); }
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  absl::Status Call(const CollectiveCall& call, Stream& stream) override {
    const absl::Status status = inner_->Call(call, stream);
    if (!status.ok() || call.output.count == 0) return status;
    const absl::Span<float> data = call.output.As<float>();
    // Each rank keeps its own shard of a reduce_scatter.
    const size_t shard = data.size() / size();
    if (fault_ == Fault::kOneElement) {
      data[call.kind == CollectiveKind::kReduceScatter ? rank() * shard : 0] += 1;
    } else {
      std::swap_ranges(data.begin(), data.begin() + shard, data.begin() + shard);
    }
    return status;
  }
  absl::StatusOr<PendingMessage> Send(ConstElements data, int peer, Stream& stream) override {
    return inner_->Send(data, peer, stream);
  }
  absl::StatusOr<PendingMessage> StartRecv(Elements data, int peer, Stream& stream) override {
    return inner_->StartRecv(data, peer, stream);
  }
  absl::Status Wait(PendingMessage pending, Stream& stream) override {
    return inner_->Wait(pending, stream);
  }
  absl::Status Check() override { return inner_->Check(); }
  void Abort(absl::string_view why) override { inner_->Abort(why); }

 private:
  const std::unique_ptr<Collective> inner_;
  const Fault fault_;
};

using Body = std::function<absl::Status(Sweep&, int rank)>;

// A sweep on each of `ranks`, in threads; the error of the first that has one.
absl::Status OnRanks(
    int ranks, const BenchFlags& flags, const Body& body,
    const std::function<void(CommunicatorSet&)>& change = [](CommunicatorSet&) {}) {
  std::vector<CommunicatorSet> sets =
      testing::MakeSets(testing::Transport::kLoopback, {.dp = ranks});
  std::vector<absl::Status> ends(ranks);
  std::vector<Thread> threads;
  change(sets[ranks - 1]);
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back("rank", [&, rank] {
      const auto device = Device::Cpu();
      auto sweep = Sweep::Make(flags, sets[rank], *device, device->memory(), Clock::Real());
      ends[rank] = sweep.ok() ? body(**sweep, rank) : sweep.status();
    });
  }
  for (Thread& thread : threads) thread.Join();
  for (const absl::Status& end : ends) {
    if (!end.ok()) return end;
  }
  return absl::OkStatus();
}

BenchFlags SmallFlags(DType dtype, ReduceOp op) {
  BenchFlags flags;
  flags.most_bytes = 6000;
  flags.iterations = 2;
  flags.warmup_iterations = 1;
  flags.dtype = dtype;
  flags.op = op;
  flags.root = 1;
  return flags;
}

std::vector<BenchRow> RowsOfRank0(const BenchFlags& flags,
                                  const std::function<void(CommunicatorSet&)>& change,
                                  int ranks = 3) {
  std::vector<BenchRow> rows;
  CHECK_OK(OnRanks(
      ranks, flags,
      [&](Sweep& sweep, int rank) -> absl::Status {
        for (const std::string& operation : OperationNames()) {
          for (const int64_t bytes : {1, 8, 6000}) {
            CONVENE_ASSIGN_OR_RETURN(const BenchRow row, sweep.Time(operation, bytes));
            if (rank == 0) rows.push_back(row);
          }
        }
        return absl::OkStatus();
      },
      change));
  return rows;
}

TEST_CASE("every operation gives back the right elements, of every type and reduction") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      const auto rows = RowsOfRank0(SmallFlags(dtype, op), [](CommunicatorSet&) {});
      REQUIRE(rows.size() == 18);
      for (const BenchRow& row : rows) {
        CAPTURE(row.operation, row.bytes, DTypeName(dtype));
        CHECK(row.wrong == 0);
        CHECK(row.seconds > 0);
        CHECK(row.bytes == row.count * static_cast<int64_t>(SizeOf(dtype)));
        const bool is_whole = row.operation == "broadcast" || row.operation == "sendrecv";
        CHECK((is_whole || row.count % 3 == 0));
      }
    }
  }
}

TEST_CASE("one rank alone has no wrong element") {
  BenchFlags flags = SmallFlags(DType::kFloat32, ReduceOp::kSum);
  flags.root = 0;
  const auto rows = RowsOfRank0(
      flags, [](CommunicatorSet&) {}, 1);
  CHECK(rows.size() == 18);
  for (const BenchRow& row : rows) {
    CAPTURE(row.operation, row.bytes);
    CHECK(row.wrong == 0);
  }
}

TEST_CASE("a wrong element is counted, and shards in each other's place are seen") {
  using Fault = FaultyCollective::Fault;
  for (const Fault fault : {Fault::kOneElement, Fault::kShardsSwapped}) {
    const auto rows =
        RowsOfRank0(SmallFlags(DType::kFloat32, ReduceOp::kSum), [fault](CommunicatorSet& set) {
          set.world = std::make_unique<FaultyCollective>(std::move(set.world), fault);
        });
    for (const BenchRow& row : rows) {
      CAPTURE(row.operation, row.bytes);
      if (fault == Fault::kOneElement) CHECK(row.wrong == 1);
      // The sums of 500 elements in 251 values are the same in each other's place only by chance.
      const bool fills_one_shard = row.operation == "reduce_scatter";
      if (fault == Fault::kShardsSwapped && row.bytes == 6000 && !fills_one_shard) {
        CHECK(*row.wrong > 900);
      }
    }
  }
}

TEST_CASE("without --check nothing is counted") {
  BenchFlags flags = SmallFlags(DType::kFloat32, ReduceOp::kSum);
  flags.check = false;
  for (const BenchRow& row : RowsOfRank0(flags, [](CommunicatorSet&) {})) CHECK(!row.wrong);
}

TEST_CASE("pairs: each link of the members, and no other") {
  BenchFlags flags = SmallFlags(DType::kFloat32, ReduceOp::kSum);
  std::vector<PairTable> tables(5);
  // Ranks 1 and 3 share the nodes of 0 and 2.
  CHECK_OK(OnRanks(5, flags, [&](Sweep& sweep, int rank) -> absl::Status {
    CONVENE_ASSIGN_OR_RETURN(tables[rank], sweep.TimePairs({0, 2, 4}, {"a", "b", "c"}));
    return absl::OkStatus();
  }));
  for (const PairTable& table : tables) {
    CHECK(table == tables[0]);
    REQUIRE(table.bytes_per_second.size() == 9);
    for (int from = 0; from < 3; ++from) {
      for (int to = 0; to < 3; ++to) {
        CHECK((table.bytes_per_second[from * 3 + to] > 0) == (from != to));
        CHECK((table.latency_seconds[from * 3 + to] > 0) == (from != to));
      }
    }
  }
}

}  // namespace
}  // namespace convene::worker
