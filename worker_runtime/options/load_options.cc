#include "worker_runtime/options/load_options.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "proto/train_config.pb.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"
#include "worker_runtime/data/chat/chat_format.h"
#include "worker_runtime/data/prepare/token_cache.h"
#include "worker_runtime/options/command_line.h"
#include "worker_runtime/options/config_file.h"
#include "worker_runtime/options/config_keys.h"
#include "worker_runtime/options/load_first_weights.h"
#include "worker_runtime/options/resolve_model.h"
#include "worker_runtime/options/resolve_values.h"
#include "worker_runtime/planner/explain.h"
#include "worker_runtime/weights/open_weights.h"

namespace convene::worker {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

absl::Status ResolveResume(const TrainConfig& config, TrainOptions* options) {
  const std::string& resume = config.resume();
  if (resume == "auto") {
    options->resume = ResumeMode::kAuto;
    return absl::OkStatus();
  }
  if (resume == "none") {
    options->resume = ResumeMode::kNone;
    return absl::OkStatus();
  }
  options->resume = ResumeMode::kDirectory;
  std::error_code ignored;
  // Checkpoints of the run name it.
  const std::string absolute =
      std::filesystem::absolute(resume, ignored).lexically_normal().string();
  options->resume_directory = std::string(absl::StripSuffix(absolute, "/"));
  if (std::filesystem::is_directory(resume, ignored)) return absl::OkStatus();
  // It may have been removed since: a run that has checkpoints of its own needs it no more.
  if (std::filesystem::is_directory(config.checkpoint_dir(), ignored)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(
      "resume \"", resume, "\" is no directory; it can be auto, none or a checkpoint's directory"));
}

absl::Status ResolveRecompute(const TrainConfig& config, int layers, Recompute* recompute) {
  const auto parsed = ParseRecompute(config.recompute());
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("recompute is \"", Utf8(config.recompute(), 200),
                                                   "\"; ", parsed.status().message()));
  }
  *recompute = *parsed;
  if (!config.has_recompute_layers()) return absl::OkStatus();
  if (*recompute == Recompute::kNone) {
    return absl::InvalidArgumentError(
        "recompute_layers is set, but recompute is none: nothing would be computed again; choose "
        "--recompute full, or leave recompute_layers out");
  }
  CONVENE_RETURN_IF_ERROR(TakeInt(config, "recompute_layers", 1, &recompute->layers));
  if (recompute->layers <= layers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "recompute_layers ", recompute->layers, " must be from 1 to the model's layers, ", layers));
}

absl::Status ResolveDevice(const TrainConfig& config, TrainOptions* options) {
  CONVENE_RETURN_IF_ERROR(ToWord(
      "device", config.device(), &options->device,
      {{"auto", DeviceChoice::kAuto}, {"cpu", DeviceChoice::kCpu}, {"cuda", DeviceChoice::kCuda}}));
  CONVENE_RETURN_IF_ERROR(ToWord("precision", config.precision(), &options->precision,
                                 {{"auto", std::nullopt},
                                  {"fp32", DType::kFloat32},
                                  {"bf16", DType::kBFloat16},
                                  {"fp8", DType::kBFloat16}}));
  options->float8 = config.precision() == "fp8";
  CONVENE_RETURN_IF_ERROR(TakeInt(config, "bf16_end_blocks", 0, &options->bf16_end_blocks));
  CONVENE_RETURN_IF_ERROR(ToWord("reduce_dtype", config.reduce_dtype(), &options->reduce_dtype,
                                 {{"fp32", DType::kFloat32}, {"bf16", DType::kBFloat16}}));
  CONVENE_RETURN_IF_ERROR(ResolveRecompute(config, options->model.layers, &options->recompute));
  options->deterministic = config.deterministic();
  options->reproducible = config.reproducible();
  options->overlap_communication = config.overlap_communication();
  options->cuda_graphs = config.cuda_graphs();
  options->print_memory_plan = config.print_memory_plan();
  return absl::OkStatus();
}

