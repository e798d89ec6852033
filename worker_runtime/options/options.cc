#include "worker_runtime/options/options.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/rounding.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/ops/binned_digits.h"
#include "worker_runtime/options/adapter_options.h"
#include "worker_runtime/options/ramp_options.h"
#include "worker_runtime/options/sample_options.h"
#include "worker_runtime/schedule/chunk_layers.h"
#include "worker_runtime/schedule/generators.h"
#include "worker_runtime/schedule/schedule_csv.h"

namespace convene::worker {
namespace {

// The memory of a rank has room for no more copies of others (replicas/peer_replicas.cc).
constexpr int kMostReplicas = 15;

absl::Status AtLeast(const char* key, int64_t value, int64_t minimum) {
  if (value >= minimum) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key, " ", value, " must be at least ", minimum));
}

// InvalidArgument "must be `wish`" unless `holds`; comparisons with NaN do not hold.
absl::Status Demand(bool holds, const char* key, double value, absl::string_view wish) {
  if (holds) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(key, " ", value, " must be ", wish));
}

absl::Status ValidateCounts(const TrainOptions& options) {
  CONVENE_RETURN_IF_ERROR(AtLeast("steps", options.steps, 1));
  CONVENE_RETURN_IF_ERROR(AtLeast("seed", options.seed, 0));
  CONVENE_RETURN_IF_ERROR(AtLeast("global_batch_size", options.global_batch_size, 1));
  CONVENE_RETURN_IF_ERROR(AtLeast("micro_batch_size", options.micro_batch_size, 1));
  CONVENE_RETURN_IF_ERROR(AtLeast("sequence_length", options.sequence_length, 1));
  CONVENE_RETURN_IF_ERROR(AtLeast("max_skipped_steps", options.max_skipped_steps, 1));
  CONVENE_RETURN_IF_ERROR(AtLeast("checkpoint_every", options.checkpoint_every, 0));
  CONVENE_RETURN_IF_ERROR(AtLeast("checkpoint_keep", options.checkpoint_keep, 2));
  CONVENE_RETURN_IF_ERROR(AtLeast("max_failed_checkpoints", options.max_failed_checkpoints, 1));
  CONVENE_RETURN_IF_ERROR(AtLeast("replicate_every", options.replicate_every, 0));
  if (options.replicas > kMostReplicas) {
    return absl::InvalidArgumentError(
        absl::StrCat("replicas ", options.replicas, " must be from 0 to ", kMostReplicas,
                     ": each rank keeps as many copies of other ranks"));
  }
  CONVENE_RETURN_IF_ERROR(AtLeast("log_every", options.log_every, 1));
  if (!(options.peak_tflops >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("peak_tflops ", options.peak_tflops, " must not be negative"));
  }
  CONVENE_RETURN_IF_ERROR(AtLeast("validation_every", options.validation_every, 0));
  CONVENE_RETURN_IF_ERROR(AtLeast("validation_samples", options.validation_samples, 1));
  // All other code counts sample and token positions in int64.
  constexpr double kMostTokens = static_cast<double>(std::numeric_limits<int64_t>::max() / 2);
  const double step_tokens =
      static_cast<double>(options.global_batch_size) * options.sequence_length;
  const double most_steps = std::floor(kMostTokens / step_tokens);
  if (static_cast<double>(options.steps) <= most_steps) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "steps ", options.steps, " x global_batch_size ", options.global_batch_size,
      " x sequence_length ", options.sequence_length, " is more tokens than can be counted; ",
      most_steps < 1 ? "choose a smaller global_batch_size or sequence_length"
                     : absl::StrCat("steps can be at most ", static_cast<int64_t>(most_steps))));
}

absl::Status ValidateTrace(const TrainOptions& options) {
  if (!options.trace.has_value()) return absl::OkStatus();
  const auto [first, last] = *options.trace;
  if (1 <= first && first <= last && last <= options.steps) return absl::OkStatus();
  const auto within = [&](int64_t step) { return std::clamp<int64_t>(step, 1, options.steps); };
  return absl::InvalidArgumentError(absl::StrCat(
      "trace steps=", first, ":", last, " must be a first and a last step of the run's ",
      options.steps, ": write steps=", within(std::min(first, last)), ":",
      within(std::max(first, last))));
}

