#include "worker_runtime/trainer/testing/layout_case.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <random>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/options/elastic_layout.h"
#include "worker_runtime/schedule/generators.h"

namespace convene::worker::testing {
namespace {

using Kind = LayoutAxis::Kind;

constexpr int kRanksMax = 8;
constexpr const char* kSchedules[] = {"1f1b", "gpipe",      "interleaved", "zb-h1",
                                      "zb-v", "dualpipe-v", "own.csv"};
constexpr int kOwnSchedule = 6;
constexpr Recompute kRecomputes[] = {Recompute::kNone,    Recompute::kSelective,
                                     Recompute::kFull,    {.norms = true},
                                     {.attention = true}, {.swiglu = true, .mlp = true}};
const UpdateRule* const kOptimizers[] = {&AdamWRule(), &MuonRule(), &SgdRule()};
// Off, on, and where it is possible.
constexpr std::optional<bool> kSequenceParallel[] = {false, true, std::nullopt};
// For how many tasks a layout looks before another layout is drawn.
constexpr int kAttempts = 1000;

int Draw(const LayoutAxis& axis, std::mt19937_64& random) {
  return axis.values[random() % axis.values.size()];
}

// A cut of the layers that --pp-layout may name, by its number; "" for 0, and where there is none.
std::string CutText(int number, int layers, int chunks) {
  if (number == 0 || layers < chunks - 2) return "";
  std::vector<int> cut(chunks, 1);
  cut.front() = 0;
  cut.back() = 0;
  std::mt19937_64 random(number);
  for (int left = layers - std::max(0, chunks - 2); left > 0; --left) ++cut[random() % chunks];
  return absl::StrJoin(cut, ",");
}

Recompute RecomputeOf(const LayoutCase& c) {
  Recompute recompute = kRecomputes[c.recompute];
  if (c.recompute_layers > 0) recompute.layers = c.recompute_layers;
  return recompute;
}

// From one sample a step, by one more or at once.
BatchRamp RampOf(const LayoutCase& c) {
  if (c.ramp == 0 || c.global_batch == 1) return {};
  return {.full = c.global_batch,
          .start = 1,
          .increment = c.ramp == 1 ? 1 : c.global_batch - 1,
          .samples = c.global_batch};
}

int RowsOf(const LayoutCase& c) { return c.dp_replicate * c.dp_shard; }

// The file of a schedule that no name gives: all forward passes, and backward passes that begin
// with the last micro batch.
std::string OwnSchedule(const LayoutCase& c) {
  const int64_t microbatches = MicrobatchCount(EvenCut(c.global_batch, c.micro_batch, RowsOf(c)));
  std::string text;
  for (int rank = 0; rank < c.pp; ++rank) {
    for (int64_t i = 0; i < microbatches; ++i) absl::StrAppend(&text, rank, "F", i, ",");
    for (int64_t i = microbatches; i-- > 0;) absl::StrAppend(&text, rank, "B", i, ",");
    text.back() = '\n';
  }
  return text;
}

const LayoutAxis& FamilyAxis() {
  return *absl::c_find_if(LayoutAxes(),
                          [](const LayoutAxis& a) { return a.field == &LayoutCase::family; });
}

const char* FamilyWord(const LayoutCase& c) { return FamilyAxis().words[c.family]; }

const Family* FamilyOf(const LayoutCase& c) { return NamedModel(FamilyWord(c))->family; }

// A share of an expert that a step's last bits decide would be another model: losses are large, and
// so are the router's weights.
ExpertConfig ExpertsOf(const LayoutCase& c, const Family& family) {
  if (NamedModel(FamilyWord(c))->experts.count == 0) return {};
  return {.count = c.experts,
          .chosen = c.chosen,
          .ffn_size = c.expert_ffn,
          .shared_ffn_size = family.names.shared_up != nullptr ? c.ffn : 0,
          .first_dense_layers = family.router_groups ? 1 : 0,
          .groups = family.router_groups && c.experts % 4 == 0 ? 2 : 1,
          .balance_loss = c.router_losses * 0.1,
          .z_loss = c.router_losses * 0.01,
          .bias_rate = 0.01,
          .memory_factor = c.expert_memory / 10.0};
}

AdapterConfig AdapterOf(const LayoutCase& c, const Family& family) {
  if (c.lora == 0) return {};
  AdapterConfig adapter = {.rank = 4, .alpha = 6, .rank_stabilized = c.lora == 2};
  if (c.lora == 2) {
    adapter.dropout = 0.25;
    // Two matrices of three, and a row-parallel one.
    for (const char* const name : {family.names.query, family.names.value, family.names.down}) {
      if (name != nullptr) adapter.targets.emplace_back(name);
    }
  }
  return adapter;
}

ModelConfig ModelOf(const LayoutCase& c) {
  const Family* const family = FamilyOf(c);
  const bool is_latent = family->latent_attention;
  const bool is_capped = family->post_norms && !family->query_key_norms;
  const int heads = is_latent ? c.kv_heads : c.kv_heads * c.queries_a_key;
  return {.layers = c.layers,
          .hidden_size = c.hidden,
          .ffn_size = c.ffn,
          .heads = heads,
          .kv_heads = c.kv_heads,
          .head_size = c.head_size,
          .vocabulary_size = c.vocabulary,
          // The norm of a head of two small numbers, or of a part's small output, turns the last
          // bits into digits.
          .norm_epsilon = family->query_key_norms || family->post_norms ? 0.1 : 1e-5,
          .tied_embeddings = c.tied != 0,
          .initializer_range = 0.5 / std::sqrt(c.hidden),
          .positions = family->learned_positions ? 24 : 0,
          .sliding_window = family->has_window ? c.window : 0,
          .window_rope_theta = family->has_window_theta ? 100.0 : 0,
          .score_cap = is_capped ? 0.5 : 0,
          .logit_cap = is_capped ? 1.5 : 0,
          .rotary_size = is_latent || family->has_partial_rotary ? 2 : 0,
          .query_rank = is_latent && c.tied == 0 ? 7 : 0,
          .key_rank = is_latent ? 5 : 0,
          .value_size = is_latent ? c.head_size / 2 + 1 : 0,
          .multipliers = family->has_multipliers ? Multipliers{3, 0.3, 0.4, 2} : Multipliers(),
          .experts = ExpertsOf(c, *family),
          .adapter = AdapterOf(c, *family),
          .family = family};
}

// Muon makes whole steps of a gradient that is zero but for rounding, as that of keys is where
// queries see one token.
bool SeesOneToken(const LayoutCase& c) {
  return c.sequence_length < 4 || c.masked == kAllButOneTokenMasked ||
         (FamilyOf(c)->has_window && c.window == 1);
}

int ChunksOf(const LayoutCase& c) {
  if (c.schedule == kOwnSchedule) return c.pp;
  const auto schedule = MakeSchedule(kSchedules[c.schedule], c.pp, c.virtual_stages, 1);
  return schedule.ok() ? static_cast<int>(schedule->placement.size()) : 1;
}

// The axes of the task itself.
std::vector<LayoutAxis> TaskAxes() {
  using C = LayoutCase;
  return {
      {"family",
       &C::family,
       Kind::kTask,
       {0, 1, 2, 3, 4, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20},
       {"llama-tiny",   "qwen2-tiny",   "qwen3-tiny",       "gpt2-tiny",      "mistral-tiny",
        "gemma3-tiny",  "mla-tiny",     "moe-tiny",         "qwen3-moe-tiny", "deepseek-tiny",
        "gemma2-tiny",  "gpt-oss-tiny", "deepseek-v2-tiny", "glm4-moe-tiny",  "qwen2-moe-tiny",
        "smollm3-tiny", "phi3-tiny",    "seed-oss-tiny",    "granite-tiny",   "olmo2-tiny",
        "olmo3-tiny"}},
      {"layers", &C::layers, Kind::kTask, {1, 2, 3, 4, 5, 6, 7}},
      {"hidden", &C::hidden, Kind::kTask, {12, 15, 16, 17, 24, 32}},
      {"kv_heads", &C::kv_heads, Kind::kTask, {1, 2, 3, 4, 6, 8}},
      {"queries_a_key", &C::queries_a_key, Kind::kTask, {1, 2, 3}},
      {"head_size", &C::head_size, Kind::kTask, {2, 4, 6}},
      {"ffn", &C::ffn, Kind::kTask, {4, 6, 8, 9, 12, 15, 24}},
      {"vocabulary", &C::vocabulary, Kind::kTask, {8, 12, 15, 16, 24, 31, 42}},
      {"tied", &C::tied, Kind::kTask, {0, 1}},
      {"sequence_length", &C::sequence_length, Kind::kTask, {1, 2, 3, 4, 6, 7, 8, 12, 24}},
      {"global_batch", &C::global_batch, Kind::kTask, {1, 2, 3, 4, 6, 8, 9, 11, 13}},
      {"packed", &C::packed, Kind::kTask, {0, 1}},
      {"masked",
       &C::masked,
       Kind::kTask,
       {kNothingMasked, kTokensMasked, kSamplesMasked, kAllButOneSampleMasked,
        kAllButOneTokenMasked, kStepsMasked},
       {"nothing", "tokens", "samples", "all_but_one_sample", "all_but_one_token", "steps"}},
      {"clip", &C::clip, Kind::kTask, {0, 1}},
      {"experts", &C::experts, Kind::kTask, {2, 3, 4, 6, 8}},
      {"chosen", &C::chosen, Kind::kTask, {1, 2, 3}},
      {"expert_ffn", &C::expert_ffn, Kind::kTask, {4, 6, 8, 12}},
      {"router_losses", &C::router_losses, Kind::kTask, {0, 1}},
      {"optimizer", &C::optimizer, Kind::kTask, {0, 0, 1, 2}, {"adamw", "muon", "sgd"}},
      {"decay", &C::decay, Kind::kTask, {0, 1, 2}, {"matrices", "no_tables", "vectors"}},
      {"spikes", &C::spikes, Kind::kTask, {0, 0, 0, 1}},
      {"ramp", &C::ramp, Kind::kTask, {0, 0, 1, 2}},
      {"lora", &C::lora, Kind::kTask, {0, 0, 0, 1, 2}, {"none", "all", "some"}},
      // One token, fewer and more than a context-parallel rank's part of a row, more than a row.
      {"window", &C::window, Kind::kTask, {5, 1, 2, 3, 7, 30}},
  };
}

// The axes of the ranks, and of the ways in which they go about it.
std::vector<LayoutAxis> ExecutionAxes() {
  using C = LayoutCase;
  return {
      {"pp", &C::pp, Kind::kRanks, {1, 1, 2, 2, 3, 4, 5, 8, 8}},
      {"dp_replicate", &C::dp_replicate, Kind::kRanks, {1, 1, 1, 2, 3, 4}},
      {"dp_shard", &C::dp_shard, Kind::kRanks, {1, 1, 2, 2, 3, 4, 5, 7, 7}},
      {"cp", &C::cp, Kind::kRanks, {1, 1, 2, 2, 3, 4}},
      {"tp", &C::tp, Kind::kRanks, {1, 1, 2, 2, 3, 4, 6, 8}},
      {"ep", &C::ep, Kind::kExecution, {1, 1, 1, 2, 2, 3, 3, 4}},

      {"schedule",
       &C::schedule,
       Kind::kExecution,
       {0, 1, 2, 3, 4, 5, kOwnSchedule},
       {"1f1b", "gpipe", "interleaved", "zb-h1", "zb-v", "dualpipe-v", "csv"}},
      {"virtual_stages", &C::virtual_stages, Kind::kExecution, {0, 0, 1, 2, 3}},
      {"uneven_cut", &C::uneven_cut, Kind::kExecution, {0, 1, 2, 3, 4}},
      {"micro_batch", &C::micro_batch, Kind::kExecution, {1, 1, 2, 3}},
      {"sequence_parallel",
       &C::sequence_parallel,
       Kind::kExecution,
       {0, 1, 2},
       {"off", "on", "where_possible"}},
      {"row_chunks", &C::row_chunks, Kind::kExecution, {0, 2, 3, 4}},
      {"cp_method", &C::cp_method, Kind::kExecution, {0, 1, 2}, {"ring", "allgather", "ulysses"}},
      {"recompute",
       &C::recompute,
       Kind::kExecution,
       {0, 1, 2, 3, 4, 5},
       {"none", "selective", "full", "norms", "attention", "swiglu,mlp"}},
      {"recompute_layers", &C::recompute_layers, Kind::kExecution, {0, 0, 1, 2}},
      {"zero_stage", &C::zero_stage, Kind::kExecution, {1, 0, 2, 3, 3}},
      {"reshard", &C::reshard, Kind::kExecution, {1, 0}},
      {"offload", &C::offload, Kind::kExecution, {0, 1, 2}, {"none", "optimizer", "all"}},
      {"overlap", &C::overlap, Kind::kExecution, {1, 0}},
      {"bucket", &C::bucket, Kind::kExecution, {0, 1, 400}},
      {"gloo", &C::gloo, Kind::kExecution, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}},
      // In tenths of an even load.
      {"expert_memory", &C::expert_memory, Kind::kExecution, {20, 1, 10}},
  };
}

}  // namespace