// Refuses a key without an effect. `said`: the keys that file and flags gave; a default without an
// effect is no error.
absl::Status RefuseUnused(const TrainConfig& said) {
  const bool saves = !said.checkpoint_dir().empty();
  constexpr char kNotSaved[] = "no checkpoint_dir: nothing would be saved";
  const bool has_messages = !said.chat_template().empty();
  constexpr char kPlain[] = "no chat_template: all tokens of plain texts count, at any length";
  const bool is_sgd = said.optimizer() == "sgd";
  constexpr char kNotAdam[] = "with optimizer sgd there is momentum alone";
  const bool is_adamw = !said.has_optimizer() || said.optimizer() == "adamw";
  constexpr char kNotAdamW[] = "only the optimizers muon and sgd have this momentum";
  const bool has_no_decay = said.has_weight_decay() && said.weight_decay() == 0;
  constexpr char kNoDecay[] = "weight_decay is 0: nothing decays";
  const bool has_no_spikes = said.max_loss_spike() == 0 && said.max_gradient_spike() == 0;
  constexpr char kNoSpikes[] = "neither max_loss_spike nor max_gradient_spike: nothing is a spike";
  constexpr char kOnlyWsd[] = "only lr_schedule wsd ends with steps in which the rate falls";
  constexpr char kNoSamples[] = "sample_every is 0: no text is made; choose --sample-every N";
  const bool has_samples_across = said.has_packed_documents() && !said.packed_documents();
  const struct {
    const char* key;
    bool is_unused;
    const char* why;
  } rules[] = {
      {"checkpoint_every", said.has_checkpoint_every() && !saves, kNotSaved},
      {"checkpoint_keep", said.has_checkpoint_keep() && !saves, kNotSaved},
      {"checkpoint_in_background", said.has_checkpoint_in_background() && !saves, kNotSaved},
      {"max_failed_checkpoints", said.has_max_failed_checkpoints() && !saves, kNotSaved},
      {"replicas", said.replicas() > 0 && said.replicate_every() == 0,
       "replicate_every is 0: nothing would be copied; choose --replicate-every N"},
      {"eod_token", said.has_eod_token() && has_messages,
       "with chat_template documents begin with their messages: leave eod_token out"},
      {"eod_token", said.has_eod_token() && !said.packed_documents(),
       "not packed_documents: nothing would be told apart by it"},
      {"too_long", said.has_too_long() && has_messages && has_samples_across,
       "without packed_documents a sample begins and ends anywhere, so none is too long"},
      {"text_field", said.has_text_field() && has_messages,
       "with chat_template a line's messages are read: leave text_field out, or chat_template"},
      {"train_on", said.has_train_on() && !has_messages, kPlain},
      {"chat_date", said.has_chat_date() && !has_messages,
       "no chat_template: nothing asks for a date"},
      {"too_long", said.has_too_long() && !has_messages, kPlain},
      {"bf16_end_blocks", said.has_bf16_end_blocks() && said.precision() != "fp8",
       "without precision fp8 no block's products take 8-bit floats"},
      {"trace_file", said.has_trace_file() && !said.has_trace(),
       "no trace: nothing would be written there; choose --trace steps=10:12, or leave it out"},
      {"beta1", said.has_beta1() && is_sgd, kNotAdam},
      {"beta2", said.has_beta2() && is_sgd, kNotAdam},
      {"epsilon", said.has_epsilon() && is_sgd, kNotAdam},
      {"momentum", said.has_momentum() && is_adamw, kNotAdamW},
      {"nesterov", said.has_nesterov() && is_adamw, kNotAdamW},
      {"nesterov", said.nesterov() && said.has_momentum() && said.momentum() == 0,
       "momentum is 0: there is none to look ahead with"},
      {"decay_embeddings", said.has_decay_embeddings() && has_no_decay, kNoDecay},
      {"decay_norms_and_biases", said.has_decay_norms_and_biases() && has_no_decay, kNoDecay},
      {"spike_window", said.has_spike_window() && has_no_spikes, kNoSpikes},
      {"on_spike", said.has_on_spike() && has_no_spikes, kNoSpikes},
      {"max_rollbacks", said.has_max_rollbacks() && said.on_spike() != "rollback",
       "without on_spike rollback no spike takes the training back"},
      {"lr_decay_steps", said.has_lr_decay_steps() && said.lr_schedule() != "wsd", kOnlyWsd},
      {"lr_decay_shape", said.has_lr_decay_shape() && said.lr_schedule() != "wsd", kOnlyWsd},
      {"min_learning_rate", said.has_min_learning_rate() && said.lr_schedule() == "constant",
       "with lr_schedule constant the rate stays at learning_rate"},
      {"sample_prompt", said.sample_prompt_size() > 0 && said.sample_every() == 0, kNoSamples},
      {"sample_tokens", said.has_sample_tokens() && said.sample_every() == 0, kNoSamples},
      {"sample_temperature", said.has_sample_temperature() && said.sample_every() == 0, kNoSamples},
      {"reshard_after_forward", said.has_reshard_after_forward() && said.zero_stage() != 3,
       "only zero_stage 3 gathers parameters in a pass"},
  };
  const auto* const found = absl::c_find_if(rules, [](const auto& rule) { return rule.is_unused; });
  if (found == std::end(rules)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(found->key, " is set, but ", found->why));
}

