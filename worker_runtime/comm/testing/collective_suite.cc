#include "worker_runtime/comm/testing/collective_suite.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/testing/collective_testing.h"
#include "worker_runtime/device/elements.h"

namespace convene::worker::testing {
namespace {

// The type in which elements of type T are added.
template <typename T>
using SumOf = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

template <typename T>
std::vector<T> CopyOf(const std::vector<SumOf<T>>& values) {
  std::vector<T> copy(values.size());
  std::transform(values.begin(), values.end(), copy.begin(),
                 [](SumOf<T> value) { return static_cast<T>(value); });
  return copy;
}

// Numbers whose sum depends on the order of addition.
template <typename T>
std::vector<T> ValuesOf(int rank, size_t count) {
  std::vector<SumOf<T>> values(count);
  uint64_t state = 0x9E3779B97F4A7C15u * (rank + 1);
  for (SumOf<T>& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = std::ldexp(static_cast<SumOf<T>>(static_cast<int32_t>(state >> 32)),
                       static_cast<int>(state >> 59) - 40);
  }
  return CopyOf<T>(values);
}

// Whole numbers whose sum over 8 ranks is exact in bf16, whatever the order.
template <typename T>
std::vector<T> WholeNumbersOf(int rank, size_t count) {
  std::vector<SumOf<T>> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<SumOf<T>>((i * 7 + rank * 5) % 31);
  return CopyOf<T>(values);
}

template <typename T>
using Source = std::vector<T> (*)(int rank, size_t count);

template <typename T>
std::vector<T> ReducedInRankOrder(Source<T> source, int size, size_t count, ReduceOp op) {
  std::vector<SumOf<T>> result(count);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<T> values = source(rank, count);
    for (size_t i = 0; i < count; ++i) {
      const auto value = static_cast<SumOf<T>>(values[i]);
      result[i] = rank == 0              ? value
                  : op == ReduceOp::kSum ? result[i] + value
                                         : std::max(result[i], value);
    }
  }
  return CopyOf<T>(result);
}

template <typename T>
class Buffer {
 public:
  Buffer(RankUnderTest& rank, const std::vector<T>& values)
      : rank_(rank),
        count_(values.size()),
        memory_(rank.place.allocate(std::max<size_t>(count_, 1) * sizeof(T))) {
    CONVENE_CHECK(rank.place.copy(values.data(), memory_.get(), count_ * sizeof(T)).ok());
  }
  Elements elements() const { return {memory_.get(), count_, kDTypeOf<T>}; }
  absl::StatusOr<std::vector<T>> Read() const {
    std::vector<T> values(count_);
    CONVENE_RETURN_IF_ERROR(rank_.place.copy(memory_.get(), values.data(), count_ * sizeof(T)));
    return values;
  }

 private:
  RankUnderTest& rank_;
  const size_t count_;
  const std::shared_ptr<void> memory_;
};

// Checks that both have the same bits in [begin, end).
template <typename T>
absl::Status ExpectSame(const Buffer<T>& buffer, const std::vector<T>& expected, size_t begin,
                        size_t end, absl::string_view what) {
  CONVENE_ASSIGN_OR_RETURN(const std::vector<T> found, buffer.Read());
  const auto bits = [](T value) { return absl::bit_cast<std::array<char, sizeof(T)>>(value); };
  for (size_t i = begin; i < end; ++i) {
    if (bits(found[i]) == bits(expected[i])) continue;
    return absl::InternalError(
        absl::StrCat(what, ", ", DTypeName(kDTypeOf<T>), ", element ", i, " of ", expected.size(),
                     ": ", static_cast<double>(SumOf<T>(found[i])), " in place of ",
                     static_cast<double>(SumOf<T>(expected[i]))));
  }
  return absl::OkStatus();
}

// Below and above the limits between algorithms, and no multiple of a group's size.
constexpr size_t kLargeCount = 17'001;
constexpr size_t kCounts[] = {0, 1, 1000, kLargeCount};
constexpr size_t kShards[] = {1, 5'503};

template <typename T>
absl::Status CheckAllReduce(RankUnderTest& rank, Source<T> source,
                            absl::Span<const size_t> counts) {
  Collective& group = rank.group;
  for (const size_t count : counts) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      const Buffer<T> buffer(rank, source(group.rank(), count));
      CONVENE_RETURN_IF_ERROR(group.AllReduce(buffer.elements(), op, rank.stream));
      CONVENE_RETURN_IF_ERROR(ExpectSame(buffer,
                                         ReducedInRankOrder(source, group.size(), count, op), 0,
                                         count, op == ReduceOp::kSum ? "a sum" : "a maximum"));
    }
  }
  return absl::OkStatus();
}

