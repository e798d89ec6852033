// One suite for every implementation of Collective.
#include "worker_runtime/comm/collective.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <sstream>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tools/base/clock.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/comm/flight_recorder.h"
#include "worker_runtime/comm/testing/collective_suite.h"
#include "worker_runtime/comm/testing/collective_testing.h"
#include "worker_runtime/comm/testing/test_worlds.h"
#include "worker_runtime/device/host_queue.h"

namespace convene::worker {
namespace {

using testing::Group;
using testing::MakeGroup;
using testing::OnEveryRank;
using testing::Recv;
using testing::Transport;

// Numbers whose sum depends on the order of addition.
std::vector<float> ValuesOf(int rank, size_t count) {
  std::vector<float> values(count);
  uint64_t state = 0x9E3779B97F4A7C15u * (rank + 1);
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = std::ldexp(static_cast<float>(static_cast<int32_t>(state >> 32)),
                       static_cast<int>(state >> 59) - 40);
  }
  return values;
}

std::vector<float> SumInRankOrder(int size, size_t count) {
  std::vector<float> sum = ValuesOf(0, count);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> values = ValuesOf(rank, count);
    for (size_t i = 0; i < count; ++i) sum[i] += values[i];
  }
  return sum;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_CASE("every rank finds what each operation promises, over every transport") {
  for (const Transport transport : testing::kTransports) {
    for (const int size : {1, 2, 3, 8}) {
      Group group = MakeGroup(transport, size);
      for (const testing::SuiteCheck& check : testing::CollectiveSuite()) {
        std::vector<absl::Status> statuses(size);
        OnEveryRank(group, [&](Collective& collective, Stream& stream) {
          testing::RankUnderTest rank = {
              .group = collective, .stream = stream, .place = testing::HostPlace()};
          statuses[collective.rank()] = check.run(rank);
        });
        for (const absl::Status& status : statuses) {
          INFO(check.behaviour << ": " << ToString(transport) << ", " << size << " ranks");
          REQUIRE_OK(status);
        }
      }
    }
  }
}

// As OnEveryRank; the stream is a queue.
void OnEveryQueue(Group& group, const std::function<void(Collective&, Stream&)>& body) {
  OnEveryRank(group, [&](Collective& collective, Stream&) {
    HostQueue queue("queue");
    Stream stream = Stream::Cpu(queue);
    body(collective, stream);
  });
}

TEST_CASE("in a queue every operation keeps its promise too") {
  for (const Transport transport : testing::kTransports) {
    for (const int size : {1, 3}) {
      Group group = MakeGroup(transport, size);
      for (const testing::SuiteCheck& check : testing::CollectiveSuite()) {
        std::vector<absl::Status> statuses(size);
        OnEveryQueue(group, [&](Collective& collective, Stream& stream) {
          testing::DataPlace place = testing::HostPlace();
          place.copy = [&, copy = place.copy](const void* from, void* to, size_t bytes) {
            AwaitAll(stream);
            return copy(from, to, bytes);
          };
          testing::RankUnderTest rank = {.group = collective, .stream = stream, .place = place};
          statuses[collective.rank()] = check.run(rank);
        });
        for (const absl::Status& status : statuses) {
          INFO(check.behaviour << ": " << ToString(transport) << ", " << size << " ranks");
          REQUIRE_OK(status);
        }
      }
    }
  }
}

TEST_CASE("a queued call returns at once; its error shows at Check and at every later call") {
  for (const Transport transport : testing::kTransports) {
    INFO(ToString(transport));
    Group group = MakeGroup(transport, 3, {.timeout = absl::Milliseconds(200)});
    std::vector<absl::Status> queued(3), checked(3), later(3);
    OnEveryQueue(group, [&](Collective& collective, Stream& stream) {
      const int rank = collective.rank();
      queued[rank] = collective.Barrier(stream);
      AwaitAll(stream);
      if (rank == 1) return;
      std::vector<float> first(10), second(10);
      queued[rank] = collective.AllReduce(absl::MakeSpan(first), ReduceOp::kSum, stream);
      // Behind one that fails: it ends without a wait of its own.
      collective.AllGather(absl::MakeSpan(second).subspan(0, 9), stream).IgnoreError();
      AwaitAll(stream);
      checked[rank] = collective.Check();
      later[rank] = collective.Barrier(stream);
    });
    for (const int rank : {0, 2}) {
      CHECK_OK(queued[rank]);
      CHECK_STATUS(checked[rank], absl::StatusCode::kDeadlineExceeded,
                   "dp all_reduce #2 (40 B): rank 1 (global rank 1)");
      CHECK(later[rank] == checked[rank]);
    }
  }
}

TEST_CASE("a communicator that is destroyed gives up what is queued, and touches no memory later") {
  for (const Transport transport : testing::kTransports) {
    Group group = MakeGroup(transport, 2);
    const MonotonicTime start = Clock::Real().Now();
    HostQueue queue("queue");
    Stream stream = Stream::Cpu(queue);
    {
      std::vector<float> data(100'000);
      for (int i = 0; i < 3; ++i) {
        REQUIRE_OK(group[0]->AllReduce(absl::MakeSpan(data), ReduceOp::kSum, stream));
      }
      group[0] = nullptr;
    }
    INFO(ToString(transport));
    CHECK(Clock::Real().Now() - start < absl::Seconds(10));
    Stream inline_stream = Stream::Cpu();
    CHECK_STATUS(group[1]->Barrier(inline_stream), absl::StatusCode::kUnavailable, "dp barrier");
  }
}

TEST_CASE("what breaks a rank's other communicators is named by their errors") {
  std::vector<CommunicatorSet> sets =
      testing::MakeSets(Transport::kGloo, {.pp = 1, .dp = 2, .tp = 2});
  // Rank 3 dies: rank 1 sums with it over dp, and over tp with rank 0, which lives.
  sets[3] = CommunicatorSet();
  HostQueue queue("queue");
  Stream beside = Stream::Cpu(queue), stream = Stream::Cpu();
  std::vector<float> data(10), other(10);
  REQUIRE_OK(sets[1].dp->AllReduce(absl::MakeSpan(data), ReduceOp::kSum, beside));
  CHECK_STATUS(sets[1].tp->AllReduce(absl::MakeSpan(other), ReduceOp::kSum, stream),
               absl::StatusCode::kUnavailable,
               "tp all_reduce #1 (40 B): after dp all_reduce #1 (40 B): rank 1 (global rank 3)");
  AwaitAll(beside);
}

TEST_CASE("once a peer was silent for one call's time the rank's other groups wait no more") {
  for (const Transport transport : testing::kTransports) {
    INFO(ToString(transport));
    std::vector<CommunicatorSet> sets =
        testing::MakeSets(transport, {.dp = 2}, {.timeout = absl::Milliseconds(200)});
    HostQueue queue("queue");
    Stream beside = Stream::Cpu(queue);
    std::vector<float> data(10), other(10);
    REQUIRE_OK(sets[0].dp->ReduceScatter(absl::MakeSpan(data), ReduceOp::kSum, beside));
    REQUIRE_OK(sets[0].dp_gather->AllGather(absl::MakeSpan(other), beside));
    AwaitAll(beside);
    const std::string cause =
        "dp reduce_scatter #1 (40 B): rank 1 (global rank 1) did not answer in time";
    CHECK_STATUS(sets[0].dp->Check(), absl::StatusCode::kDeadlineExceeded, cause);
    CHECK_STATUS(sets[0].dp_gather->Check(), absl::StatusCode::kDeadlineExceeded,
                 "dp gather: after " + cause);
    // The peer itself has given up nothing: it would notice its own silent peers.
    CHECK_OK(sets[1].dp_gather->Check());
  }
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
        reduced[rank] = ValuesOf(rank, count);
        gathered[rank].assign(count, static_cast<float>(rank));
        sent[rank].assign(count, static_cast<float>(rank));
        absl::Status& status = statuses[rank];
        status = member.AllReduce(absl::MakeSpan(reduced[rank]), ReduceOp::kSum, stream);
        if (status.ok()) status = member.AllGather(absl::MakeSpan(gathered[rank]), stream);
        if (status.ok()) status = member.Broadcast(absl::MakeSpan(sent[rank]), 1, stream);
      });
      for (int rank = 0; rank < size; ++rank) {
        REQUIRE_OK(statuses[rank]);
        CHECK(SameBits(reduced[rank], SumInRankOrder(size, count)));
        for (size_t i = 0; i < count; ++i) {
          const size_t owner = i / 5;
          CHECK(gathered[rank][i] == static_cast<float>(owner));
        }
        CHECK(sent[rank] == std::vector<float>(count, 1.0f));
      }
    }
  }
}

