// One suite for every implementation of Collective.
#include "worker_runtime/comm/collective.h"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/collective_testing.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/comm/test_worlds.h"

namespace convene::worker {
namespace {

using testing::Group;
using testing::MakeGroup;
using testing::OnEveryRank;
using testing::Transport;

// The type in which elements of type T are added.
template <typename T>
using SumOf = std::conditional_t<std::is_same_v<T, BFloat16>, float, T>;

// Numbers whose sum depends on the order of addition.
template <typename T>
std::vector<T> ValuesOf(int rank, size_t count) {
  std::vector<T> values(count);
  uint64_t state = 0x9E3779B97F4A7C15u * (rank + 1);
  for (T& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<T>(std::ldexp(static_cast<SumOf<T>>(static_cast<int32_t>(state >> 32)),
                                      static_cast<int>(state >> 59) - 40));
  }
  return values;
}

template <typename T>
std::vector<T> ReducedInRankOrder(int size, size_t count, ReduceOp op) {
  std::vector<SumOf<T>> result(count);
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<T> values = ValuesOf<T>(rank, count);
    for (size_t i = 0; i < count; ++i) {
      const auto value = static_cast<SumOf<T>>(values[i]);
      result[i] = rank == 0              ? value
                  : op == ReduceOp::kSum ? result[i] + value
                                         : std::max(result[i], value);
    }
  }
  std::vector<T> rounded(count);
  std::transform(result.begin(), result.end(), rounded.begin(),
                 [](SumOf<T> value) { return static_cast<T>(value); });
  return rounded;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return false;
  // An empty vector may have no memory, which memcmp must not be given.
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

TEST_CASE("what is larger than a message goes in several") {
  for (const Transport transport : testing::kTransports) {
    for (const int size : {2, 3}) {
      INFO(ToString(transport) << ", " << size << " ranks");
      // 8 bytes: two floats; every shard ends with a message that is not full.
      Group group = MakeGroup(transport, size, {.message_bytes_max = 8});
      const size_t count = 5 * size;
      std::vector<std::vector<float>> reduced(size), gathered(size), sent(size);
      std::vector<absl::Status> statuses(size);
      OnEveryRank(group, [&](Collective& member, Stream& stream) {
        const int rank = member.rank();
        reduced[rank] = ValuesOf<float>(rank, count);
        gathered[rank].assign(count, static_cast<float>(rank));
        sent[rank].assign(count, static_cast<float>(rank));
        absl::Status& status = statuses[rank];
        status = member.AllReduce(absl::MakeSpan(reduced[rank]), ReduceOp::kSum, stream);
        if (status.ok()) status = member.AllGather(absl::MakeSpan(gathered[rank]), stream);
        if (status.ok()) status = member.Broadcast(absl::MakeSpan(sent[rank]), 1, stream);
      });
      for (int rank = 0; rank < size; ++rank) {
        REQUIRE_OK(statuses[rank]);
        CHECK(SameBits(reduced[rank], ReducedInRankOrder<float>(size, count, ReduceOp::kSum)));
        for (size_t i = 0; i < count; ++i) {
          const size_t owner = i / 5;
          CHECK(gathered[rank][i] == static_cast<float>(owner));
        }
        CHECK(sent[rank] == std::vector<float>(count, 1.0f));
      }
    }
  }
}

// What each rank saw.
template <typename T>
struct Seen {
  absl::Status status;
  std::vector<T> data;
};

// Below and above the limits between algorithms, and no multiple of a group's size.
const size_t kCounts[] = {0, 1, 1000, 30'011};
const int kSizes[] = {1, 2, 3, 4, 8};
// For another element type: the messages are the same, a group of each algorithm will do.
const int kFewSizes[] = {2, 3};

template <typename T>
void CheckAllReduce(Transport transport, int size) {
  Group group = MakeGroup(transport, size);
  for (const size_t count : kCounts) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      std::vector<Seen<T>> seen(size);
      OnEveryRank(group, [&](Collective& collective, Stream& stream) {
        Seen<T>& mine = seen[collective.rank()];
        mine.data = ValuesOf<T>(collective.rank(), count);
        mine.status = collective.AllReduce(absl::MakeSpan(mine.data), op, stream);
      });
      const std::vector<T> expected = ReducedInRankOrder<T>(size, count, op);
      for (const Seen<T>& rank : seen) {
        INFO(ToString(transport) << " size " << size << " count " << count);
        REQUIRE_OK(rank.status);
        REQUIRE(SameBits(rank.data, expected));
      }
    }
  }
}

TEST_CASE("all-reduce gives every rank the bits of the sum in rank order") {
  for (const Transport transport : testing::kTransports) {
    for (const int size : kSizes) CheckAllReduce<float>(transport, size);
    for (const int size : kFewSizes) {
      CheckAllReduce<double>(transport, size);
      CheckAllReduce<BFloat16>(transport, size);
    }
  }
}

TEST_CASE("a sum in bf16 is rounded once, after the last rank") {
  // 256 + 1 is a tie in bf16 (8 bits of fraction, the first unwritten) and goes back to 256 every
  // time; 256 + 1 + 1 is not.
  for (const Transport transport : testing::kTransports) {
    Group group = MakeGroup(transport, 3);
    std::vector<Seen<BFloat16>> seen(3);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      Seen<BFloat16>& mine = seen[collective.rank()];
      mine.data = {BFloat16(collective.rank() == 0 ? 256.0f : 1.0f)};
      mine.status = collective.AllReduce(absl::MakeSpan(mine.data), ReduceOp::kSum, stream);
    });
    for (const Seen<BFloat16>& rank : seen) {
      INFO(ToString(transport));
      REQUIRE_OK(rank.status);
      CHECK(static_cast<float>(rank.data[0]) == 258.0f);
    }
  }
}