const std::vector<LayoutAxis>& LayoutAxes() {
  static const auto* const axes = [] {
    auto* const all = new std::vector<LayoutAxis>(ExecutionAxes());
    absl::c_copy(TaskAxes(), std::back_inserter(*all));
    return all;
  }();
  return *axes;
}

LayoutCase SimplestCase() {
  LayoutCase simplest = {};
  for (const LayoutAxis& axis : LayoutAxes()) simplest.*axis.field = axis.values.front();
  return simplest;
}

std::string TextOf(const LayoutCase& the_case) {
  std::vector<std::string> parts;
  for (const LayoutAxis& axis : LayoutAxes()) {
    const int value = the_case.*axis.field;
    if (value == axis.values.front()) continue;
    parts.push_back(axis.words.empty() ? absl::StrCat(axis.name, "=", value)
                                       : absl::StrCat(axis.name, "=", axis.words[value]));
  }
  return absl::StrJoin(parts, " ");
}

absl::StatusOr<LayoutCase> CaseOfText(absl::string_view text) {
  LayoutCase the_case = SimplestCase();
  for (const absl::string_view part : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> halves =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto axis =
        absl::c_find_if(LayoutAxes(), [&](const LayoutAxis& a) { return halves.first == a.name; });
    if (axis == LayoutAxes().end()) {
      return absl::InvalidArgumentError(absl::StrCat("'", halves.first, "' is no axis"));
    }
    int value = 0;
    if (axis->words.empty()) {
      if (!absl::SimpleAtoi(halves.second, &value)) {
        return absl::InvalidArgumentError(absl::StrCat("'", part, "' has no number"));
      }
    } else {
      const auto word = absl::c_find(axis->words, halves.second);
      if (word == axis->words.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", part, "': the words are ", absl::StrJoin(axis->words, ", ")));
      }
      value = static_cast<int>(word - axis->words.begin());
    }
    the_case.*axis->field = value;
  }
  return the_case;
}