absl::Status ValidateOptimizer(const TrainOptions& options) {
  const double rate = options.learning_rate;
  CONVENE_RETURN_IF_ERROR(
      Demand(rate > 0 && std::isfinite(rate), "learning_rate", rate, "greater than 0"));
  CONVENE_RETURN_IF_ERROR(Demand(
      options.min_learning_rate >= 0 && options.min_learning_rate <= rate, "min_learning_rate",
      options.min_learning_rate, absl::StrCat("from 0 to learning_rate, which is ", rate)));
  if (options.warmup_steps < 0 || options.warmup_steps > options.steps) {
    return absl::InvalidArgumentError(absl::StrCat("warmup_steps ", options.warmup_steps,
                                                   " must be from 0 to steps, which is ",
                                                   options.steps));
  }
  const int64_t most_decay = options.steps - options.warmup_steps;
  if (IsWsd(options.rate_shape) &&
      (options.lr_decay_steps < 0 || options.lr_decay_steps > most_decay)) {
    return absl::InvalidArgumentError(
        absl::StrCat("lr_decay_steps ", options.lr_decay_steps,
                     " must be from 0 to steps - warmup_steps, which is ", most_decay));
  }
  CONVENE_RETURN_IF_ERROR(
      Demand(options.weight_decay >= 0, "weight_decay", options.weight_decay, "0 or more"));
  CONVENE_RETURN_IF_ERROR(Demand(options.beta1 >= 0 && options.beta1 < 1, "beta1", options.beta1,
                                 "at least 0 and less than 1"));
  CONVENE_RETURN_IF_ERROR(Demand(options.beta2 >= 0 && options.beta2 < 1, "beta2", options.beta2,
                                 "at least 0 and less than 1"));
  CONVENE_RETURN_IF_ERROR(Demand(options.momentum >= 0 && options.momentum < 1, "momentum",
                                 options.momentum, "at least 0 and less than 1"));
  CONVENE_RETURN_IF_ERROR(
      Demand(options.epsilon > 0, "epsilon", options.epsilon, "greater than 0"));
  if (options.offload_optimizer && options.optimizer->matrices() != nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer ", options.optimizer->name(),
                     " multiplies whole matrices on the device, so its state cannot be offloaded; "
                     "choose offload none, or optimizer adamw or sgd"));
  }
  CONVENE_RETURN_IF_ERROR(AtLeast("spike_window", options.spikes.window, 1));
  for (const auto& [key, factor] : {std::pair{"max_loss_spike", options.spikes.max_loss},
                                    std::pair{"max_gradient_spike", options.spikes.max_gradient}}) {
    CONVENE_RETURN_IF_ERROR(Demand(factor == 0 || factor > 1, key, factor, "0 (off) or above 1"));
  }
  return Demand(options.clip_grad_norm >= 0, "clip_grad_norm", options.clip_grad_norm,
                "0 (off) or more");
}

