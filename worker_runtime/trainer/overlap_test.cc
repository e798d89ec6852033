// Ops that run beside the arithmetic on a GPU, proven on the CPU: every collective of the
// communication stream is ordered with all ops that touch the same memory, by events that are all
// needed; and it does run beside the arithmetic.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/thread.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/testing/loopback.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/testing/page_watch.h"
#include "worker_runtime/testing/recording_device.h"
#include "worker_runtime/testing/stream_races.h"
#include "worker_runtime/trainer/engine.h"
#include "worker_runtime/trainer/testing/train_step.h"

namespace convene::worker {
namespace {

using testing::FaultStack;
using testing::FindAtOnce;
using testing::FindRaces;
using testing::PageWatch;
using testing::RecordingDevice;
using testing::StreamCall;
using testing::StreamNumber;
using testing::StreamTime;

struct Case {
  Layout layout = {.dp = 2};
  DType dtype = DType::kFloat32;
  DType reduce_dtype = DType::kFloat32;
  Recompute recompute = Recompute::kNone;
  bool tied = false;
  int64_t bucket_count_min = 1;
  bool saves = false;
  bool sequence_parallel = false;
  int row_chunks = 0;
  const char* schedule = "1f1b";
  int microbatches = 2;
  ContextMethod context_method = ContextMethod::kRing;
  int sequence_length = 4;  // a multiple of four
  int head_size = 2;
  int layers = 2;
  bool watches_memory = false;  // RecordingDevice::WatchMemory
  int zero_stage = 1;
  bool reshard_after_forward = true;
  bool offload_optimizer = false;
  bool offload_parameters = false;
  bool overlaps = true;
  int experts = 0;              // of each layer, a token goes to two
  bool has_empty_step = false;  // one of which no target counts, between the others
};

const Family& WithExperts() {
  static const Family family = [] {
    Family router = *NamedModel("deepseek-tiny")->family;
    Family llama = LlamaFamily();
    router.latent_attention = router.router_bias = false;  // a bias is no whole page
    router.names.key = llama.names.key;
    router.names.value = llama.names.value;
    router.names.query_norm = router.names.key_norm = nullptr;
    return router;
  }();
  return family;
}

// Every group of parameters is a multiple of two ranks' pages. A rank's slice of the
// embedding has more rows than there are norms before it, so that its first and its last row are
// different ranks' parts.
ModelConfig Wide(const Case& the_case) {
  return {.layers = the_case.layers,
          .hidden_size = static_cast<int>(2 * PageWatch::kPageBytes / SizeOf(the_case.dtype)),
          .ffn_size = 4,
          .heads = 2,
          .kv_heads = 2,
          .head_size = the_case.head_size,
          .vocabulary_size = 16,
          .tied_embeddings = the_case.tied,
          .experts = {.count = the_case.experts,
                      .chosen = 2,
                      .ffn_size = 4,
                      .shared_ffn_size = 4,
                      .balance_loss = 0.01},
          // DeepSeek's router, with Llama's attention.
          .family = the_case.experts > 0 ? &WithExperts() : &LlamaFamily()};
}

// Its collectives are watched; what they stand on is kept.
class Rank {
 public:
  Rank(CommunicatorSet set) : set_(std::move(set)) {
    for (auto place :
         {&CommunicatorSet::world, &CommunicatorSet::tp, &CommunicatorSet::cp, &CommunicatorSet::dp,
          &CommunicatorSet::dp_gather, &CommunicatorSet::dp_replicate, &CommunicatorSet::pp,
          &CommunicatorSet::embedding, &CommunicatorSet::ep, &CommunicatorSet::expert_dp,
          &CommunicatorSet::expert_dp_gather, &CommunicatorSet::expert_dp_replicate}) {
      if (set_.*place == nullptr) continue;
      plain_.push_back(std::move(set_.*place));
      set_.*place = device_.Watched(*plain_.back());
    }
  }