TEST_CASE("a reduction longer than one piece gives the same bits") {
  constexpr size_t kCount = 2'500'001;  // two shards of about 5 MB: two pieces each
  const std::vector<float> expected = ReducedInRankOrder<float>(2, kCount, ReduceOp::kSum);
  for (const Transport transport : testing::kTransports) {
    Group group = MakeGroup(transport, 2);
    std::vector<Seen<float>> seen(2);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      Seen<float>& mine = seen[collective.rank()];
      mine.data = ValuesOf<float>(collective.rank(), kCount);
      mine.status = collective.AllReduce(absl::MakeSpan(mine.data), ReduceOp::kSum, stream);
    });
    for (const Seen<float>& rank : seen) {
      INFO(ToString(transport));
      CHECK_OK(rank.status);
      CHECK(SameBits(rank.data, expected));
    }
  }
}

template <typename T>
void CheckReduceScatter(Transport transport, int size) {
  Group group = MakeGroup(transport, size);
  for (const size_t shard : {1, 20'003}) {
    const size_t count = shard * size;
    std::vector<Seen<T>> seen(size);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      Seen<T>& mine = seen[collective.rank()];
      mine.data = ValuesOf<T>(collective.rank(), count);
      mine.status = collective.ReduceScatter(absl::MakeSpan(mine.data), ReduceOp::kSum, stream);
    });
    const std::vector<T> expected = ReducedInRankOrder<T>(size, count, ReduceOp::kSum);
    for (int rank = 0; rank < size; ++rank) {
      INFO(ToString(transport) << " size " << size << " shard " << shard);
      REQUIRE_OK(seen[rank].status);
      REQUIRE(std::memcmp(seen[rank].data.data() + rank * shard, expected.data() + rank * shard,
                          shard * sizeof(T)) == 0);
    }
  }
}

TEST_CASE("reduce-scatter leaves each rank its shard of the sum") {
  for (const Transport transport : testing::kTransports) {
    for (const int size : kSizes) CheckReduceScatter<float>(transport, size);
    for (const int size : kFewSizes) CheckReduceScatter<BFloat16>(transport, size);
  }
}

template <typename T>
void CheckMoves(Transport transport, int size) {
  Group group = MakeGroup(transport, size);
  for (const size_t shard : {1, 20'003}) {
    const size_t count = shard * size;
    const int root = size / 2;
    std::vector<Seen<T>> gathered(size), exchanged(size), broadcast(size);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      const int rank = collective.rank();
      const std::vector<T> own = ValuesOf<T>(rank, count);
      gathered[rank].data.resize(count);
      std::copy_n(own.begin() + rank * shard, shard, gathered[rank].data.begin() + rank * shard);
      gathered[rank].status = collective.AllGather(absl::MakeSpan(gathered[rank].data), stream);
      exchanged[rank].data.resize(count);
      exchanged[rank].status = collective.AllToAll(absl::MakeConstSpan(own),
                                                   absl::MakeSpan(exchanged[rank].data), stream);
      broadcast[rank].data = own;
      broadcast[rank].status =
          collective.Broadcast(absl::MakeSpan(broadcast[rank].data), root, stream);
    });
    const auto same_shard = [&](const std::vector<T>& data, int at, const std::vector<T>& source,
                                int from) {
      return std::memcmp(data.data() + at * shard, source.data() + from * shard,
                         shard * sizeof(T)) == 0;
    };
    for (int rank = 0; rank < size; ++rank) {
      INFO(ToString(transport) << " size " << size << " shard " << shard << " rank " << rank);
      REQUIRE_OK(gathered[rank].status);
      REQUIRE_OK(exchanged[rank].status);
      REQUIRE_OK(broadcast[rank].status);
      REQUIRE(SameBits(broadcast[rank].data, ValuesOf<T>(root, count)));
      for (int peer = 0; peer < size; ++peer) {
        const std::vector<T> theirs = ValuesOf<T>(peer, count);
        REQUIRE(same_shard(gathered[rank].data, peer, theirs, peer));
        REQUIRE(same_shard(exchanged[rank].data, peer, theirs, rank));
      }
    }
  }
}