absl::Status ResolveOffload(const TrainConfig& config, TrainOptions* options) {
  enum class Offload { kNone, kOptimizer, kAll };
  Offload offload = Offload::kNone;
  CONVENE_RETURN_IF_ERROR(ToWord(
      "offload", config.offload(), &offload,
      {{"none", Offload::kNone}, {"optimizer", Offload::kOptimizer}, {"all", Offload::kAll}}));
  options->offload_optimizer = offload != Offload::kNone;
  options->offload_parameters = offload == Offload::kAll;
  if (!options->offload_parameters || options->zero_stage == 3) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "offload all keeps shards of parameters in host memory, but with zero_stage ",
      options->zero_stage, " there are none; choose zero_stage 3, or offload optimizer"));
}

absl::Status ResolveSizes(const TrainConfig& config, TrainOptions* options) {
  CONVENE_RETURN_IF_ERROR(ToWord("elastic_layout", config.elastic_layout(),
                                 &options->elastic_layout,
                                 {{"keep", ElasticLayout::kKeep}, {"best", ElasticLayout::kBest}}));
  CONVENE_RETURN_IF_ERROR(ToWord("cp_method", config.cp_method(), &options->cp_method,
                                 {{"auto", std::nullopt},
                                  {"ring", ContextMethod::kRing},
                                  {"allgather", ContextMethod::kAllGather},
                                  {"ulysses", ContextMethod::kUlysses}}));
  const std::pair<const char*, int*> sizes[] = {{"tp_size", &options->tp_size},
                                                {"cp_size", &options->cp_size},
                                                {"ep_size", &options->ep_size},
                                                {"pp_size", &options->pp_size},
                                                {"dp_size", &options->dp_size},
                                                {"dp_shard_size", &options->dp_shard_size},
                                                {"dp_replicate_size", &options->dp_replicate_size},
                                                {"pp_virtual_stages", &options->pp_virtual_stages}};
  for (const auto& [key, size] : sizes) CONVENE_RETURN_IF_ERROR(TakeInt(config, key, 1, size));
  options->pp_layout = config.pp_layout();
  options->pp_schedule = config.pp_schedule();
  if (absl::EndsWith(options->pp_schedule, ".csv")) {
    absl::StatusOr<std::string> csv = ReadFile(options->pp_schedule);
    if (!csv.ok()) return Annotate(csv.status(), "pp_schedule");
    options->pp_schedule_csv = *std::move(csv);
    if (options->pp_schedule_csv.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("pp_schedule: ", options->pp_schedule, " is empty"));
    }
  }
  if (config.has_sequence_parallel()) options->sequence_parallel = config.sequence_parallel();
  if (config.zero_stage() < 0 || config.zero_stage() > 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("zero_stage ", config.zero_stage(), " must be 0, 1, 2 or 3"));
  }
  options->zero_stage = static_cast<int>(config.zero_stage());
  options->reshard_after_forward = config.reshard_after_forward();
  CONVENE_RETURN_IF_ERROR(ResolveOffload(config, options));
  if (options->zero_stage > 0) return absl::OkStatus();
  if (options->dp_shard_size > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("zero_stage 0 shards nothing over data-parallel ranks, so dp_shard_size ",
                     options->dp_shard_size, " must be 1; for shards choose zero_stage 1"));
  }
  options->dp_shard_size = 1;
  return absl::OkStatus();
}