  // A step, from which it is known what else to watch; two that follow each other at once; a
  // validation; and, where the case says so, a checkpoint that is written, one that is read, and
  // other weights, each with its next step.
  absl::Status Run(const Case& the_case, int rank) {
    const FaultStack fault_stack;
    CONVENE_ASSIGN_OR_RETURN(
        const std::unique_ptr<Engine> engine,
        Engine::Create({.model = Wide(the_case),
                        .layout = the_case.layout,
                        .rank = rank,
                        .dtype = the_case.dtype,
                        .reduce_dtype = the_case.reduce_dtype,
                        .recompute = the_case.recompute,
                        .sequence_parallel = the_case.sequence_parallel,
                        .row_chunks = the_case.row_chunks,
                        .overlap_communication = the_case.overlaps,
                        .sequence_length = the_case.sequence_length,
                        .context_method = the_case.context_method,
                        .microbatches = the_case.microbatches,
                        .schedule = *MakeSchedule(the_case.schedule, the_case.layout.pp, 0,
                                                  the_case.microbatches),
                        .bucket_count_min = the_case.bucket_count_min,
                        .zero_stage = the_case.zero_stage,
                        .reshard_after_forward = the_case.reshard_after_forward,
                        .offload_optimizer = the_case.offload_optimizer,
                        .offload_parameters = the_case.offload_parameters,
                        .copies_for_checkpoints = the_case.saves},
                       set_, device_));
    if (the_case.watches_memory) device_.WatchMemory();
    device_.Watch(engine->gradients());
    for (const BucketStore* const store : engine->stores()) {
      for (const ShardPart& part : store->shard().parts) {
        device_.Watch(store->ParametersOf(part));
        device_.Watch(store->GradientsOf(part));
      }
    }
    std::vector<int32_t> tokens;
    for (int i = 0; i < 2 * the_case.sequence_length; ++i) {
      // Each rank has tokens of its own part of the table and of others, however tp splits the
      // table and cp the rows.
      tokens.push_back(std::vector<int32_t>{0, 8, 5, 15, 5, 15, 0, 8}[i % 8]);
    }
    const std::vector<int32_t> uncounted(tokens.size(), -1);
    const TokenBatch batch{tokens.data(), tokens.data(), 16};
    const TokenBatch empty{tokens.data(), uncounted.data(), 0};
    // So that the engine does what it does on a GPU alone.
    device_.set_kind(DeviceKind::kCuda);
    const UpdateParameters adam{.learning_rate = 1e-3};
    CONVENE_RETURN_IF_ERROR(TrainStep(*engine, batch, adam).status());
    // The weights that the host made in it are copied in the next one.
    if (the_case.offload_optimizer) {
      CONVENE_RETURN_IF_ERROR(TrainStep(*engine, batch, adam).status());
    }
    known_from_ = static_cast<int>(device_.calls().size());
    for (int step = 0; step < 2; ++step) {
      CONVENE_RETURN_IF_ERROR(TrainStep(*engine, batch, adam).status());
      if (step > 0 || !the_case.has_empty_step) continue;
      CONVENE_RETURN_IF_ERROR(TrainStep(*engine, empty, adam).status());
    }
    CONVENE_RETURN_IF_ERROR(engine->ForwardLoss(batch, 1).status());
    if (!the_case.saves) return absl::OkStatus();
    CONVENE_RETURN_IF_ERROR(TrainStep(*engine, batch, adam).status());
    CONVENE_RETURN_IF_ERROR(engine->optimizer().PiecesToWrite().status());
    CONVENE_RETURN_IF_ERROR(engine->optimizer().PiecesToRead().status());
    CONVENE_RETURN_IF_ERROR(engine->optimizer().FinishRead());
    CONVENE_RETURN_IF_ERROR(engine->InitializeWeights());
    return TrainStep(*engine, batch, adam).status();
  }

  const std::vector<StreamCall>& calls() const { return device_.calls(); }
  // The first call of which all is known.
  int known_from() const { return known_from_; }

