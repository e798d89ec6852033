// NCCL between processes that share the first GPU, each of them a host of its own to NCCL
// (environment.h): this program starts itself as the ranks, which run the hidden case below.
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "rendezvous/store/store_client.h"
#include "tools/base/clock.h"
#include "tools/base/testing/poll.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/collective.h"
#include "worker_runtime/comm/nccl/environment.h"
#include "worker_runtime/comm/nccl/nccl_bootstrap.h"
#include "worker_runtime/comm/testing/collective_suite.h"
#include "worker_runtime/comm/testing/directory_store.h"
#include "worker_runtime/device/cuda/testing/gpu_testing.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/mesh/mesh.h"

extern char** environ;

namespace convene::worker {
namespace {

using convene::testing::HasGpuOrSkips;

// A job takes seconds, or tens of them where four ranks take turns on the GPU. A case whose job
// hangs ends by itself, and says which rank it waited for, before tools/gpu_check stops the case.
constexpr absl::Duration kJobPatience = absl::Seconds(90);
// The variable that gives a rank its orders: "suite 0 1 2 1 /tmp/..." (the test, rank, pp, dp, tp,
// the store's directory).
constexpr char kOrders[] = "CONVENE_NCCL_TEST";

struct RankOrders {
  std::string deed;
  int rank = 0;
  Layout layout;
  std::string directory;
};

// ---- a rank

RankOrders OrdersOfThisRank() {
  const char* const text = getenv(kOrders);
  REQUIRE(text != nullptr);
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  REQUIRE(words.size() == 6);
  RankOrders orders = {.deed = words[0], .directory = words[5]};
  REQUIRE(absl::SimpleAtoi(words[1], &orders.rank));
  REQUIRE(absl::SimpleAtoi(words[2], &orders.layout.pp));
  REQUIRE(absl::SimpleAtoi(words[3], &orders.layout.dp));
  REQUIRE(absl::SimpleAtoi(words[4], &orders.layout.tp));
  return orders;
}

// However many GPUs there are: this test uses the first.
NcclPlace PlaceOf(const RankOrders& orders) {
  const int world_size = orders.layout.world_size();
  return {.host_name = "nccl-test",
          .local_rank = orders.rank,
          .local_world_size = world_size,
          .world_size = world_size,
          .gpus = 1};
}

absl::StatusOr<CommunicatorSet> Bootstrap(const RankOrders& orders, const std::string& key_prefix,
                                          absl::Duration operation_timeout, Device& device) {
  DirectoryStore store(orders.directory);
  NcclBootstrapOptions options;
  options.base.operation_timeout = operation_timeout;
  // A ring.
  for (int place = 1; place < orders.layout.pp; ++place) {
    options.base.pp_links.emplace_back(place - 1, place);
  }
  if (orders.layout.pp > 2) options.base.pp_links.emplace_back(0, orders.layout.pp - 1);
  options.place = PlaceOf(orders);
  options.open_store = [directory = orders.directory](absl::Duration) {
    return std::unique_ptr<rendezvous::StoreClient>(std::make_unique<DirectoryStore>(directory));
  };
  return BootstrapNccl(orders.layout, orders.rank, store, key_prefix, options, device);
}

testing::DataPlace PlaceIn(Memory& memory, Device& device) {
  return {.allocate =
              [&memory](size_t bytes) {
                const absl::StatusOr<void*> data = memory.Allocate(bytes);
                REQUIRE_OK(data);
                return std::shared_ptr<void>(
                    *data, [&memory, bytes](void* given) { memory.Free(given, bytes); });
              },
          .copy = [&device](const void* from, void* to, size_t bytes) -> absl::Status {
            if (bytes > 0) device.Copy(from, to, bytes, device.compute());
            return device.status();
          }};
}

void RunSuite(const RankOrders& orders, Device& device) {
  auto set = Bootstrap(orders, "epoch/1", absl::Minutes(1), device);
  REQUIRE_OK(set);
  const std::unique_ptr<Memory> registered = MakeNcclMemory(*set);
  REQUIRE(registered != nullptr);
  const auto run = [&](Collective& group, Memory& memory, bool with_messages) {
    testing::RankUnderTest rank = {.group = group,
                                   .stream = device.compute(),
                                   .place = PlaceIn(memory, device),
                                   .in_rank_order = false};
    for (const testing::SuiteCheck& check : testing::CollectiveSuite()) {
      if (check.needs_messages && !with_messages) continue;
      // A group of one has no NCCL, and needs none.
      if (group.size() == 1) continue;
      INFO(group.name() << ": " << check.behaviour);
      REQUIRE_OK(check.run(rank));
    }
  };
  run(*set->world, *registered, false);
  run(*set->tp, device.memory(), false);
  run(*set->dp, device.memory(), false);
  run(*set->dp_gather, device.memory(), false);
  run(*set->pp, device.memory(), true);
  if (set->embedding != nullptr) run(*set->embedding, device.memory(), false);
  CHECK_OK(set->host->Barrier(device.compute()));
}

// All ranks but the last reduce until they learn that it is gone. Returns their error.
absl::Status ReduceUntilError(Collective& group, Device& device) {
  testing::DataPlace place = PlaceIn(device.memory(), device);
  const std::shared_ptr<void> data = place.allocate(1 << 20);
  const Elements elements(data.get(), (1 << 20) / sizeof(float), DType::kFloat32);
  while (true) {
    absl::Status status = group.AllReduce(elements, ReduceOp::kSum, device.compute());
    if (status.ok()) status = group.Barrier(device.compute());
    if (!status.ok()) return status;
  }
}

bool IsLast(const RankOrders& orders) { return orders.rank == orders.layout.world_size() - 1; }

void LoseOne(const RankOrders& orders, Device& device) {
  const absl::Duration timeout = absl::Seconds(5);
  auto set = Bootstrap(orders, "epoch/1", timeout, device);
  REQUIRE_OK(set);
  REQUIRE_OK(set->dp->Barrier(device.compute()));
  if (IsLast(orders)) raise(SIGKILL);
  const MonotonicTime start = Clock::Real().Now();
  const absl::Status status = ReduceUntilError(*set->dp, device);
  // The deadline, or the broken connection before it; and the time to ask the others.
  CHECK(Clock::Real().Now() - start < timeout + absl::Seconds(10));
  INFO(status.ToString());
  CHECK((absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         status.code() == absl::StatusCode::kInternal));
  CHECK_THAT(
      std::string(status.message()),
      Catch::Contains(absl::StrCat("rank ", orders.layout.world_size() - 1, " left no word")));
  CHECK(set->dp->Check() == status);
  CHECK(set->world->Check() == status);
}

void StaySilent(const RankOrders& orders, Device& device) {
  auto set = Bootstrap(orders, "epoch/1", absl::Seconds(3), device);
  REQUIRE_OK(set);
  if (!IsLast(orders)) {
    const absl::Status status = set->dp->Barrier(device.compute());
    CHECK_STATUS(status, absl::StatusCode::kDeadlineExceeded, "dp barrier #2 (4 B)");
    CHECK_THAT(std::string(status.message()),
               Catch::Contains(absl::StrCat("rank ", orders.layout.world_size() - 1, " ")));
  }
  // The last rank would wait at the barrier for longer than its time.
  DirectoryStore store(orders.directory);
  if (orders.rank == 0) REQUIRE_OK(store.Set("went on/0", "1"));
  REQUIRE_OK(store.Get("went on/0", absl::Minutes(1)));
  // Between host memories all is well.
  CHECK_OK(set->host->Barrier(device.compute()));
}

void StartAgain(const RankOrders& orders, Device& device) {
  auto first = Bootstrap(orders, "epoch/1", absl::Minutes(1), device);
  REQUIRE_OK(first);
  first->AbortAll("a new epoch has begun");
  CHECK_STATUS(first->dp->Barrier(device.compute()), absl::StatusCode::kAborted,
               "a new epoch has begun");
  first = absl::UnknownError("ended");
  auto second = Bootstrap(orders, "epoch/2", absl::Minutes(1), device);
  REQUIRE_OK(second);
  CHECK_OK(second->dp->Barrier(device.compute()));
}

// The last rank is lost: it dies, or falls silent. The others go on within their processes, one
// rank fewer.
void GoOn(const RankOrders& orders, Device& device, bool dies) {
  const int left = orders.layout.world_size() - 1;
  auto first = Bootstrap(orders, "epoch/1", absl::Seconds(5), device);
  REQUIRE_OK(first);
  REQUIRE_OK(first->dp->Barrier(device.compute()));
  if (IsLast(orders)) {
    if (dies) raise(SIGKILL);
    DirectoryStore store(orders.directory);
    for (int rank = 0; rank < left; ++rank) {
      REQUIRE_OK(store.Get(absl::StrCat("went on/", rank), absl::Minutes(1)));
    }
    first->AbortAll("the others went on");
    return;
  }
  REQUIRE_FALSE(ReduceUntilError(*first->dp, device).ok());
  first = absl::UnknownError("ended");
  RankOrders fewer = orders;
  fewer.layout.dp = left;
  auto second = Bootstrap(fewer, "epoch/2", absl::Minutes(1), device);
  REQUIRE_OK(second);
  CHECK(second->dp->size() == left);
  CHECK_OK(second->dp->Barrier(device.compute()));
  REQUIRE_OK(DirectoryStore(orders.directory).Set(absl::StrCat("went on/", orders.rank), "1"));
}

TEST_CASE("one rank of a job", "[.rank]") {
  const RankOrders orders = OrdersOfThisRank();
  auto device = Device::Cuda(0);
  REQUIRE_OK(device);
  if (orders.deed == "suite") RunSuite(orders, **device);
  if (orders.deed == "lose") LoseOne(orders, **device);
  if (orders.deed == "silent") StaySilent(orders, **device);
  if (orders.deed == "again") StartAgain(orders, **device);
  if (orders.deed == "go-on") GoOn(orders, **device, /*dies=*/false);
  if (orders.deed == "go-on-after-death") GoOn(orders, **device, /*dies=*/true);
}

// ---- the job

pid_t StartRank(const RankOrders& orders) {
  const Layout& layout = orders.layout;
  const std::string variable =
      absl::StrCat(kOrders, "=", orders.deed, " ", orders.rank, " ", layout.pp, " ", layout.dp, " ",
                   layout.tp, " ", orders.directory);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(const_cast<char*>(variable.c_str()));
  environment.push_back(nullptr);
  char program[] = "nccl_test";
  char tag[] = "[rank]";
  char* const arguments[] = {program, tag, nullptr};
  pid_t child = 0;
  REQUIRE(posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, arguments, environment.data()) ==
          0);
  return child;
}

// How each rank ended, as waitpid says.
std::vector<int> RunJob(const std::string& deed, const Layout& layout) {
  convene::testing::TempDir directory;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < layout.world_size(); ++rank) {
    ranks.push_back(
        StartRank({.deed = deed, .rank = rank, .layout = layout, .directory = directory.path()}));
  }
  const MonotonicTime deadline = Clock::Real().Now() + kJobPatience;
  std::vector<int> ends(ranks.size(), -1);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto ended = [&] { return waitpid(ranks[rank], &ends[rank], WNOHANG) != 0; };
    if (convene::testing::PollUntil(ended, deadline - Clock::Real().Now())) continue;
    FAIL_CHECK("rank " << rank << " of " << layout.ToString() << " is not done after "
                       << absl::FormatDuration(kJobPatience) << ", and is killed");
    kill(ranks[rank], SIGKILL);
    waitpid(ranks[rank], &ends[rank], 0);
  }
  return ends;
}