absl::Status ValidateSurroundings(const TrainOptions& options) {
  if (options.data.empty() && !options.print_memory_plan) {
    return absl::InvalidArgumentError(
        "nothing to train on: give --data FILE..., or data: in the file of --config");
  }
  for (const std::string& item : options.data) {
    if (item.empty()) return absl::InvalidArgumentError("data has an empty file name");
  }
  if (options.tokenizer_path.empty()) {
    return absl::InvalidArgumentError(
        "tokenizer must be byte, or a tokenizer's file or folder, but it is empty");
  }
  if (options.text_field.empty()) {
    return absl::InvalidArgumentError("text_field must name a field of the JSON lines");
  }
  CONVENE_RETURN_IF_ERROR(AtLeast("max_bad_lines", options.max_bad_lines, 0));
  CONVENE_RETURN_IF_ERROR(
      Demand(options.validation_fraction >= 0 && options.validation_fraction < 1,
             "validation_fraction", options.validation_fraction, "at least 0 and less than 1"));
  if (options.resume == ResumeMode::kDirectory && options.resume_directory.empty()) {
    return absl::InvalidArgumentError("resume must be auto, none or a checkpoint's directory");
  }
  CONVENE_RETURN_IF_ERROR(Demand(options.token_cache_days >= 0, "token_cache_days",
                                 options.token_cache_days,
                                 "at least 0 (0: files of any age stay)"));
  CONVENE_RETURN_IF_ERROR(AtLeast("token_cache_bytes", options.token_cache_bytes.value_or(0), 0));
  CONVENE_RETURN_IF_ERROR(
      Demand(options.checkpoint_timeout > absl::ZeroDuration(), "checkpoint_timeout_seconds",
             absl::ToDoubleSeconds(options.checkpoint_timeout), "greater than 0"));
  return Demand(options.collective_timeout > absl::ZeroDuration(), "collective_timeout_seconds",
                absl::ToDoubleSeconds(options.collective_timeout), "greater than 0");
}

absl::Status ValidateDocuments(const TrainOptions& options) {
  const std::optional<int64_t> token = options.eod_token;
  if (!options.packed_documents || !token.has_value() ||
      (*token >= 0 && *token < options.model.vocabulary_size)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("eod_token ", *token,
                                                 " is no token: it must be from 0 to ",
                                                 options.model.vocabulary_size - 1));
}

// Pairs of answers (DPO).
absl::Status ValidatePreferences(const TrainOptions& options, const Layout& layout) {
  CONVENE_RETURN_IF_ERROR(Demand(options.preference_beta >= 0 && options.preference_beta < 1e6,
                                 "preference_beta", options.preference_beta,
                                 "at least 0 and less than 1e6"));
  if (options.preference_beta == 0) return absl::OkStatus();
  const struct {
    bool is_wrong;
    const char* why;
  } rules[] = {
      {options.chat_template.empty() || !options.packed_documents,
       "reads messages as whole documents: give --chat-template (auto: the tokenizer's), and leave "
       "packed_documents out"},
      {options.init_from.empty(),
       "compares with the model that the training begins with: name that one (--init-from)"},
      {options.sequence_length % 2 != 0, "needs an even sequence_length, half for each answer"},
      {options.max_bad_lines > 0,
       "needs both answers of each line, so no line can be left out: leave max_bad_lines out"},
      {!options.validation_data.empty(),
       "knows no further validation sets: leave validation_data out (validation_fraction holds "
       "pairs out)"},
      {options.data_order != DataOrder::kConvene, "needs data_order convene"},
      {options.model.adapter.dropout > 0,
       "compares two passes of the model, which dropout would change: leave lora_dropout out"},
      {options.model.experts.count > 0,
       "is not for models with experts, whose balance it has no measure for"},
      {layout.cp > 1 && ContextMethodOf(options, layout) == ContextMethod::kUlysses,
       "needs halves of a sample on each cp rank: choose cp_method ring or allgather"},
  };
  for (const auto& rule : rules) {
    if (!rule.is_wrong) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("preference_beta ", options.preference_beta, " ", rule.why));
  }
  return absl::OkStatus();
}

// Sizes of arrays are int.
constexpr double kLargestProduct = 1 << 30;

// The values by which one of two factors alone makes their product small enough, where there are
// such values.
std::string AtMost(const char* key, int64_t most, const char* other_key, int64_t most_other) {
  const auto way = [](const char* name, int64_t number) {
    return number < 1 ? "" : absl::StrCat(name, " can be at most ", number);
  };
  return absl::StrCat(way(key, most), most > 0 && most_other > 0 ? ", or " : "",
                      way(other_key, most_other));
}

int64_t DownTo(int64_t multiple, int64_t number) { return number / multiple * multiple; }