 private:
  RecordingDevice device_;
  std::vector<std::unique_ptr<Collective>> plain_;
  CommunicatorSet set_;
  int known_from_ = 0;
};

// The calls that every rank queued.
std::vector<std::unique_ptr<Rank>> Train(const Case& the_case) {
  std::vector<std::unique_ptr<Rank>> ranks;
  for (CommunicatorSet& set : LoopbackCommunicators(the_case.layout)) {
    ranks.push_back(std::make_unique<Rank>(std::move(set)));
  }
  std::vector<absl::Status> statuses(ranks.size());
  std::vector<Thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back(absl::StrCat("rank ", rank), [&, rank] {
      statuses[rank] = ranks[rank]->Run(the_case, static_cast<int>(rank));
    });
  }
  for (Thread& thread : threads) thread.Join();
  for (const absl::Status& status : statuses) REQUIRE_OK(status);
  return ranks;
}

const std::vector<std::string> kNone;

// Of ops that hand each other numbers in memory that shares its page with much else.
std::vector<std::string> DecisionsAtOnce(const std::vector<StreamCall>& calls, int lost) {
  return FindAtOnce({"SumOfSquares", "AddInOrder", "DecideStep", "AdamW"}, StreamNumber::kCompute,
                    StreamNumber::kCommunication, calls, lost);
}

// No race on any rank; and one as soon as any event is not recorded or not waited for.
void CheckEveryEvent(const Case& the_case) {
  const auto ranks = Train(the_case);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    INFO("rank " << rank);
    const std::vector<StreamCall>& calls = ranks[rank]->calls();
    CHECK(FindRaces(calls) == kNone);
    CHECK(DecisionsAtOnce(calls, /*lost=*/-1) == kNone);
    CHECK(std::none_of(calls.begin(), calls.end(),
                       [](const StreamCall& call) { return call.op == RecordingDevice::kNoOp; }));
    const std::vector<int> ordering = OrderingCalls(calls, ranks[rank]->known_from());
    CHECK(ordering.size() >= 10);
    for (const int call : ordering) {
      INFO("without call " << call << " of " << calls.size() << ", ZeRO-" << the_case.zero_stage
                           << ", " << the_case.layout.ToString());
      CHECK((FindRaces(calls, call) != kNone || DecisionsAtOnce(calls, call) != kNone));
    }
  }
}

TEST_CASE("collectives race with nothing, and every event between the streams is needed") {
  CheckEveryEvent({});
}

TEST_CASE("sums over ranks in bf16 race with nothing, and every event is needed") {
  CheckEveryEvent({.dtype = DType::kBFloat16, .reduce_dtype = DType::kBFloat16});
}

TEST_CASE("sums over copies of shards race with nothing, and every event is needed") {
  CheckEveryEvent({.layout = {.dp = 4, .dp_replicate = 2}});
  CheckEveryEvent({.layout = {.pp = 2, .dp = 2, .dp_replicate = 2}, .tied = true});
  CheckEveryEvent({.layout = {.dp = 2, .dp_replicate = 2},
                   .dtype = DType::kBFloat16,
                   .reduce_dtype = DType::kBFloat16});
}

TEST_CASE("activations in idle gradients race with nothing, and every event is needed") {
  CheckEveryEvent({.microbatches = 1});
  CheckEveryEvent({.layout = {.pp = 2, .dp = 2}, .tied = true, .microbatches = 1});
  CheckEveryEvent({.dtype = DType::kBFloat16, .microbatches = 1, .offload_optimizer = true});
  CheckEveryEvent({.layout = {.dp = 2, .tp = 2}, .sequence_parallel = true, .microbatches = 1});
}

TEST_CASE("shards of gradients and parameters race with nothing, and every event is needed") {
  for (const int zero_stage : {2, 3}) {
    CheckEveryEvent({.zero_stage = zero_stage});
    CheckEveryEvent({.dtype = DType::kBFloat16, .tied = true, .zero_stage = zero_stage});
    CheckEveryEvent(
        {.layout = {.dp = 4, .dp_replicate = 2}, .tied = true, .zero_stage = zero_stage});
    CheckEveryEvent({.layout = {.pp = 2, .dp = 2}, .tied = true, .zero_stage = zero_stage});
    CheckEveryEvent({.layout = {.dp = 2, .tp = 2},
                     .recompute = Recompute::kFull,
                     .sequence_parallel = true,
                     .zero_stage = zero_stage});
  }
  CheckEveryEvent({.zero_stage = 3, .reshard_after_forward = false});
}