// "NAME=DATA"; the same name again adds to the set.
absl::Status ResolveValidationData(const TrainConfig& config, TrainOptions* options) {
  for (const std::string& text : config.validation_data()) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('=', 1));
    const std::string& name = parts.first;
    const std::string& data = parts.second;
    const bool is_word = absl::c_all_of(
        name, [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("._-", c); });
    if (name.empty() || !is_word || data.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("validation_data is \"", Utf8(text, 200),
                       "\"; it can be NAME=DATA, such as code=held-out/code.bin, where NAME has "
                       "letters, digits, '.', '_' and '-' alone"));
    }
    const auto set = absl::c_find_if(options->validation_data,
                                     [&](const NamedData& known) { return known.name == name; });
    if (set == options->validation_data.end()) {
      options->validation_data.push_back({name, {data}});
    } else {
      set->data.push_back(data);
    }
  }
  return absl::OkStatus();
}

absl::Status ResolveData(const TrainConfig& config, TrainOptions* options) {
  options->data.assign(config.data().begin(), config.data().end());
  CONVENE_RETURN_IF_ERROR(ResolveValidationData(config, options));
  options->tokenizer_path = config.tokenizer();
  options->text_field = config.text_field();
  options->max_bad_lines = config.max_bad_lines();
  CONVENE_ASSIGN_OR_RETURN(options->chat_template,
                           ResolveTemplate(config.chat_template(), config.tokenizer()));
  CONVENE_RETURN_IF_ERROR(
      ToWord("train_on", config.train_on(), &options->train_on,
             {{"answers", TrainOn::kAnswers}, {"last", TrainOn::kLast}, {"all", TrainOn::kAll}}));
  CONVENE_ASSIGN_OR_RETURN(options->chat_date, ParseChatDate(config.chat_date()));
  CONVENE_RETURN_IF_ERROR(ToWord("too_long", config.too_long(), &options->too_long,
                                 {{"cut", TooLong::kCut}, {"drop", TooLong::kDrop}}));
  CONVENE_RETURN_IF_ERROR(
      ToWord("data_order", config.data_order(), &options->data_order,
             {{"convene", DataOrder::kConvene}, {"megatron", DataOrder::kMegatron}}));
  options->preference_beta = config.preference_beta();
  options->sequence_length = config.sequence_length();
  options->packed_documents =
      config.has_packed_documents() ? config.packed_documents() : !config.chat_template().empty();
  if (config.has_eod_token()) options->eod_token = config.eod_token();
  return absl::OkStatus();
}

absl::Status ResolveTrace(const TrainConfig& config, TrainOptions* options) {
  options->trace_file = config.trace_file();
  if (!config.has_trace()) return absl::OkStatus();
  StepRange steps;
  absl::string_view text = config.trace();
  const bool is_steps = absl::ConsumePrefix(&text, "steps=");
  const std::vector<absl::string_view> ends = absl::StrSplit(text, ':');
  if (!is_steps || ends.size() != 2 || !absl::SimpleAtoi(ends[0], &steps.first) ||
      !absl::SimpleAtoi(ends[1], &steps.last)) {
    return absl::InvalidArgumentError(
        absl::StrCat("trace is \"", Utf8(config.trace(), 200),
                     "\"; it can be steps=FIRST:LAST, such as steps=10:12"));
  }
  options->trace = steps;
  return absl::OkStatus();
}

absl::Status ResolveRamp(const TrainConfig& config, TrainOptions* options) {
  if (!config.has_rampup_batch_size()) return absl::OkStatus();
  BatchRamp& ramp = options->ramp;
  const std::vector<absl::string_view> parts = absl::StrSplit(config.rampup_batch_size(), ',');
  if (parts.size() == 3 && absl::SimpleAtoi(parts[0], &ramp.start) &&
      absl::SimpleAtoi(parts[1], &ramp.increment) && absl::SimpleAtoi(parts[2], &ramp.samples) &&
      ramp.samples != 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rampup_batch_size is \"", Utf8(config.rampup_batch_size(), 200),
                   "\"; it can be START,INCREMENT,SAMPLES, such as 16,8,3000"));
}