// The length of a row is a multiple of it. Rows that are split over tp come out even in every size
// of a micro batch, also after a node is lost.
int64_t SequenceMultiple(const TrainOptions& options, const Layout& layout) {
  const bool splits_rows = options.sequence_parallel.value_or(false);
  return std::lcm(ContextMultiple(ContextMethodOf(options, layout), layout.cp),
                  splits_rows ? int64_t{layout.cp} * layout.tp : 1);
}

// A step's tokens lie in memory.
absl::Status ValidateStepTokens(const TrainOptions& options, const Layout& layout) {
  const double tokens =
      static_cast<double>(options.global_batch_size) * options.sequence_length / layout.dp;
  if (tokens < kLargestProduct) return absl::OkStatus();
  const auto most = [&](int64_t other) {
    return static_cast<int64_t>((kLargestProduct - 1.0) * layout.dp / other);
  };
  return absl::InvalidArgumentError(absl::StrCat(
      "global_batch_size ", options.global_batch_size, " x sequence_length ",
      options.sequence_length, " over dp ", layout.dp, " must be below 2^30 tokens a step; ",
      AtMost("global_batch_size", most(options.sequence_length), "sequence_length",
             DownTo(SequenceMultiple(options, layout), most(options.global_batch_size)))));
}

// Sizes are int inside a forward pass, and a message between pipeline stages is below 4 GiB.
absl::Status ValidateMicroBatch(const TrainOptions& options, const Layout& layout) {
  const int rows = CutOf(options, layout).micro_batch_size;
  const double hidden =
      1.0 * options.model.hidden_size / layout.cp;  // of each token of a whole row
  if (rows * options.sequence_length * hidden < kLargestProduct) return absl::OkStatus();
  const auto most = [&](int64_t other) {
    return static_cast<int64_t>((kLargestProduct - 1.0) / hidden / other);
  };
  return absl::InvalidArgumentError(
      absl::StrCat("micro_batch_size ", rows, " x sequence_length ", options.sequence_length,
                   " x hidden_size ", options.model.hidden_size, " must be below 2^30 numbers; ",
                   AtMost("micro_batch_size", most(options.sequence_length), "sequence_length",
                          DownTo(SequenceMultiple(options, layout), most(rows)))));
}

// Products of 8-bit floats take matrices whose sides are multiples of 16 (ops/float8.h). Rows of a
// micro batch are, in every size of it, where those of one sample are.
absl::Status ValidateFloat8(const TrainOptions& options, const Layout& layout) {
  if (!options.float8) return absl::OkStatus();
  const ModelConfig& model = options.model;
  if (model.experts.count > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("precision fp8 has no products in blocks with experts, which ",
                     options.model_name, " has; precision can be bf16 or fp32"));
  }
  if (model.family->latent_attention) {
    return absl::InvalidArgumentError(
        absl::StrCat("precision fp8 knows no latent attention, which ", options.model_name,
                     " has; precision can be bf16 or fp32"));
  }
  const int64_t heads = model.heads / layout.tp;
  const int64_t kv_heads = std::max(1, model.kv_heads / layout.tp);
  const struct {
    const char* name;
    int64_t width;
  } widths[] = {
      {"hidden_size", model.hidden_size},
      {"heads / tp_size x head_size", heads * model.head_size},
      {"(heads + 2 kv_heads) / tp_size x head_size", (heads + 2 * kv_heads) * model.head_size},
      {"ffn_size / tp_size", model.ffn_size / layout.tp},
      {"sequence_length / cp_size", options.sequence_length / layout.cp}};
  for (const auto& [name, width] : widths) {
    if (width % 16 == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("precision fp8 wants widths that are multiples of 16, and ", name, " is ",
                     width, "; choose others, or precision can be bf16 or fp32"));
  }
  const int most = (model.layers - 1) / 2;
  if (options.bf16_end_blocks <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "bf16_end_blocks ", options.bf16_end_blocks, " must be from 0 to ", most,
      ": with more none of the model's ", model.layers, " blocks is left for precision fp8"));
}