absl::Status AllReduceOfWholeNumbers(RankUnderTest& rank) {
  CONVENE_RETURN_IF_ERROR(CheckAllReduce<float>(rank, WholeNumbersOf<float>, kCounts));
  CONVENE_RETURN_IF_ERROR(CheckAllReduce<double>(rank, WholeNumbersOf<double>, kCounts));
  return CheckAllReduce<BFloat16>(rank, WholeNumbersOf<BFloat16>, kCounts);
}

absl::Status AllReduceInRankOrder(RankUnderTest& rank) {
  if (!rank.in_rank_order) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(CheckAllReduce<float>(rank, ValuesOf<float>, {kLargeCount}));
  CONVENE_RETURN_IF_ERROR(CheckAllReduce<double>(rank, ValuesOf<double>, {kLargeCount}));
  return CheckAllReduce<BFloat16>(rank, ValuesOf<BFloat16>, {kLargeCount});
}

// A sum in any order is within (n-1) roundings of the sum of absolute values of the exact one.
template <typename T>
absl::Status CheckSumIsShared(RankUnderTest& rank, double epsilon) {
  constexpr size_t kCount = kLargeCount;
  Collective& group = rank.group;
  const Buffer<T> buffer(rank, ValuesOf<T>(group.rank(), kCount));
  CONVENE_RETURN_IF_ERROR(group.AllReduce(buffer.elements(), ReduceOp::kSum, rank.stream));
  CONVENE_ASSIGN_OR_RETURN(const std::vector<T> own, buffer.Read());
  std::vector<double> exact(kCount), absolute(kCount);
  for (int peer = 0; peer < group.size(); ++peer) {
    const std::vector<T> values = ValuesOf<T>(peer, kCount);
    for (size_t i = 0; i < kCount; ++i) {
      const auto value = static_cast<double>(SumOf<T>(values[i]));
      exact[i] += value;
      absolute[i] += std::abs(value);
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    const double error = std::abs(static_cast<double>(SumOf<T>(own[i])) - exact[i]);
    if (error > group.size() * epsilon * absolute[i]) {
      return absl::InternalError(absl::StrCat("element ", i, " is off by ", error));
    }
  }
  CONVENE_RETURN_IF_ERROR(group.Broadcast(buffer.elements(), 0, rank.stream));
  return ExpectSame(buffer, own, 0, kCount, "rank 0's sum");
}

absl::Status SumsAreShared(RankUnderTest& rank) {
  CONVENE_RETURN_IF_ERROR(CheckSumIsShared<float>(rank, std::ldexp(1.0, -23)));
  return CheckSumIsShared<BFloat16>(rank, std::ldexp(1.0, -7));
}

template <typename T>
absl::Status CheckReduceScatter(RankUnderTest& rank, Source<T> source) {
  Collective& group = rank.group;
  for (const size_t shard : kShards) {
    const size_t count = shard * group.size();
    const Buffer<T> buffer(rank, source(group.rank(), count));
    CONVENE_RETURN_IF_ERROR(group.ReduceScatter(buffer.elements(), ReduceOp::kSum, rank.stream));
    CONVENE_RETURN_IF_ERROR(
        ExpectSame(buffer, ReducedInRankOrder(source, group.size(), count, ReduceOp::kSum),
                   group.rank() * shard, (group.rank() + 1) * shard, "a shard of the sum"));
  }
  return absl::OkStatus();
}

absl::Status ReduceScatterLeavesShards(RankUnderTest& rank) {
  CONVENE_RETURN_IF_ERROR(CheckReduceScatter<float>(rank, WholeNumbersOf<float>));
  CONVENE_RETURN_IF_ERROR(CheckReduceScatter<BFloat16>(rank, WholeNumbersOf<BFloat16>));
  if (!rank.in_rank_order) return absl::OkStatus();
  CONVENE_RETURN_IF_ERROR(CheckReduceScatter<float>(rank, ValuesOf<float>));
  return CheckReduceScatter<BFloat16>(rank, ValuesOf<BFloat16>);
}

template <typename T>
absl::Status CheckMoves(RankUnderTest& rank) {
  Collective& group = rank.group;
  for (const size_t shard : kShards) {
    const size_t count = shard * group.size();
    const std::vector<T> own = ValuesOf<T>(group.rank(), count);
    std::vector<T> gathered(count), exchanged(count), only_mine(count);
    for (int peer = 0; peer < group.size(); ++peer) {
      const std::vector<T> theirs = ValuesOf<T>(peer, count);
      const auto at = static_cast<ptrdiff_t>(peer * shard);
      std::copy_n(theirs.begin() + at, shard, gathered.begin() + at);
      std::copy_n(theirs.begin() + static_cast<ptrdiff_t>(group.rank() * shard), shard,
                  exchanged.begin() + at);
      if (peer == group.rank()) std::copy_n(own.begin() + at, shard, only_mine.begin() + at);
    }
    const Buffer<T> gather(rank, only_mine);
    CONVENE_RETURN_IF_ERROR(group.AllGather(gather.elements(), rank.stream));
    CONVENE_RETURN_IF_ERROR(ExpectSame(gather, gathered, 0, count, "all-gather"));

    const Buffer<T> input(rank, own);
    const Buffer<T> output(rank, std::vector<T>(count));
    CONVENE_RETURN_IF_ERROR(group.AllToAll(input.elements(), output.elements(), rank.stream));
    CONVENE_RETURN_IF_ERROR(ExpectSame(output, exchanged, 0, count, "all-to-all"));

    if (group.size() > 1) {
      CONVENE_RETURN_IF_ERROR(group.Shift(input.elements(), output.elements(), rank.stream));
      const int before = (group.rank() + group.size() - 1) % group.size();
      CONVENE_RETURN_IF_ERROR(ExpectSame(output, ValuesOf<T>(before, count), 0, count, "shift"));
    }

    const int root = group.size() / 2;
    CONVENE_RETURN_IF_ERROR(group.Broadcast(input.elements(), root, rank.stream));
    CONVENE_RETURN_IF_ERROR(ExpectSame(input, ValuesOf<T>(root, count), 0, count, "broadcast"));
  }
  return absl::OkStatus();
}

// Rank r sends (r + 2 p) % 4 rows to rank p: some pairs exchange none. Each row is its sender's
// number and the receiver's.
absl::Status UnevenPiecesReachTheirPlaces(RankUnderTest& rank) {
  Collective& group = rank.group;
  constexpr int64_t kColumns = 3;
  const auto rows = [](int from, int to) { return (from + 2 * to) % 4; };
  const auto fill = [](int from, int to) { return static_cast<float>(100 * from + to); };
  std::vector<int32_t> sent = {0}, received = {0};
  std::vector<float> own, expected;
  for (int peer = 0; peer < group.size(); ++peer) {
    sent.push_back(sent.back() + rows(group.rank(), peer));
    received.push_back(received.back() + rows(peer, group.rank()));
    own.resize(sent.back() * kColumns, fill(group.rank(), peer));
    expected.resize(received.back() * kColumns, fill(peer, group.rank()));
  }
  const Buffer<float> input(rank, own);
  const Buffer<float> output(rank, std::vector<float>(expected.size()));
  CONVENE_RETURN_IF_ERROR(group.AllToAllV(input.elements(), {sent.data(), kColumns},
                                          output.elements(), {received.data(), kColumns},
                                          rank.stream));
  return ExpectSame(output, expected, 0, expected.size(), "all-to-all-v");
}

absl::Status MovesReachTheirPlaces(RankUnderTest& rank) {
  CONVENE_RETURN_IF_ERROR(UnevenPiecesReachTheirPlaces(rank));
  CONVENE_RETURN_IF_ERROR(CheckMoves<float>(rank));
  return CheckMoves<BFloat16>(rank);
}

absl::Status OperationsFollowEachOther(RankUnderTest& rank) {
  Collective& group = rank.group;
  const Buffer<double> buffer(rank, std::vector<double>(1000, 1.0));
  double expected = 1;
  for (int i = 0; i < 10; ++i) {
    CONVENE_RETURN_IF_ERROR(group.AllReduce(buffer.elements(), ReduceOp::kSum, rank.stream));
    expected *= group.size();
  }
  CONVENE_RETURN_IF_ERROR(group.Barrier(rank.stream));
  CONVENE_RETURN_IF_ERROR(group.Check());
  return ExpectSame(buffer, std::vector<double>(1000, expected), 0, 1000, "ten sums");
}

// Each rank sends to the next rank, and receives from the one before.
absl::Status MessagesKeepTheirOrder(RankUnderTest& rank) {
  Collective& group = rank.group;
  if (group.size() < 2) return absl::OkStatus();
  constexpr int kMessages = 100;
  const int next = (group.rank() + 1) % group.size();
  const int previous = (group.rank() + group.size() - 1) % group.size();
  std::vector<float> numbers(kMessages);
  for (int i = 0; i < kMessages; ++i) numbers[i] = static_cast<float>(i);
  const Buffer<float> outgoing(rank, numbers);
  const Buffer<float> incoming(rank, std::vector<float>(kMessages, -1.0f));
  std::vector<PendingMessage> pending;
  for (int i = 0; i < kMessages; ++i) {
    CONVENE_ASSIGN_OR_RETURN(pending.emplace_back(),
                             group.Send(outgoing.elements().Slice(i, 1), next, rank.stream));
  }
  // A collective may run while messages are open.
  CONVENE_RETURN_IF_ERROR(group.Barrier(rank.stream));
  for (int i = 0; i < kMessages; ++i) {
    CONVENE_RETURN_IF_ERROR(Recv(group, incoming.elements().Slice(i, 1), previous, rank.stream));
  }
  for (const PendingMessage& send : pending) {
    CONVENE_RETURN_IF_ERROR(group.Wait(send, rank.stream));
  }
  return ExpectSame(incoming, numbers, 0, kMessages, "messages");
}

// 6 MB: more than any transport keeps on its way. Neighbours send to each other at the same time.
absl::Status LargeMessagesCross(RankUnderTest& rank) {
  Collective& group = rank.group;
  constexpr size_t kCount = 1'500'000;
  const int peer = group.rank() ^ 1;
  if (peer >= group.size()) return absl::OkStatus();
  const Buffer<float> outgoing(rank, WholeNumbersOf<float>(group.rank(), kCount));
  const Buffer<float> incoming(rank, std::vector<float>(kCount));
  CONVENE_ASSIGN_OR_RETURN(const PendingMessage sent,
                           group.Send(outgoing.elements(), peer, rank.stream));
  CONVENE_RETURN_IF_ERROR(Recv(group, incoming.elements(), peer, rank.stream));
  CONVENE_RETURN_IF_ERROR(group.Wait(sent, rank.stream));
  return ExpectSame(incoming, WholeNumbersOf<float>(peer, kCount), 0, kCount, "a large message");
}

// Neighbours post their receives and wait for their sends; nobody has waited for a receive yet.
absl::Status PostedReceivesFreeTheSenders(RankUnderTest& rank) {
  Collective& group = rank.group;
  constexpr size_t kCount = 1'500'000;
  const int peer = group.rank() ^ 1;
  if (peer >= group.size()) return absl::OkStatus();
  const Buffer<float> outgoing(rank, WholeNumbersOf<float>(group.rank(), kCount));
  const Buffer<float> incoming(rank, std::vector<float>(kCount));
  CONVENE_ASSIGN_OR_RETURN(const PendingMessage received,
                           group.StartRecv(incoming.elements(), peer, rank.stream));
  CONVENE_ASSIGN_OR_RETURN(const PendingMessage sent,
                           group.Send(outgoing.elements(), peer, rank.stream));
  CONVENE_RETURN_IF_ERROR(group.Wait(sent, rank.stream));
  CONVENE_RETURN_IF_ERROR(group.Wait(received, rank.stream));
  return ExpectSame(incoming, WholeNumbersOf<float>(peer, kCount), 0, kCount, "a large message");
}

constexpr SuiteCheck kSuite[] = {
    {"all-reduce of whole numbers is exact", false, AllReduceOfWholeNumbers},
    {"all-reduce gives the bits of the sum in rank order", false, AllReduceInRankOrder},
    {"every rank has the same sum", false, SumsAreShared},
    {"reduce-scatter leaves each rank its shard of the sum", false, ReduceScatterLeavesShards},
    {"all-gather, all-to-all and broadcast move values to their places", false,
     MovesReachTheirPlaces},
    {"operations queued one after another run so", false, OperationsFollowEachOther},
    {"messages arrive in the order in which they were sent", true, MessagesKeepTheirOrder},
    {"large messages in both directions do not wait for each other", true, LargeMessagesCross},
    {"a send is over once its receive has been started", true, PostedReceivesFreeTheSenders},
};

}  // namespace

DataPlace HostPlace() {
  return {.allocate =
              [](size_t bytes) {
                return std::shared_ptr<void>(std::malloc(bytes),
                                             [](void* data) { std::free(data); });
              },
          .copy =
              [](const void* from, void* to, size_t bytes) {
                if (bytes > 0) std::memcpy(to, from, bytes);
                return absl::OkStatus();
              }};
}

absl::Span<const SuiteCheck> CollectiveSuite() { return kSuite; }

}  // namespace convene::worker::testing