absl::Status ResolveRate(const TrainConfig& config, TrainOptions* options) {
  options->learning_rate = config.learning_rate();
  options->min_learning_rate =
      config.has_min_learning_rate() ? config.min_learning_rate() : config.learning_rate() / 10;
  options->warmup_steps = config.has_warmup_steps() ? config.warmup_steps()
                                                    : std::min<int64_t>(100, config.steps() / 10);
  options->lr_decay_steps =
      config.has_lr_decay_steps()
          ? config.lr_decay_steps()
          : std::min(config.steps() / 5, config.steps() - options->warmup_steps);
  RateShape wsd = RateShape::kWsdOneMinusSqrt;
  CONVENE_RETURN_IF_ERROR(
      ToWord("lr_decay_shape", config.lr_decay_shape(), &wsd,
             {{"linear", RateShape::kWsdLinear}, {"1-sqrt", RateShape::kWsdOneMinusSqrt}}));
  return ToWord("lr_schedule", config.lr_schedule(), &options->rate_shape,
                {{"linear", RateShape::kLinear},
                 {"cosine", RateShape::kCosine},
                 {"wsd", wsd},
                 {"constant", RateShape::kConstant},
                 {"inverse-sqrt", RateShape::kInverseSqrt}});
}

absl::Status ResolveSpikes(const TrainConfig& config, SpikeOptions* spikes) {
  *spikes = {.max_loss = config.max_loss_spike(),
             .max_gradient = config.max_gradient_spike(),
             .window = config.spike_window()};
  int most = 0;
  CONVENE_RETURN_IF_ERROR(TakeInt(config, "max_rollbacks", 1, &most));
  CONVENE_RETURN_IF_ERROR(ToWord("on_spike", config.on_spike(), &spikes->max_rollbacks,
                                 {{"skip", 0}, {"rollback", most}}));
  if (spikes->max_rollbacks == 0) return absl::OkStatus();
  if (config.checkpoint_dir().empty() || config.checkpoint_every() == 0) {
    return absl::InvalidArgumentError(
        "on_spike is rollback, but no checkpoint is there to go back to: set checkpoint_dir, and "
        "checkpoint_every above 0, or choose on_spike skip");
  }
  if (config.data_order() != "megatron") return absl::OkStatus();
  return absl::InvalidArgumentError(
      "on_spike is rollback, which leaves samples out, and data_order megatron has no more than "
      "the steps take; choose on_spike skip, or data_order convene");
}

absl::Status ResolveSamples(const TrainConfig& config, SampleOptions* samples) {
  samples->every = config.sample_every();
  samples->prompts.assign(config.sample_prompt().begin(), config.sample_prompt().end());
  samples->temperature = config.sample_temperature();
  return TakeInt(config, "sample_tokens", 1, &samples->tokens);
}

absl::StatusOr<TrainOptions> Resolve(const TrainConfig& config,
                                     const EnvironmentLookup& environment) {
  TrainOptions options;
  options.model_name = config.model();
  CONVENE_ASSIGN_OR_RETURN(options.model, ResolveModel(config.model(), config.model_shape()));
  CONVENE_RETURN_IF_ERROR(ResolveData(config, &options));
  options.steps = config.steps();
  options.seed = config.seed();
  options.global_batch_size = config.global_batch_size();
  CONVENE_RETURN_IF_ERROR(ResolveRamp(config, &options));
  options.micro_batch_size = config.micro_batch_size();
  CONVENE_RETURN_IF_ERROR(ResolveSizes(config, &options));
  CONVENE_RETURN_IF_ERROR(ResolveDevice(config, &options));
  CONVENE_RETURN_IF_ERROR(ResolveRate(config, &options));
  CONVENE_RETURN_IF_ERROR(
      ToWord("optimizer", config.optimizer(), &options.optimizer,
             {{"adamw", &AdamWRule()}, {"muon", &MuonRule()}, {"sgd", &SgdRule()}}));
  options.weight_decay = config.weight_decay();
  options.decay_embeddings = config.decay_embeddings();
  options.decay_norms_and_biases = config.decay_norms_and_biases();
  options.beta1 = config.beta1();
  options.beta2 = config.beta2();
  options.epsilon = config.epsilon();
  const bool is_muon = options.optimizer == &MuonRule();
  options.momentum = config.has_momentum() ? config.momentum() : is_muon ? 0.95 : 0.9;
  options.nesterov = config.has_nesterov() ? config.nesterov() : is_muon;
  if (options.optimizer == &SgdRule() && options.momentum == 0) options.optimizer = &PlainSgdRule();
  options.clip_grad_norm = config.clip_grad_norm();
  options.max_skipped_steps = config.max_skipped_steps();
  CONVENE_RETURN_IF_ERROR(ResolveSpikes(config, &options.spikes));
  options.checkpoint_dir = config.checkpoint_dir();
  options.checkpoint_every = config.checkpoint_every();
  CONVENE_RETURN_IF_ERROR(TakeInt(config, "checkpoint_keep", 2, &options.checkpoint_keep));
  options.checkpoint_in_background = config.checkpoint_in_background();
  options.max_failed_checkpoints = config.max_failed_checkpoints();
  options.replicate_every = config.replicate_every();
  CONVENE_RETURN_IF_ERROR(TakeInt(config, "replicas", 0, &options.replicas));
  CONVENE_RETURN_IF_ERROR(ResolveResume(config, &options));
  CONVENE_RETURN_IF_ERROR(ResolveFirstWeights(config, &options));
  options.accept_new_data = config.accept_new_data();
  options.metrics_file = config.metrics_file();
  options.tensorboard_dir = config.tensorboard_dir();
  options.profile = config.profile();
  options.comm_log = config.comm_log();
  CONVENE_RETURN_IF_ERROR(ResolveTrace(config, &options));
  options.log_every = config.log_every();
  options.peak_tflops = config.peak_tflops();
  options.validation_fraction = config.validation_fraction();
  options.validation_every = config.validation_every();
  options.validation_samples = config.validation_samples();
  CONVENE_RETURN_IF_ERROR(ResolveSamples(config, &options.samples));
  options.token_cache_dir = config.token_cache_dir().empty()
                                ? DefaultTokenCacheDirectory(environment)
                                : config.token_cache_dir();
  options.tuning_dir = config.tuning_dir();
  if (options.tuning_dir == "none") {
    options.tuning_dir.clear();
  } else if (options.tuning_dir.empty() && !options.token_cache_dir.empty()) {
    options.tuning_dir = absl::StrCat(options.token_cache_dir, "/tuning");
  }
  options.token_cache_days = config.token_cache_days();
  if (config.has_token_cache_bytes()) options.token_cache_bytes = config.token_cache_bytes();
  options.collective_timeout = absl::Seconds(config.collective_timeout_seconds());
  options.checkpoint_timeout = absl::Seconds(config.checkpoint_timeout_seconds());
  return options;
}