absl::Status ValidateSequence(const TrainOptions& options, const Layout& layout) {
  const ModelConfig& model = options.model;
  if (model.family->learned_positions && options.sequence_length > model.positions) {
    return absl::InvalidArgumentError(absl::StrCat("sequence_length ", options.sequence_length,
                                                   " is longer than the model's ", model.positions,
                                                   " learned positions; choose sequence_length ",
                                                   model.positions, ", or more positions"));
  }
  const int64_t multiple = SequenceMultiple(options, layout);
  if (options.sequence_length % multiple == 0) return absl::OkStatus();
  std::vector<std::string> cuts;
  const ContextMethod method = ContextMethodOf(options, layout);
  const int64_t chunks = ContextMultiple(method, layout.cp);
  if (layout.cp > 1) {
    cuts.push_back(absl::StrCat("cp_method ", ContextMethodName(method), " cuts it into ", chunks,
                                " equal chunks for cp_size ", layout.cp));
  }
  if (options.sequence_parallel.value_or(false)) {
    cuts.push_back(absl::StrCat("sequence_parallel splits it over tp_size ", layout.tp,
                                layout.cp > 1 ? absl::StrCat(" x cp_size ", layout.cp) : ""));
  }
  const int64_t below = DownTo(multiple, options.sequence_length);
  const bool tp_is_at_fault = options.sequence_length % chunks == 0;
  return absl::InvalidArgumentError(
      absl::StrCat("sequence_length ", options.sequence_length,
                   " does not come out even: ", absl::StrJoin(cuts, ", and "),
                   "; choose sequence_length ", below == 0 ? "" : absl::StrCat(below, " or "),
                   below + multiple, tp_is_at_fault ? ", or leave sequence_parallel off" : ""));
}

// A sum has a microbatch's gradient once from each context-parallel rank, and of a tied table
// twice.
absl::Status ValidateReproducible(const TrainOptions& options, const Layout& layout) {
  if (!options.reproducible) return absl::OkStatus();
  if (options.reduce_dtype != DType::kFloat32) {
    return absl::InvalidArgumentError(
        "reproducible sums have digits of their own: leave reduce_dtype out, or reproducible");
  }
  if (options.ep_size > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "with ep_size ", options.ep_size,
        " an expert multiplies the tokens of several ranks' micro batches at once, so that its "
        "sums depend on dp: for reproducible ep_size must be 1"));
  }
  const int64_t of_each = int64_t{layout.cp} * (options.model.tied_embeddings ? 2 : 1);
  const int64_t rows = CutOf(options, layout).micro_batch_size;
  const int64_t most = kBinnedSummandsMax / of_each;
  if (CeilDivide(options.global_batch_size, rows) <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "reproducible sums have room for ", most, " micro batches a step, and global_batch_size ",
      options.global_batch_size, " has more of micro_batch_size ", rows,
      "; micro_batch_size can be ", CeilDivide(options.global_batch_size, most),
      ", or global_batch_size at most ", most * rows));
}

absl::Status CheckFileFits(const TrainOptions& options, const Schedule& schedule,
                           const Layout& layout, int microbatches) {
  const int file_ranks = static_cast<int>(schedule.ranks.size());
  if (file_ranks == layout.pp && schedule.microbatches == microbatches) return absl::OkStatus();
  std::vector<std::string> ways;
  if (file_ranks != layout.pp) ways.push_back(absl::StrCat("pp_size ", file_ranks));
  // With the file's ranks the same workers make other replicas.
  const int dp = std::max(1, layout.dp * layout.pp / file_ranks);
  const auto fits = [&](int64_t micro_batch_size) {
    return MicrobatchCount(EvenCut(options.global_batch_size, micro_batch_size, dp)) ==
           schedule.microbatches;
  };
  if (!fits(options.micro_batch_size)) {
    // The rows of the longest rank as evenly over the file's micro batches as they go.
    const int64_t rows = (options.global_batch_size + dp - 1) / dp;
    const int64_t micro = (rows + schedule.microbatches - 1) / schedule.microbatches;
    if (fits(micro)) {
      ways.push_back(absl::StrCat("micro_batch_size ", micro));
    } else {
      // The product of three large numbers is none.
      const bool keeps_rows = options.micro_batch_size < kLargestProduct;
      if (!keeps_rows) ways.push_back("micro_batch_size 1");
      ways.push_back(
          absl::StrCat("global_batch_size ",
                       (keeps_rows ? options.micro_batch_size : 1) * dp * schedule.microbatches));
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "pp_schedule ", options.pp_schedule, " is for ", file_ranks, " ranks and ",
      schedule.microbatches, " micro batches, but this job has pp_size ", layout.pp, " and ",
      microbatches, " micro batches a step; choose ", absl::StrJoin(ways, " and ")));
}