// Every rank finds what each operation promises.
void CheckSuite(const Layout& layout) {
  if (!HasGpuOrSkips()) return;
  for (const int end : RunJob("suite", layout)) CHECK(end == 0);
}

TEST_CASE("the promises of all operations over NCCL, dp 2") { CheckSuite({.dp = 2}); }

TEST_CASE("the promises of all operations over NCCL, pp 2") { CheckSuite({.pp = 2}); }

TEST_CASE("the promises of all operations over NCCL, dp 2 x tp 2") {
  CheckSuite({.dp = 2, .tp = 2});
}

TEST_CASE("the promises of all operations over NCCL, pp 4") { CheckSuite({.pp = 4}); }

TEST_CASE("when a rank is killed the others abort in time, and name it") {
  if (!HasGpuOrSkips()) return;
  const std::vector<int> ends = RunJob("lose", {.pp = 1, .dp = 3, .tp = 1});
  CHECK(ends[0] == 0);
  CHECK(ends[1] == 0);
  CHECK((WIFSIGNALED(ends[2]) && WTERMSIG(ends[2]) == SIGKILL));
}

TEST_CASE("a rank that does not come is named, and harms nothing else") {
  if (!HasGpuOrSkips()) return;
  for (const int end : RunJob("silent", {.pp = 1, .dp = 2, .tp = 1})) CHECK(end == 0);
}

TEST_CASE("after an abort the same processes make new communicators") {
  if (!HasGpuOrSkips()) return;
  for (const int end : RunJob("again", {.pp = 1, .dp = 2, .tp = 1})) CHECK(end == 0);
}

TEST_CASE("when one of three ranks stays away the other two go on within their processes") {
  if (!HasGpuOrSkips()) return;
  for (const int end : RunJob("go-on", {.pp = 1, .dp = 3, .tp = 1})) CHECK(end == 0);
}

TEST_CASE("when one of three ranks dies the other two go on within their processes") {
  if (!HasGpuOrSkips()) return;
  const std::vector<int> ends = RunJob("go-on-after-death", {.pp = 1, .dp = 3, .tp = 1});
  CHECK(ends[0] == 0);
  CHECK(ends[1] == 0);
  CHECK(ends[2] != 0);
}

}  // namespace
}  // namespace convene::worker