// A path in YAML, or behind "--checkpoint-dir=", is not read by a shell: the run would make a
// folder of the name "~".
absl::Status RefuseHome(TrainConfig said, const EnvironmentLookup& environment) {
  const std::string home = environment("HOME").value_or("$HOME");
  for (const ConfigKey& key : ConfigKeys()) {
    const FieldDescriptor* const field = key.field;
    // A prompt is a text.
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_STRING) continue;
    if (field->name() == "sample_prompt") continue;
    const Message* const message = MessageOf(key, &said);
    const Reflection* const reflection = message->GetReflection();
    const int values = field->is_repeated() ? reflection->FieldSize(*message, field) : 1;
    for (int i = 0; i < values; ++i) {
      const std::string value = field->is_repeated()
                                    ? reflection->GetRepeatedString(*message, field, i)
                                    : reflection->GetString(*message, field);
      if (!absl::StartsWith(value, "~/")) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          field->name(), " \"", value, "\": `~` is the shell's, and no shell reads it here: write ",
          home, value.substr(1), ", or ./", value, " for a folder of this name"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<TrainOptions>> LoadOptions(const std::vector<std::string>& arguments,
                                                        const EnvironmentLookup& environment) {
  CONVENE_ASSIGN_OR_RETURN(const CommandLine line, ParseCommandLine(arguments));
  if (!line.query_text.empty()) return std::optional<TrainOptions>();
  TrainConfig said;
  if (!line.config_path.empty()) {
    CONVENE_ASSIGN_OR_RETURN(said, ReadConfigFile(line.config_path));
  }
  Overlay(line.flags, &said);
  CONVENE_RETURN_IF_ERROR(RefuseUnused(said));
  CONVENE_RETURN_IF_ERROR(RefuseHome(said, environment));
  TrainConfig config = DefaultConfig();
  CONVENE_ASSIGN_OR_RETURN(const int longest_text, ApplyFirstWeights(&said, &config));
  Overlay(said, &config);
  CONVENE_ASSIGN_OR_RETURN(TrainOptions options, Resolve(config, environment));
  options.longest_text = ResolveLongestText(options, longest_text);
  options.chose_vocabulary =
      said.has_model() || !said.init_from().empty() || said.model_shape().has_vocabulary_size();
  return std::optional<TrainOptions>(std::move(options));
}

}  // namespace convene::worker