int RanksOf(const LayoutCase& the_case) {
  int ranks = 1;
  for (const LayoutAxis& axis : LayoutAxes()) {
    if (axis.kind == Kind::kRanks) ranks *= the_case.*axis.field;
  }
  return ranks;
}

TrainOptions OptionsOf(const LayoutCase& c) {
  return {.model_name = "drawn",
          .model = ModelOf(c),
          .data = {"drawn"},
          .tokenizer_path = "byte",
          .text_field = "text",
          .steps = 5,
          .seed = 11,
          .global_batch_size = c.global_batch,
          .ramp = RampOf(c),
          .micro_batch_size = c.micro_batch,
          .sequence_length = c.sequence_length,
          .packed_documents = c.packed != 0,
          .tp_size = c.tp,
          .cp_size = c.cp,
          .ep_size = c.ep,
          .cp_method = static_cast<ContextMethod>(c.cp_method),
          .pp_size = c.pp,
          .dp_size = RowsOf(c),
          .pp_schedule = kSchedules[c.schedule],
          .pp_schedule_csv = c.schedule == kOwnSchedule ? OwnSchedule(c) : "",
          .pp_virtual_stages = c.virtual_stages,
          .pp_layout = CutText(c.uneven_cut, c.layers, ChunksOf(c)),
          // Stage 0 shards nothing over data-parallel ranks.
          .dp_shard_size = c.zero_stage == 0 ? 1 : c.dp_shard,
          .dp_replicate_size = c.zero_stage == 0 ? RowsOf(c) : c.dp_replicate,
          .zero_stage = c.zero_stage,
          .reshard_after_forward = c.reshard == 1,
          .offload_optimizer = c.offload > 0,
          // Elsewhere there are no shards of parameters.
          .offload_parameters = c.offload == 2 && c.zero_stage == 3,
          .sequence_parallel = kSequenceParallel[c.sequence_parallel],
          .overlap_communication = c.overlap == 1,
          .precision = DType::kFloat32,
          .recompute = RecomputeOf(c),
          // Small steps from tame weights: hot ones turn the last bits of a sum into digits. SGD's
          // are as small as the gradients are.
          .learning_rate = kOptimizers[c.optimizer] == &SgdRule() ? 0.05 : 0.001,
          .optimizer = kOptimizers[c.optimizer],
          .weight_decay = 0.1,
          .decay_embeddings = c.decay != 1,
          .decay_norms_and_biases = c.decay == 2,
          .beta1 = 0.9,
          .beta2 = 0.95,
          // As large as gradients are: an update then tells the size of a gradient, not its sign
          // alone, and where a gradient is 0 but for rounding nothing moves.
          .epsilon = 0.01,
          .momentum = 0.9,
          .nesterov = c.optimizer == 1,
          .clip_grad_norm = static_cast<double>(c.clip),
          .max_skipped_steps = 1,
          .checkpoint_keep = 2,
          .max_failed_checkpoints = 1,
          .log_every = 1,
          .validation_samples = 1,
          .token_cache_dir = "none",
          .collective_timeout = absl::Seconds(20),
          .checkpoint_timeout = absl::Seconds(20)};
}

