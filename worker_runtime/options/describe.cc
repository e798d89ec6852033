#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/options/adapter_options.h"
#include "worker_runtime/options/options.h"
#include "worker_runtime/options/ramp_options.h"
#include "worker_runtime/report/number_text.h"

namespace convene::worker {
namespace {

std::string DescribeExperts(const ModelConfig& model) {
  const ExpertConfig& experts = model.experts;
  if (experts.count == 0) return "";
  return absl::StrFormat(
      "; a token goes to %d of %d experts of ffn %d%s%s", experts.chosen, experts.count,
      experts.ffn_size,
      experts.shared_ffn_size > 0
          ? absl::StrCat(", and to shared ones of ", experts.shared_ffn_size)
          : "",
      experts.first_dense_layers > 0
          ? absl::StrCat(", but for the first ", experts.first_dense_layers, " layers")
          : "");
}

std::string DescribeModel(const TrainOptions& options) {
  const ModelConfig& model = options.model;
  const absl::StatusOr<ModelConfig> named = NamedModel(options.model_name);
  const bool is_changed = !named.ok() || *named != model;
  return absl::StrFormat(
      "%s%s, %s parameters (layers %d, hidden %d, ffn %d, heads %d/%d of %d, vocabulary %d%s)%s",
      options.model_name, is_changed ? " with changes" : "", WithThousands(ParameterCount(model)),
      model.layers, model.hidden_size, model.ffn_size, model.heads, model.kv_heads, model.head_size,
      model.vocabulary_size, model.tied_embeddings ? ", tied" : "",
      DescribeExperts(model) + DescribeAdapters(model));
}

std::string DescribeCheckpoints(const TrainOptions& options) {
  std::string text = "none";
  if (!options.checkpoint_dir.empty()) {
    text = absl::StrCat(options.checkpoint_dir, ", ",
                        options.checkpoint_every == 0
                            ? "the last step only"
                            : absl::StrCat("every ", options.checkpoint_every, " steps"),
                        ", newest ", options.checkpoint_keep, " kept");
  }
  switch (options.resume) {
    case ResumeMode::kAuto:
      return text;
    case ResumeMode::kNone:
      return absl::StrCat(text, "; the run begins fresh");
    case ResumeMode::kDirectory:
      return absl::StrCat(text, "; the run begins from ", options.resume_directory);
  }
  return text;
}

std::string DescribeSpares(const TrainOptions& options, const Layout& layout, int world_size) {
  const int spares = world_size - layout.world_size();
  if (spares == 0) return "";
  const std::string ranks =
      spares == 1 ? absl::StrCat("rank ", world_size - 1, " waits")
                  : absl::StrCat("ranks ", layout.world_size(), " to ", world_size - 1, " wait");
  std::string unit = absl::StrCat("tp ", layout.tp, " x pp ", layout.pp);
  int64_t size = int64_t{layout.tp} * layout.pp;
  const auto with = [&](const char* name, int factor) {
    if (factor == 0) return;
    absl::StrAppend(&unit, " x ", name, " ", factor);
    size *= factor;
  };
  if (layout.cp > 1) with("cp", layout.cp);
  with("dp_shard", options.dp_shard_size);
  with("dp_replicate", options.dp_replicate_size);
  const std::string why =
      world_size % size == 0
          ? absl::StrCat("the layout takes ", layout.world_size(), " ranks")
          : absl::StrCat(unit, " = ", size, " does not divide ", world_size, " ranks");
  return absl::StrCat("\nspares       ", ranks, " without training: ", why);
}

std::string DescribeBatch(const BatchCut& cut) {
  const int64_t padding = PaddingRows(cut);
  return absl::StrCat(
      "global ", cut.global_batch_size, " = dp ", cut.dp_size, " x micro ", cut.micro_batch_size,
      " x accumulation ", MicrobatchCount(cut),
      padding == 0 ? ""
                   : absl::StrCat(" less ", padding, padding == 1 ? " empty row" : " empty rows"));
}

const char* CountedText(TrainOn counted) {
  switch (counted) {
    case TrainOn::kAnswers:
      return "answers count";
    case TrainOn::kLast:
      return "last answers count";
    case TrainOn::kAll:
      return "all of them count";
  }
  return "";
}

std::string DescribeRate(const TrainOptions& options) {
  const std::string to = absl::StrCat(" to ", options.min_learning_rate);
  const std::string in_the_end =
      absl::StrCat("the same, and in the last ", WithThousands(options.lr_decay_steps), " steps ");
  const auto then = [&]() -> std::string {
    switch (options.rate_shape) {
      case RateShape::kLinear:
        return absl::StrCat("in a line", to);
      case RateShape::kCosine:
        return absl::StrCat("a cosine", to);
      case RateShape::kWsdLinear:
        return absl::StrCat(in_the_end, "in a line", to);
      case RateShape::kWsdOneMinusSqrt:
        return absl::StrCat(in_the_end, "by 1 - sqrt", to);
      case RateShape::kConstant:
        return "the same";
      case RateShape::kInverseSqrt:
        return absl::StrCat("by 1 / sqrt(step), never below ", options.min_learning_rate);
    }
    return "";
  };
  return absl::StrCat(options.learning_rate, " after ", WithThousands(options.warmup_steps),
                      " warm-up steps, then ", then());
}

std::string DescribeDocuments(const TrainOptions& options) {
  if (!options.chat_template.empty()) {
    if (options.preference_beta > 0) {
      return absl::StrCat("\npairs        answers by ", options.chat_template, ", of which ",
                          "the chosen is to be likelier; beta ", options.preference_beta,
                          " against ", options.init_from);
    }
    return absl::StrCat("\ndocuments    messages by ", options.chat_template, ", ",
                        CountedText(options.train_on), " in the loss",
                        options.packed_documents ? "; packed, each apart" : "");
  }
  if (!options.packed_documents) return "";
  return absl::StrCat("\ndocuments    packed, each apart; token ", options.eod_token.value_or(0),
                      " ends one");
}

std::string DescribeSums(const TrainOptions& options, const Layout& layout) {
  if (!options.reproducible) return "";
  return absl::StrCat(
      "\nsums         reproducible: same bits on any dp, accumulation, pp, schedule and ZeRO "
      "stage; "
      "other bits on another tp, cp or micro_batch_size than ",
      layout.tp, ", ", layout.cp, " and ", CutOf(options, layout).micro_batch_size);
}

std::string DescribeSamples(const SampleOptions& samples) {
  if (samples.every == 0) return "";
  return absl::StrCat("\nsamples      of ", samples.prompts.size(),
                      samples.prompts.size() == 1 ? " prompt" : " prompts", ", up to ",
                      samples.tokens, " tokens each, every ", samples.every, " steps");
}

}  // namespace

std::string Describe(const TrainOptions& options, const Layout& layout, int world_size) {
  const int64_t step_tokens = options.global_batch_size * options.sequence_length;
  const BatchRamp ramp = RampOf(options);
  const int64_t samples = SamplesAfter(ramp, options.steps);
  return absl::StrCat(
      "model        ", DescribeModel(options),  //
      options.tokenizer_path == "byte" ? ""
                                       : absl::StrCat("\ntokenizer    ", options.tokenizer_path),
      "\nlayout       ", layout.ToString(), " on ", layout.world_size(),
      layout.world_size() == 1 ? " rank" : " ranks",
      layout.cp > 1 ? absl::StrCat(", cp by ", ContextMethodName(ContextMethodOf(options, layout)))
                    : "",
      SplitsRows(options, layout) ? ", rows split over tp" : "",
      options.zero_stage > 1 ? absl::StrCat(", ZeRO-", options.zero_stage) : "",
      options.offload_optimizer ? ", updated by the host" : "",
      DescribeSpares(options, layout, world_size),               //
      "\nbatch        ", DescribeBatch(CutOf(options, layout)),  //
      ramp.samples == 0
          ? ""
          : absl::StrCat("\nramp         from ", ramp.start, " samples a step by ", ramp.increment,
                         " to ", ramp.full, ", over ", WithThousands(ramp.samples), " samples"),
      "\ntokens       ", WithThousands(step_tokens), " a step (", options.global_batch_size, " x ",
      options.sequence_length, "), ",
      HumanCount(static_cast<double>(samples) * options.sequence_length), " in ",
      WithThousands(options.steps), " steps",  //
      DescribeDocuments(options), DescribeSums(options, layout), "\nrate         ",
      DescribeRate(options),  //
      "\ncheckpoints  ", DescribeCheckpoints(options), DescribeSamples(options.samples), "\n");
}

}  // namespace convene::worker