// It runs no pass, while parameters of the step before may still be gathered. The wait for its
// result makes some of the events between its neighbours unneeded.
TEST_CASE("a step of which no target counts races with nothing") {
  for (Case the_case : std::vector<Case>{
           {},
           {.layout = {.pp = 2, .dp = 2}, .tied = true, .zero_stage = 3},
           {.dtype = DType::kBFloat16, .zero_stage = 2},
           {.zero_stage = 3, .offload_optimizer = true, .offload_parameters = true}}) {
    the_case.has_empty_step = true;
    for (const auto& rank : Train(the_case)) CHECK(FindRaces(rank->calls()) == kNone);
  }
}

TEST_CASE("an update by the host races with nothing, and every event is needed") {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    CheckEveryEvent({.dtype = dtype, .offload_optimizer = true});
    CheckEveryEvent({.dtype = dtype, .zero_stage = 3, .offload_optimizer = true});
    CheckEveryEvent(
        {.dtype = dtype, .zero_stage = 3, .offload_optimizer = true, .offload_parameters = true});
  }
}

TEST_CASE("a tied table on two stages races with nothing, and every event is needed") {
  CheckEveryEvent({.layout = {.pp = 2, .dp = 2}, .tied = true});
}

TEST_CASE("backward passes in halves race with nothing, and every event is needed") {
  CheckEveryEvent({.layout = {.pp = 2, .dp = 2}, .tied = true, .schedule = "zb-h1"});
  CheckEveryEvent({.layout = {.pp = 2, .dp = 2},
                   .recompute = Recompute::kFull,
                   .tied = true,
                   .schedule = "zb-v"});
}

TEST_CASE("what is saved and restored races with nothing") {
  for (const int zero_stage : {1, 2, 3}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const auto& rank : Train({.layout = {.pp = 2, .dp = 2},
                              .dtype = dtype,
                              .tied = true,
                              .saves = true,
                              .zero_stage = zero_stage})) {
        CHECK(FindRaces(rank->calls()) == kNone);
      }
    }
  }
}

TEST_CASE("an update by the host races with nothing beside stages and checkpoints") {
  for (const Case& the_case : std::vector<Case>{
           {.layout = {.pp = 2, .dp = 2}, .offload_optimizer = true},
           {.layout = {.pp = 2, .dp = 2}, .tied = true, .saves = true, .offload_optimizer = true},
           {.saves = true, .offload_optimizer = true}}) {
    for (const auto& rank : Train(the_case)) CHECK(FindRaces(rank->calls()) == kNone);
  }
}

TEST_CASE("an update by the host races with nothing beside a tied table, every event is needed") {
  for (const int zero_stage : {1, 2, 3}) {
    CheckEveryEvent({.layout = {.pp = 2, .dp = 2},
                     .tied = true,
                     .zero_stage = zero_stage,
                     .offload_optimizer = true,
                     .offload_parameters = zero_stage == 3});
  }
}

TEST_CASE("without overlap one data-parallel rank queues neither events nor ops beside others") {
  for (const auto& rank : Train({.layout = {.pp = 2}, .tied = true, .overlaps = false})) {
    CHECK(OrderingCalls(rank->calls(), rank->known_from()).empty());
    for (size_t i = rank->known_from(); i < rank->calls().size(); ++i) {
      CHECK(rank->calls()[i].stream == StreamNumber::kCompute);
    }
  }
}

TEST_CASE("updates beside the next step's passes race with nothing, and every event is needed") {
  CheckEveryEvent({.layout = {.dp = 1}});
  CheckEveryEvent({.layout = {.dp = 1}, .dtype = DType::kBFloat16, .microbatches = 1});
  CheckEveryEvent({.layout = {.pp = 2, .dp = 1}, .tied = true});
  CheckEveryEvent({.layout = {.dp = 1, .tp = 2}, .sequence_parallel = true, .microbatches = 1});
}

TEST_CASE("a checkpoint, other weights and a step without passes wait for updates beside them") {
  for (const bool saves : {false, true}) {
    const auto ranks = Train({.layout = {.dp = 1}, .saves = saves, .has_empty_step = !saves});
    CHECK(FindRaces(ranks[0]->calls()) == kNone);
  }
}