// The first chunk and the last may do without a layer.
absl::Status CheckChunks(const TrainOptions& options, int ranks, int stages) {
  const int most = options.model.layers + 2;
  if (int64_t{stages} * ranks <= most) return absl::OkStatus();
  const bool by_schedule = options.pp_virtual_stages == 0 && stages > 1;
  const bool can_be_fewer =
      options.pp_virtual_stages > 0 && ranks <= most &&
      MakeSchedule(options.pp_schedule, ranks, most / ranks, /*microbatches=*/1).ok();
  return absl::InvalidArgumentError(absl::StrCat(
      "pp_size ", ranks, " x ",
      by_schedule ? absl::StrCat(stages, " chunks a rank of pp_schedule ", options.pp_schedule)
                  : absl::StrCat("pp_virtual_stages ", stages),
      " are more chunks than ", options.model.layers, " layers fill; ",
      AtMost("pp_size", most / stages, "pp_virtual_stages", can_be_fewer ? most / ranks : 0),
      by_schedule && ranks <= most ? ", or choose pp_schedule 1f1b, gpipe or zb-h1" : ""));
}

// The two copies of a tied table meet in a group of the first and the last pipeline rank.
absl::Status CheckEnds(const TrainOptions& options, const ChunkPlacement& placement, int ranks) {
  const bool at_ends = placement.front() == 0 && placement.back() == ranks - 1;
  if (!options.model.tied_embeddings || at_ends || placement.front() == placement.back()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "pp_schedule ", options.pp_schedule, " has the model's first chunk on rank ",
      placement.front(), " and the last on rank ", placement.back(),
      "; with tied embeddings they must be on rank 0 and rank ", ranks - 1, ", or on one rank"));
}

bool Has(const Schedule& schedule, ComputeKind kind) {
  return absl::c_any_of(schedule.ranks, [&](const std::vector<Compute>& rank) {
    return absl::c_any_of(rank, [&](const Compute& compute) { return compute.kind == kind; });
  });
}

// Whether Ulysses can share out the heads of a tensor-parallel rank.
absl::Status ValidateHeads(ContextMethod method, const TrainOptions& options,
                           const Layout& layout) {
  return ValidateContextHeads(method, layout.cp, layout.gradient_ranks(), options.sequence_length,
                              options.model.heads / layout.tp,
                              std::max(1, options.model.kv_heads / layout.tp));
}

}  // namespace

absl::Status ValidateOptions(const TrainOptions& options, const Layout& layout) {
  CONVENE_RETURN_IF_ERROR(ValidateSurroundings(options));
  CONVENE_RETURN_IF_ERROR(ValidateCounts(options));
  CONVENE_RETURN_IF_ERROR(ValidateSamples(options.samples));
  CONVENE_RETURN_IF_ERROR(ValidateOptimizer(options));
  CONVENE_RETURN_IF_ERROR(ValidateTrace(options));
  CONVENE_RETURN_IF_ERROR(ValidateRamp(options));
  CONVENE_RETURN_IF_ERROR(ValidateTrainedModel(options, layout));
  CONVENE_RETURN_IF_ERROR(ValidateDocuments(options));
  CONVENE_RETURN_IF_ERROR(ValidatePreferences(options, layout));
  CONVENE_RETURN_IF_ERROR(ValidateStepTokens(options, layout));
  CONVENE_RETURN_IF_ERROR(ValidateHeads(ContextMethodOf(options, layout), options, layout));
  CONVENE_RETURN_IF_ERROR(ValidateSequence(options, layout));
  CONVENE_RETURN_IF_ERROR(ValidateFloat8(options, layout));
  CONVENE_RETURN_IF_ERROR(ValidateReproducible(options, layout));
  CONVENE_RETURN_IF_ERROR(PipelineOf(options, layout).status());
  return ValidateMicroBatch(options, layout);
}