// The values that each rank saw.
template <typename T>
struct Seen {
  absl::Status status;
  std::vector<T> data;
};

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
  const std::vector<float> expected = SumInRankOrder(2, kCount);
  for (const Transport transport : testing::kTransports) {
    Group group = MakeGroup(transport, 2);
    std::vector<Seen<float>> seen(2);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      Seen<float>& mine = seen[collective.rank()];
      mine.data = ValuesOf(collective.rank(), kCount);
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
    CHECK_THAT(recorder.Dump(16), Catch::Contains("dp #2 all_reduce 40 B fp32  failed after"));
  }
}

TEST_CASE("a receive of the wrong length waits for its deadline and harms nothing") {
  for (const Transport transport : testing::kTransports) {
    FlightRecorder recorder(16, Clock::Real());
    Group group =
        MakeGroup(transport, 2, {.timeout = absl::Milliseconds(100), .recorder = &recorder});
    std::ostringstream log;
    const auto before = spdlog::default_logger();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log)));
    std::vector<absl::Status> statuses(2);
    OnEveryRank(group, [&](Collective& collective, Stream& stream) {
      absl::Status& status = statuses[collective.rank()];
      std::vector<float> data(10);
      if (collective.rank() == 0) {
        const auto sent = collective.Send(absl::MakeSpan(data), 1, stream);
        status = sent.ok() ? collective.Wait(*sent, stream) : sent.status();
      } else {
        status = Recv(collective, absl::MakeSpan(data).subspan(1), 0, stream);
      }
    });
    spdlog::set_default_logger(before);
    INFO(ToString(transport));
    CHECK_STATUS(statuses[0], absl::StatusCode::kDeadlineExceeded, "dp send to 1 #1 (40 B)");
    CHECK_STATUS(statuses[1], absl::StatusCode::kDeadlineExceeded, "dp recv from 0 #1 (36 B)");
    // The lines of both ranks, put side by side, show what differs.
    CHECK_THAT(log.str(), Catch::Contains("dp #1 send to 1 40 B fp32  "));
    CHECK_THAT(log.str(), Catch::Contains("dp #1 recv from 0 36 B fp32  "));
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