// By the record: an op takes as long as it touches pages, one of a pass eight times as long.
TEST_CASE("the next forward pass hides the updates of all buckets but the first") {
  const auto duration = [](const StreamCall& call) {
    return static_cast<double>(call.touches.size()) * (call.op == "AdamW" ? 1 : 8);
  };
  const auto time_of = [&](bool on) {
    const auto ranks =
        Train({.layout = {.dp = 1}, .layers = 6, .watches_memory = true, .overlaps = on});
    const std::vector<StreamCall>& calls = ranks[0]->calls();
    const StreamTime time = testing::TimeOfCompute(calls, ranks[0]->known_from(), duration);
    double updates = 0;
    for (size_t i = ranks[0]->known_from(); i < calls.size(); ++i) {
      if (calls[i].op == "AdamW") updates += duration(calls[i]);
    }
    return std::pair(time.work + time.waiting, updates);
  };
  const auto [alone, updates] = time_of(false);
  CHECK(alone - time_of(true).first > 0.8 * updates);
}

TEST_CASE("with several buckets reductions and gathers run beside the arithmetic") {
  const auto one = Train({.bucket_count_min = int64_t{1} << 40});
  const auto several = Train({});
  CHECK(FindRaces(one[0]->calls()) == kNone);
  CHECK(CountOpsBeside(StreamNumber::kCommunication, several[0]->calls()) >
        10 * CountOpsBeside(StreamNumber::kCommunication, one[0]->calls()));
}

// Of ops called `op`, how many are in each of the two streams, from a call on.
std::pair<int64_t, int64_t> CountIn(const Rank& rank, const std::string& op) {
  const auto count = [&](StreamNumber stream) {
    return std::count_if(
        rank.calls().begin() + rank.known_from(), rank.calls().end(),
        [&](const StreamCall& call) { return call.stream == stream && call.op == op; });
  };
  return {count(StreamNumber::kCompute), count(StreamNumber::kCommunication)};
}

TEST_CASE("the squares of a bucket are summed behind its reduction, beside the backward pass") {
  // Embedding, two blocks, head. Of the buckets, the first has tensors of each unit.
  constexpr int kSteps = 2;
  constexpr int kBuckets = 4;
  using Counts = std::pair<int64_t, int64_t>;
  const auto counts = [](const Case& the_case) {
    return CountIn(*Train(the_case)[0], "SumOfSquares");
  };
  CHECK((counts({}) == Counts{kSteps, kSteps * (kBuckets - 1)}));
  // Where gradients or parameters are sharded, the norms have a bucket of their own.
  CHECK((counts({.zero_stage = 2}) == Counts{kSteps, kSteps * kBuckets}));
  CHECK((counts({.zero_stage = 3}) == Counts{kSteps, kSteps * kBuckets}));
  // They run while products do, and not only beside the last sums.
  const std::vector<std::unique_ptr<Rank>> ranks = Train({});
  const std::vector<StreamCall>& calls = ranks[0]->calls();
  const auto named = [&](const char* op) {
    return std::find_if(calls.begin() + ranks[0]->known_from(), calls.end(),
                        [&](const StreamCall& call) { return call.op == op; });
  };
  const auto first_squares = named("SumOfSquares");
  REQUIRE(first_squares < named("AdamW"));
  CHECK(std::any_of(first_squares, named("AdamW"),
                    [](const StreamCall& call) { return call.op == "MatMul"; }));
  // One bucket of all: behind the backward pass.
  CHECK((counts({.bucket_count_min = int64_t{1} << 40}) == Counts{kSteps, 0}));
  // A rank alone reduces nothing: a bucket's follow the pass that made it.
  CHECK((counts({.layout = {.pp = 2, .dp = 1}}) == Counts{2 * kSteps, 0}));
  // Gradients that are summed once more wait for that sum: a tied table's with ZeRO-2.
  const Case tied = {.layout = {.pp = 2, .dp = 2}, .tied = true};
  CHECK((counts(tied) == Counts{kSteps, kSteps}));
  Case sharded = tied;
  sharded.zero_stage = 2;
  CHECK((counts(sharded) == Counts{2 * kSteps, kSteps}));
}