TEST_CASE("all-gather, all-to-all and broadcast move values to their places") {
  for (const Transport transport : testing::kTransports) {
    for (const int size : kSizes) CheckMoves<float>(transport, size);
    for (const int size : kFewSizes) CheckMoves<BFloat16>(transport, size);
  }
}

template <typename T>
void CheckMaximumKeepsNan(Transport transport) {
  Group group = MakeGroup(transport, 3);
  for (int sick = 0; sick < 3; ++sick) {
    std::vector<Seen<T>> seen(3);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      Seen<T>& mine = seen[collective.rank()];
      const float value = collective.rank() == sick ? std::numeric_limits<float>::quiet_NaN()
                                                    : static_cast<float>(collective.rank());
      mine.data = {static_cast<T>(value), static_cast<T>(1.0f)};
      mine.status = collective.AllReduce(absl::MakeSpan(mine.data), ReduceOp::kMax, stream);
    });
    for (const Seen<T>& rank : seen) {
      REQUIRE_OK(rank.status);
      CHECK(std::isnan(static_cast<float>(rank.data[0])));
      CHECK(static_cast<float>(rank.data[1]) == 1.0f);
    }
  }
}

TEST_CASE("a maximum keeps a NaN of any rank") {
  for (const Transport transport : testing::kTransports) {
    CheckMaximumKeepsNan<float>(transport);
    CheckMaximumKeepsNan<BFloat16>(transport);
  }
}

TEST_CASE("nobody passes a barrier before everybody has come") {
  for (const Transport transport : testing::kTransports) {
    Group group = MakeGroup(transport, 4);
    std::atomic<int> arrived = 0;
    std::vector<int> arrived_when_passed(4);
    std::vector<absl::Status> statuses(4);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      ++arrived;
      statuses[collective.rank()] = collective.Barrier(stream);
      arrived_when_passed[collective.rank()] = arrived;
    });
    for (const absl::Status& status : statuses) CHECK_OK(status);
    CHECK(arrived_when_passed == std::vector<int>{4, 4, 4, 4});
  }
}

TEST_CASE("messages between two ranks arrive in the order in which they were sent") {
  for (const Transport transport : testing::kTransports) {
    Group group = MakeGroup(transport, 2);
    constexpr int kMessages = 200;
    std::vector<std::vector<float>> received(2);
    std::vector<absl::Status> statuses(2);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      const int peer = 1 - collective.rank();
      absl::Status& status = statuses[collective.rank()];
      std::vector<float> outgoing(kMessages);
      std::vector<PendingSend> pending;
      for (int i = 0; i < kMessages; ++i) {
        outgoing[i] = static_cast<float>(i);
        const auto sent = collective.Send(absl::MakeConstSpan(&outgoing[i], 1), peer, stream);
        status.Update(sent.status());
        if (sent.ok()) pending.push_back(*sent);
      }
      // A collective may run while messages are open.
      status.Update(collective.Barrier(stream));
      for (int i = 0; i < kMessages; ++i) {
        float value = -1;
        status.Update(collective.Recv(absl::MakeSpan(&value, 1), peer, stream));
        received[collective.rank()].push_back(value);
      }
      for (const PendingSend& send : pending) status.Update(collective.Wait(send, stream));
    });
    for (int rank = 0; rank < 2; ++rank) {
      CHECK_OK(statuses[rank]);
      for (int i = 0; i < kMessages; ++i) REQUIRE(received[rank][i] == static_cast<float>(i));
    }
  }
}

TEST_CASE("large messages in both directions at once do not wait for each other") {
  for (const Transport transport : testing::kTransports) {
    Group group = MakeGroup(transport, 2);
    constexpr size_t kCount = 2'000'000;  // 8 MB: more than any socket buffer here
    std::vector<Seen<float>> seen(2);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      Seen<float>& mine = seen[collective.rank()];
      const int peer = 1 - collective.rank();
      const std::vector<float> outgoing = ValuesOf<float>(collective.rank(), kCount);
      mine.data.resize(kCount);
      const auto sent = collective.Send(absl::MakeConstSpan(outgoing), peer, stream);
      mine.status.Update(sent.status());
      mine.status.Update(collective.Recv(absl::MakeSpan(mine.data), peer, stream));
      if (sent.ok()) mine.status.Update(collective.Wait(*sent, stream));
    });
    for (int rank = 0; rank < 2; ++rank) {
      CHECK_OK(seen[rank].status);
      CHECK(SameBits(seen[rank].data, ValuesOf<float>(1 - rank, kCount)));
    }
  }
}