absl::StatusOr<Layout> LegalLayout(const LayoutCase& the_case) {
  const int ranks = RanksOf(the_case);
  if (ranks > kRanksMax) return absl::InvalidArgumentError(absl::StrCat(ranks, " ranks"));
  if (kOptimizers[the_case.optimizer] == &MuonRule() && SeesOneToken(the_case)) {
    return absl::InvalidArgumentError("muon needs gradients of all matrices");
  }
  CONVENE_ASSIGN_OR_RETURN(const LayoutDecision decision,
                           DecideLayout(OptionsOf(the_case), ranks, /*job_has_begun=*/false));
  return decision.layout;
}

LayoutCase CaseOfFamily(int family, uint64_t number) {
  const std::string text = absl::StrCat(FamilyAxis().words[family], " ", number);
  std::seed_seq seeds(text.begin(), text.end());
  std::mt19937_64 random(seeds);
  for (;;) {
    LayoutCase drawn = SimplestCase();
    for (const LayoutAxis& axis : LayoutAxes()) {
      if (axis.kind == Kind::kRanks) drawn.*axis.field = Draw(axis, random);
    }
    for (int attempt = 0; RanksOf(drawn) <= kRanksMax && attempt < kAttempts; ++attempt) {
      for (const LayoutAxis& axis : LayoutAxes()) {
        if (axis.kind != Kind::kRanks) drawn.*axis.field = Draw(axis, random);
      }
      drawn.family = family;
      if (LegalLayout(drawn).ok()) return drawn;
    }
  }
}