TEST_CASE("sums inside a layer race with nothing, and every event is needed") {
  CheckEveryEvent({.layout = {.dp = 1, .tp = 2}});
  CheckEveryEvent({.layout = {.dp = 2, .tp = 2}, .recompute = Recompute::kFull});
  CheckEveryEvent({.layout = {.dp = 1, .tp = 2}, .sequence_parallel = true});
  CheckEveryEvent({.layout = {.dp = 2, .tp = 2},
                   .recompute = Recompute::kFull,
                   .tied = true,
                   .sequence_parallel = true});
}

TEST_CASE("collectives of rows in chunks race with nothing, and every event is needed") {
  for (const bool sequence_parallel : {false, true}) {
    for (const int chunks : {2, 4}) {
      for (const Recompute& recompute : {Recompute::kNone, Recompute::kSelective}) {
        CheckEveryEvent({.layout = {.dp = 1, .tp = 2},
                         .recompute = recompute,
                         .sequence_parallel = sequence_parallel,
                         .row_chunks = chunks,
                         .sequence_length = 8});
      }
    }
  }
}

// Where products come again, what they wait for makes an event of the gradient's gather unneeded,
// as a ring's does one of a norm's; and a message between stages lands, outside of any op, in
// memory that collectives beside the arithmetic use.
TEST_CASE("collectives of rows in chunks race with nothing, whatever comes again or goes on") {
  for (Case the_case : std::vector<Case>{
           {.recompute = Recompute::kFull},
           {.recompute = Recompute{.norms = true, .attention = true, .mlp = true}},
           {.layout = {.dp = 1, .tp = 2, .cp = 2}, .recompute = Recompute::kSelective},
           {.layout = {.pp = 2, .dp = 1, .tp = 2}, .tied = true},
           {.layout = {.pp = 2, .dp = 2, .tp = 2}, .schedule = "zb-h1", .zero_stage = 2},
           {.layout = {.pp = 2, .dp = 1, .tp = 2},
           .recompute = Recompute::kSelective,
           .schedule = "zb-v"}}) {
    if (the_case.layout.tp == 1) the_case.layout = {.dp = 1, .tp = 2};
    the_case.row_chunks = 2;
    the_case.sequence_length = 8;
    for (const bool sequence_parallel : {false, true}) {
      the_case.sequence_parallel = sequence_parallel;
      for (const auto& rank : Train(the_case)) CHECK(FindRaces(rank->calls()) == kNone);
    }
  }
}

// Keys that go round fill two pages and more.
TEST_CASE("keys that go round race with nothing, and every event is needed") {
  constexpr int kLength = 64;
  constexpr int kHead = 16;
  CheckEveryEvent({.layout = {.dp = 1, .cp = 2}, .sequence_length = kLength, .head_size = kHead});
  CheckEveryEvent({.layout = {.dp = 1, .tp = 2, .cp = 2},
                   .recompute = Recompute::kFull,
                   .sequence_parallel = true,
                   .sequence_length = kLength,
                   .head_size = 2 * kHead});
  const auto ranks = Train({.layout = {.dp = 1, .cp = 2}});
  for (const auto& rank : ranks) {
    // One a forward pass, three a backward pass: one of keys, two of their gradients, the last of
    // which nothing runs beside; of two blocks and microbatches, and a validation.
    const int64_t shifts = std::count_if(rank->calls().begin(), rank->calls().end(),
                                         [](const StreamCall& call) { return call.op == "shift"; });
    CHECK(shifts == 3 * 2 * 2 * (1 + 3) + 2);
    CHECK(CountOpsBeside(StreamNumber::kLayerCommunication, rank->calls()) >= 3 * 2 * 2 * 3);
  }
}

// The ways of tokens to their experts run beside the shared experts.
TEST_CASE("tokens that travel to experts race with nothing") {
  for (Case the_case : std::vector<Case>{
           {.layout = {.dp = 2, .ep = 2}},
           {.layout = {.dp = 2, .ep = 2}, .recompute = Recompute::kFull},
           {.layout = {.dp = 2, .tp = 2, .ep = 2}, .sequence_parallel = true},
           {.layout = {.dp = 4, .ep = 2}, .zero_stage = 3},
           {.layout = {.dp = 2, .ep = 2}, .zero_stage = 2, .offload_optimizer = true}}) {
    the_case.experts = 4;
    for (const auto& rank : Train(the_case)) CHECK(FindRaces(rank->calls()) == kNone);
  }
}