TEST_CASE("when a peer disappears the others learn it at once, and again at every later call") {
  for (const Transport transport : testing::kTransports) {
    for (const size_t count : {1, 300'000}) {
      Group group = MakeGroup(transport, 4);
      group[2] = nullptr;
      std::vector<absl::Status> first(4), second(4);
      const MonotonicTime start = Clock::Real().Now();
      OnEveryRank(group, [&](Collective& collective, Stream& stream) {
        std::vector<float> data(count);
        first[collective.rank()] =
            collective.AllReduce(absl::MakeSpan(data), ReduceOp::kSum, stream);
        second[collective.rank()] = collective.Barrier(stream);
      });
      CHECK(Clock::Real().Now() - start < absl::Seconds(1));
      for (const int rank : {0, 1, 3}) {
        INFO(ToString(transport));
        CHECK_STATUS(first[rank], absl::StatusCode::kUnavailable,
                     absl::StrCat("dp all_reduce #1 (", count * sizeof(float), " B): rank "));
        CHECK(second[rank] == first[rank]);
      }
    }
  }
}

TEST_CASE("a silent peer is named with the operation that waited for it") {
  for (const Transport transport : testing::kTransports) {
    FlightRecorder recorder(16, Clock::Real());
    Group group =
        MakeGroup(transport, 3, {.timeout = absl::Milliseconds(100), .recorder = &recorder});
    std::vector<absl::Status> statuses(3);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      std::vector<float> data(10);
      absl::Status& status = statuses[collective.rank()];
      status = collective.Barrier(stream);
      if (!status.ok() || collective.rank() == 1) return;
      status = collective.AllReduce(absl::MakeSpan(data), ReduceOp::kSum, stream);
    });
    INFO(ToString(transport));
    CHECK_OK(statuses[1]);
    for (const int rank : {0, 2}) {
      CHECK_STATUS(statuses[rank], absl::StatusCode::kDeadlineExceeded,
                   "dp all_reduce #2 (40 B): rank 1 (global rank 1)");
    }
    CHECK_THAT(recorder.Dump(), Catch::Contains("dp #2 all_reduce 40 B fp32  failed after"));
  }
}

TEST_CASE("a receive of the wrong length waits for its deadline and harms nothing") {
  for (const Transport transport : testing::kTransports) {
    Group group = MakeGroup(transport, 2, {.timeout = absl::Milliseconds(100)});
    std::vector<absl::Status> statuses(2);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      absl::Status& status = statuses[collective.rank()];
      std::vector<float> data(10);
      if (collective.rank() == 0) {
        const auto sent = collective.Send(absl::MakeSpan(data), 1, stream);
        status = sent.ok() ? collective.Wait(*sent, stream) : sent.status();
      } else {
        status = collective.Recv(absl::MakeSpan(data).subspan(1), 0, stream);
      }
    });
    INFO(ToString(transport));
    CHECK_STATUS(statuses[0], absl::StatusCode::kDeadlineExceeded, "dp send to 1 #1 (40 B)");
    CHECK_STATUS(statuses[1], absl::StatusCode::kDeadlineExceeded, "dp recv from 0 #1 (36 B)");
  }
}

TEST_CASE("abort wakes a call that waits, and its reason stays") {
  for (const Transport transport : testing::kTransports) {
    Group group = MakeGroup(transport, 2);
    std::vector<float> data(10);
    absl::Status waiting, later;
    Thread waiter("waiter", [&] {
      Stream stream = Stream::Cpu();
      waiting = group[0]->AllReduce(absl::MakeSpan(data), ReduceOp::kSum, stream);
      later = group[0]->Barrier(stream);
    });
    group[0]->Abort("a new epoch has begun");
    waiter.Join();
    INFO(ToString(transport));
    CHECK_STATUS(waiting, absl::StatusCode::kAborted, "a new epoch has begun");
    CHECK(later == waiting);
    CHECK(group[0]->Check() == waiting);
    CHECK_OK(group[1]->Check());
  }
}

TEST_CASE("a group of one succeeds at once, until it is aborted") {
  for (const Transport transport : testing::kTransports) {
    Group group = MakeGroup(transport, 1);
    Stream stream = Stream::Cpu();
    std::vector<float> data = {1, 2, 3};
    CHECK_OK(group[0]->AllReduce(absl::MakeSpan(data), ReduceOp::kSum, stream));
    CHECK_OK(group[0]->Broadcast(absl::MakeSpan(data), 0, stream));
    CHECK_OK(group[0]->Barrier(stream));
    CHECK(data == std::vector<float>{1, 2, 3});
    group[0]->Abort("stop");
    CHECK_STATUS(group[0]->Barrier(stream), absl::StatusCode::kAborted, "stop");
  }
}

}  // namespace
}  // namespace convene::worker
