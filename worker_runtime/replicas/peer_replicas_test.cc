// Ranks as threads, nodes as files of memory: what is found again after deaths at every moment. In
// engines_test real engines copy and restore.
#include "worker_runtime/replicas/peer_replicas.h"

#include <sys/mman.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/checkpointing/agree.h"
#include "worker_runtime/testing/forwarding_collective.h"
#include "worker_runtime/testing/places.h"

namespace convene::worker {
namespace {

using testing::Place;
using testing::Places;

constexpr int64_t kElements = 5000;  // of the one tensor that the ranks share

// A rank's even part of a tensor whose elements tell the step.
class FakeState final : public CheckpointedState {
 public:
  FakeState(int rank, int size)
      : begin_(kElements * rank / size), end_(kElements * (rank + 1) / size) {
    values_.resize(end_ - begin_);
  }

  void SetStep(int64_t step) {
    for (size_t i = 0; i < values_.size(); ++i) {
      values_[i] = static_cast<float>(10'000 * step + begin_ + static_cast<int64_t>(i));
    }
  }
  bool IsOf(int64_t step) const {
    for (size_t i = 0; i < values_.size(); ++i) {
      if (values_[i] != static_cast<float>(10'000 * step + begin_ + static_cast<int64_t>(i))) {
        return false;
      }
    }
    return true;
  }

  absl::StatusOr<std::vector<PieceToWrite>> PiecesToWrite() override { return PiecesInPlace(); }
  absl::StatusOr<std::vector<PieceToWrite>> PiecesInPlace() override {
    return std::vector<PieceToWrite>{{Piece(), absl::MakeConstSpan(values_)}};
  }
  absl::StatusOr<std::vector<PieceToRead>> PiecesToRead() override {
    return std::vector<PieceToRead>{{Piece(), absl::MakeSpan(values_)}};
  }
  absl::Status FinishRead() override { return absl::OkStatus(); }

 private:
  TensorPiece Piece() const {
    return {"weights", {kElements}, {{0}, {kElements}}, begin_, end_ - begin_};
  }

  const int64_t begin_, end_;
  std::vector<float> values_;
};

// Its rank dies at the call with this number, and takes all others with it.
class DyingCollective final : public testing::ForwardingCollective {
 public:
  // `all`: of all ranks.
  DyingCollective(std::unique_ptr<Collective> base, int64_t last_call,
                  const std::vector<Collective*>& all)
      : ForwardingCollective(std::move(base)), calls_left_(last_call), all_(all) {}

  absl::Status Call(const CollectiveCall& call, Stream& stream) override {
    CONVENE_RETURN_IF_ERROR(Count());
    return ForwardingCollective::Call(call, stream);
  }
  absl::StatusOr<PendingMessage> Send(ConstElements data, int peer, Stream& stream) override {
    CONVENE_RETURN_IF_ERROR(Count());
    return ForwardingCollective::Send(data, peer, stream);
  }
  absl::Status Wait(PendingMessage pending, Stream& stream) override {
    CONVENE_RETURN_IF_ERROR(Count());
    return ForwardingCollective::Wait(pending, stream);
  }

 private:
  absl::Status Count() {
    if (calls_left_-- > 0) return absl::OkStatus();
    for (Collective* const one : all_) one->Abort("the test kills this rank");
    return absl::AbortedError("the test kills this rank");
  }

  std::atomic<int64_t> calls_left_;
  const std::vector<Collective*>& all_;
};

struct Job {
  int replicas = 1;
  int64_t every = 1;
  int max_nodes = 0;
  int64_t available_bytes = int64_t{1} << 40;
  int64_t promised_bytes = 0;
  std::vector<UniqueFd> nodes = {};  // one rank each

  static Job OfNodes(int count, int replicas) {
    Job job = {.replicas = replicas, .max_nodes = count, .nodes = {}};
    for (int i = 0; i < count; ++i) job.nodes.emplace_back(memfd_create("node", MFD_CLOEXEC));
    return job;
  }
};

struct Epoch {
  int64_t begun_at = -1;  // the step that was restored; -1: none
  int64_t agreed = -1;    // the last one that some rank knows to stand everywhere
  bool all_sound = true;  // what was restored was of one step
  bool died = false;
  std::vector<absl::Status> statuses;
};

// The ranks restore what they find, and make `steps` steps; rank `dying` dies at its call number
// `last_call`.
Epoch Run(const Job& job, int epoch, int64_t steps, int dying = 0, int64_t last_call = INT64_MAX) {
  const int size = static_cast<int>(job.nodes.size());
  auto places = Places::Make({.dp = size});
  REQUIRE_OK(places);
  std::vector<Collective*> worlds;
  for (int rank = 0; rank < size; ++rank) {
    auto& world = (**places)[rank].communicators.replicas;
    worlds.push_back(world.get());
    world = std::make_unique<DyingCollective>(std::move(world),
                                              rank == dying ? last_call : INT64_MAX, worlds);
  }
  std::vector<Epoch> seen(size);
  Epoch all;
  all.statuses = (*places)->OnEveryRank([&](int rank) -> absl::Status {
    Place& place = (**places)[rank];
    const auto& world = place.communicators.replicas;
    Epoch& mine = seen[rank];
    CONVENE_ASSIGN_OR_RETURN(
        const auto replicas,
        PeerReplicas::Create({.memory_path = absl::StrCat("/proc/self/fd/", job.nodes[rank].get()),
                              .replicas = job.replicas,
                              .every = job.every,
                              .epoch = epoch,
                              .node = rank,
                              .max_nodes = job.max_nodes,
                              .available_bytes = [&] { return job.available_bytes; },
                              .promised_bytes = [&] { return job.promised_bytes; }},
                             *world, *place.device));
    FakeState state(rank, size);
    CheckpointInfo info = {.model = "m", .world_size = size};
    state.SetStep(0);
    Stream stream = Stream::Cpu();
    for (;;) {
      CONVENE_ASSIGN_OR_RETURN(const std::unique_ptr<StateSource> source, replicas->OpenNext());
      if (source == nullptr) break;
      CONVENE_ASSIGN_OR_RETURN(const auto pieces, state.PiecesToRead());
      CONVENE_ASSIGN_OR_RETURN(const Agreement read,
                               ReachAgreement(source->Read(pieces), "read", *world, stream));
      if (!read.verdict.ok()) continue;
      info = source->info();
      mine.begun_at = info.step;
      mine.all_sound = state.IsOf(info.step);
      break;
    }
    CONVENE_RETURN_IF_ERROR(replicas->BeginGeneration(/*is_from_memory=*/mine.begun_at >= 0));
    for (const int64_t end = info.step + steps; info.step <= end; ++info.step) {
      state.SetStep(info.step);
      if (!replicas->IsDue(info.step)) continue;
      CONVENE_RETURN_IF_ERROR(replicas->Stage(info, state));
      state.SetStep(-1);  // the next step changes the state at once
      CONVENE_RETURN_IF_ERROR(replicas->Finish());
      mine.agreed = info.step;
    }
    return absl::OkStatus();
  });
  for (const Epoch& mine : seen) {
    all.begun_at = std::max(all.begun_at, mine.begun_at);
    all.agreed = std::max(all.agreed, mine.agreed);
    all.all_sound &= mine.all_sound;
  }
  for (const absl::Status& status : all.statuses) all.died |= !status.ok();
  return all;
}

TEST_CASE("the survivors go on from their own memory, and from the lost node's replica") {
  Job job = Job::OfNodes(3, 1);
  const Epoch first = Run(job, 1, 4);
  for (const absl::Status& status : first.statuses) REQUIRE_OK(status);
  CHECK((first.begun_at == -1 && first.agreed == 4));
  SECTION("all workers died") {}
  SECTION("a node is lost") { job.nodes.erase(job.nodes.begin() + 1); }
  SECTION("a node is replaced") { job.nodes[1] = UniqueFd(memfd_create("new", MFD_CLOEXEC)); }
  SECTION("a node is added") { job.nodes.emplace_back(memfd_create("more", MFD_CLOEXEC)); }
  const Epoch second = Run(job, 2, 2);
  for (const absl::Status& status : second.statuses) REQUIRE_OK(status);
  CHECK((second.begun_at == 4 && second.all_sound));
  CHECK(Run(job, 3, 0).begun_at == 6);
}

TEST_CASE("more nodes than replicas are lost at once: nothing is whole") {
  Job job = Job::OfNodes(3, 1);
  Run(job, 1, 4);
  job.nodes.resize(1);
  const Epoch second = Run(job, 2, 2);
  for (const absl::Status& status : second.statuses) REQUIRE_OK(status);
  CHECK(second.begun_at == -1);
}

TEST_CASE("without replicas the workers' death costs no file") {
  const Job job = Job::OfNodes(2, 0);
  Run(job, 1, 3);
  CHECK(Run(job, 2, 0).begun_at == 3);
}

TEST_CASE("whichever rank dies at whichever call, what stood everywhere is found again") {
  const auto replicas = GENERATE(0, 1);
  const int64_t steps = 3;
  int64_t deaths = 0;
  for (int dying = 0; dying < 2; ++dying) {
    bool died = true;
    for (int64_t last_call = 0; died; ++last_call) {
      INFO(replicas << " replicas, rank " << dying << " dies at call " << last_call);
      Job job = Job::OfNodes(2, replicas);
      const Epoch first = Run(job, 1, steps, dying, last_call);
      died = first.died;
      deaths += died ? 1 : 0;
      // Its node, too.
      if (replicas > 0 && last_call % 2 == 1) job.nodes.erase(job.nodes.begin() + dying);
      // The restored job dies before it has copies of its own.
      Run(job, 2, 0, 0, last_call % 11);
      const Epoch last = Run(job, 3, 1);
      for (const absl::Status& status : last.statuses) REQUIRE_OK(status);
      CHECK(last.all_sound);
      CHECK(last.begun_at >= first.agreed);
      CHECK(last.begun_at <= steps);
    }
  }
  CHECK(deaths > 10);
}

TEST_CASE("a copy whose bytes have changed gives way to the step before") {
  const Job job = Job::OfNodes(2, 0);
  Run(job, 1, 3);
  bool changed = false;
  {
    auto memory = NodeMemory::Open(absl::StrCat("/proc/self/fd/", job.nodes[1].get()));
    REQUIRE_OK(memory);
    for (int64_t window = 0; window < (*memory)->window_count(); ++window) {
      const auto found = (*memory)->Find(window);
      if (!found.has_value() || found->name.step != 3) continue;
      const auto copy = (*memory)->Read(window);
      REQUIRE_OK(copy);
      const_cast<std::byte&>(copy->data[100]) ^= std::byte{1};
      changed = true;
    }
  }
  REQUIRE(changed);
  const Epoch second = Run(job, 2, 0);
  for (const absl::Status& status : second.statuses) REQUIRE_OK(status);
  CHECK((second.begun_at == 2 && second.all_sound));
}

TEST_CASE("memory that a rank has planned and not used yet is not there for copies") {
  Job job = Job::OfNodes(2, 1);
  job.available_bytes = int64_t{1} << 30;
  for (const absl::Status& status : Run(job, 1, 1).statuses) REQUIRE_OK(status);
  job.promised_bytes = job.available_bytes - (64 << 10);
  for (const absl::Status& status : Run(job, 2, 1).statuses) {
    CHECK_STATUS(status, absl::StatusCode::kResourceExhausted,
                 "of host memory here, and 64.0 KiB are left beside what its ranks use");
  }
  // The job that was refused has harmed nothing.
  job.promised_bytes = 0;
  CHECK(Run(job, 3, 1).begun_at == 1);
}

TEST_CASE("a job that never has enough nodes for the replicas is refused, a small one is not") {
  Job job = Job::OfNodes(2, 2);
  for (const absl::Status& status : Run(job, 1, 1).statuses) {
    CHECK_STATUS(status, absl::StatusCode::kFailedPrecondition, "choose --replicas 1");
  }
  job.max_nodes = 3;
  const Epoch small = Run(job, 1, 1);
  for (const absl::Status& status : small.statuses) REQUIRE_OK(status);
  CHECK(small.agreed == 1);
}

}  // namespace
}  // namespace convene::worker