TEST_CASE("other ways of context parallelism queue their collectives among the arithmetic") {
  for (const ContextMethod method : {ContextMethod::kAllGather, ContextMethod::kUlysses}) {
    CheckEveryEvent({.layout = {.dp = 1, .cp = 2}, .context_method = method});
  }
}

// kNcclKernelsAtOnce (comm/nccl/limits.h) counts on it.
TEST_CASE("compute and layer communication never hold a collective both") {
  const std::set<std::string> collectives = {
      "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "shift"};
  for (const Layout& layout : {Layout{.dp = 1, .tp = 2}, Layout{.pp = 2, .dp = 2, .tp = 2},
                               Layout{.dp = 1, .tp = 2, .cp = 2}}) {
    for (const auto& rank : Train({.layout = layout,
                            .tied = true,
                            .sequence_parallel = true,
                            .row_chunks = layout.dp,  // 1 or 2
                                   .sequence_length = 8})) {
      const std::vector<StreamCall>& calls = rank->calls();
      const auto at_once = [&](int lost) {
        return FindAtOnce(collectives, StreamNumber::kCompute, StreamNumber::kLayerCommunication,
                          calls, lost);
      };
      CHECK(at_once(/*lost=*/-1) == kNone);
      const std::vector<int> ordering = OrderingCalls(calls, rank->known_from());
      CHECK(std::any_of(ordering.begin(), ordering.end(),
                        [&](int call) { return at_once(call) != kNone; }));
    }
  }
}

TEST_CASE("a column-parallel layer's weight gradient runs beside the sum of its input gradient") {
  for (const auto& rank : Train({.layout = {.dp = 1, .tp = 2}})) {
    const std::vector<StreamCall>& calls = rank->calls();
    const int64_t sums = std::count_if(calls.begin(), calls.end(), [](const StreamCall& call) {
      return call.stream == StreamNumber::kLayerCommunication && call.op == "all_reduce";
    });
    // Two a block and microbatch of three steps.
    CHECK(sums == 2 * 2 * 2 * 3);
    CHECK(CountOpsBeside(StreamNumber::kLayerCommunication, calls) == sums);
  }
}

// How long a block's collectives hold up its arithmetic, as a part of the latter, by the record: an
// op takes as long as it touches pages, and a collective twice as long as its pages. That makes
// blocks of split rows about as slow as those of Llama 8B over 8 H100 by estimate (62 % of their
// time is arithmetic). Two blocks more tell the blocks' time from that of embedding and head.
double WaitingShare(Case the_case) {
  the_case.sequence_length = 32;
  the_case.watches_memory = true;
  StreamTime times[2];
  for (const int more : {0, 1}) {
    the_case.layers = 2 + 2 * more;
    const auto ranks = Train(the_case);
    times[more] = testing::TimeOfCompute(
        ranks[0]->calls(), ranks[0]->known_from(), [](const StreamCall& call) {
          return call.collective_bytes > 0
                     ? 2.0 * static_cast<double>(call.collective_bytes) / PageWatch::kPageBytes
                     : static_cast<double>(call.touches.size());
        });
  }
  return (times[1].waiting - times[0].waiting) / (times[1].work - times[0].work);
}

TEST_CASE("four chunks hide most of a block's collectives") {
  for (const auto& [recompute, sequence_parallel] :
       {std::pair(Recompute::kNone, true), std::pair(Recompute::kNone, false),
        std::pair(Recompute::kSelective, true), std::pair(Recompute::kFull, true)}) {
    Case the_case{.layout = {.dp = 1, .tp = 2},
                  .recompute = recompute,
                  .sequence_parallel = sequence_parallel};
    const double whole = WaitingShare(the_case);
    the_case.row_chunks = 4;
    const double in_chunks = WaitingShare(the_case);
    INFO("rows " << (sequence_parallel ? "split" : "whole") << ", norms "
                 << (recompute.norms ? "again" : "kept"));
    CHECK(whole > (sequence_parallel ? 0.6 : 0.2));
    CHECK(in_chunks < 0.12 * whole);
  }
}

}  // namespace
}  // namespace convene::worker