LayoutCase CaseOfSeed(uint64_t seed) {
  const std::vector<int>& turns = FamilyAxis().values;
  const uint64_t turn = (seed - 1) % turns.size();
  const int family = turns[turn];
  const auto before = std::count(turns.begin(), turns.begin() + turn, family);
  return CaseOfFamily(family, (seed - 1) / turns.size() * absl::c_count(turns, family) + before);
}

uint64_t CheckedSeeds() { return 14 * FamilyAxis().values.size(); }

LayoutCase OneProcess(LayoutCase the_case) {
  for (const LayoutAxis& axis : LayoutAxes()) {
    if (axis.kind != Kind::kTask) the_case.*axis.field = axis.values.front();
  }
  the_case.micro_batch = the_case.global_batch;
  return the_case;
}

Shrunk Shrink(const LayoutCase& the_case, int runs_max,
              absl::FunctionRef<bool(const LayoutCase&)> fails) {
  Shrunk shrunk = {the_case};
  // Whether the axis could be brought nearer.
  const auto step = [&](const LayoutAxis& axis) {
    for (size_t i = 0; i < axis.values.size(); ++i) {
      LayoutCase simpler = shrunk.smallest;
      if (axis.values[i] == simpler.*axis.field || shrunk.runs >= runs_max) return false;
      if (i > 0 && axis.values[i] == axis.values[i - 1]) continue;
      simpler.*axis.field = axis.values[i];
      if (!LegalLayout(simpler).ok()) continue;
      ++shrunk.runs;
      if (!fails(simpler)) continue;
      shrunk.smallest = simpler;
      return true;
    }
    return false;
  };
  // One axis may hold another up, so the sweep is repeated until it finds nothing.
  for (bool is_nearer = true; is_nearer;) {
    is_nearer = false;
    for (const LayoutAxis& axis : LayoutAxes()) is_nearer = step(axis) || is_nearer;
  }
  return shrunk;
}

}  // namespace convene::worker::testing