absl::StatusOr<PipelineChoice> PipelineOf(const TrainOptions& options, const Layout& layout) {
  const int microbatches = static_cast<int>(MicrobatchCount(CutOf(options, layout)));
  // MakeSchedule's chunks must not be many more than the model has layers, however large the flag.
  CONVENE_RETURN_IF_ERROR(CheckChunks(options, layout.pp, std::max(options.pp_virtual_stages, 1)));
  PipelineChoice choice;
  if (options.pp_schedule_csv.empty()) {
    CONVENE_ASSIGN_OR_RETURN(
        choice.schedule,
        MakeSchedule(options.pp_schedule, layout.pp, options.pp_virtual_stages, microbatches));
    const int chunks = static_cast<int>(choice.schedule.placement.size());
    CONVENE_RETURN_IF_ERROR(CheckChunks(options, layout.pp, chunks / layout.pp));
  } else {
    CONVENE_ASSIGN_OR_RETURN(choice.schedule, ReadCsv(options.pp_schedule_csv));
    if (options.pp_virtual_stages > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("pp_virtual_stages is set, but the chunks are those of pp_schedule ",
                       options.pp_schedule, "; leave pp_virtual_stages out"));
    }
    CONVENE_RETURN_IF_ERROR(CheckFileFits(options, choice.schedule, layout, microbatches));
    CONVENE_RETURN_IF_ERROR(CheckEnds(options, choice.schedule.placement, layout.pp));
  }
  if (!Has(choice.schedule, ComputeKind::kBackward) &&
      !Has(choice.schedule, ComputeKind::kBackwardInput)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "pp_schedule ", options.pp_schedule, " has no backward pass: nothing would be learnt"));
  }
  CONVENE_ASSIGN_OR_RETURN(
      choice.chunk_layers,
      CutLayers(options.pp_layout, options.model.layers,
                static_cast<int>(choice.schedule.placement.size()), HeadCost(options.model)));
  return choice;
}

ContextMethod ContextMethodOf(const TrainOptions& options, const Layout& layout) {
  if (options.cp_method.has_value()) return *options.cp_method;
  const bool heads_fit = ValidateHeads(ContextMethod::kUlysses, options, layout).ok();
  return heads_fit ? ContextMethod::kUlysses : ContextMethod::kRing;
}

bool SplitsRows(const TrainOptions& options, const Layout& layout) {
  const int64_t rows =
      CutOf(options, layout).micro_batch_size * options.sequence_length / layout.cp;
  return layout.tp > 1 && options.sequence_parallel.value_or(rows % layout.tp == 0);
}

LearningRateSchedule RateScheduleOf(const TrainOptions& options) {
  return {.shape = options.rate_shape,
          .peak = options.learning_rate,
          .minimum = options.min_learning_rate,
          .warmup_steps = options.warmup_steps,
          .decay_steps = options.lr_decay_steps,
          .total_steps = options.steps};
}

BatchCut CutOf(const TrainOptions& options, const Layout& layout) {
  if (options.reproducible) {
    return {.global_batch_size = options.global_batch_size,
            .micro_batch_size = static_cast<int>(std::min<int64_t>(
                {options.global_batch_size, options.micro_batch_size, int64_t{1} << 30})),
            .dp_size = layout.dp,
            .keeps_microbatches = true};
  }
  return EvenCut(options.global_batch_size, options.micro_batch_size, layout.dp);
}

}  // namespace convene::worker
