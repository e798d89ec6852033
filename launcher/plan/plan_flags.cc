#include "launcher/plan/plan_flags.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/model/parameters.h"
#include "worker_runtime/planner/explain.h"

namespace convene::launcher {
namespace {

constexpr double kGpusMax = 1 << 20;
constexpr int kSequenceDefault = 4096;
constexpr double kTokensMax = 1e18;
constexpr double kPriceMax = 1e9;

// Tokens of a step where none are asked for: as the reports of models of that size have it (GPT-3
// table 2.1, Llama 2 and 3).
double DefaultStepTokens(double parameters) {
  if (parameters < 1e9) return 0.5e6;
  if (parameters < 10e9) return 2e6;
  if (parameters < 100e9) return 4e6;
  return 16e6;
}

void AddWishes(FlagReader* reader, worker::Wishes* wishes) {
  reader->Group("Layout: what is given here stays, the rest is the search's");
  const FlagDetails degree = {.value = "N", .least = 1, .most = kGpusMax};
  reader->Option("tp-size", &wishes->tp, "tensor-parallel ranks", degree);
  reader->Option("pp-size", &wishes->pp, "pipeline stages", degree);
  reader->Option("cp-size", &wishes->cp, "context-parallel ranks", degree);
  reader->Option("ep-size", &wishes->ep, "expert-parallel ranks", degree);
  reader->Option("dp-replicate-size", &wishes->dp_replicate, "copies among the data-parallel ranks",
                 degree);
  reader->Option("zero-stage", &wishes->zero_stage, "0 = DDP, 1, 2, 3",
                 {.value = "N", .least = 0, .most = 3});
  reader->Option("micro-batch-size", &wishes->micro_batch_size, "samples a forward pass", degree);
  reader->Option("pp-virtual-stages", &wishes->virtual_stages, "chunks a stage", degree);
  reader->Choice<std::optional<bool>>("zero-bubble", &wishes->zero_bubble,
                                      {{"yes", true}, {"no", false}},
                                      "whether the schedule is zb-h1 [both are tried]");
  reader->Custom("recompute",
                 [wishes](const std::string& text) -> absl::Status {
                   CONVENE_ASSIGN_OR_RETURN(wishes->recompute, worker::ParseRecompute(text));
                   return absl::OkStatus();
                 },
                 "what the backward pass computes again: none, selective, full, or some of norms, "
                 "swiglu, attention, mlp, with commas",
                 {.value = "PARTS"});
}

// Flags that do not go together.
absl::Status CheckPairs(const PlanFlags& flags) {
  if (!flags.cluster.empty() && !flags.gpu.empty()) {
    return absl::InvalidArgumentError("--cluster and --gpu both say which GPU; give one of them");
  }
  if (!flags.is_json || flags.file == PlanFile::kNone) return absl::OkStatus();
  return absl::InvalidArgumentError("--json and --emit print different things; give one of them");
}

}  // namespace

absl::StatusOr<double> ParseCount(const std::string& text) {
  constexpr std::pair<char, double> kUnits[] = {{'K', 1e3}, {'M', 1e6}, {'B', 1e9}, {'T', 1e12}};
  std::string number = text;
  double factor = 1;
  for (const auto& [letter, value] : kUnits) {
    if (number.empty() || absl::ascii_toupper(number.back()) != letter) continue;
    number.pop_back();
    factor = value;
    break;
  }
  double count = 0;
  if (!absl::SimpleAtod(number, &count) || !(count * factor >= 1) || count * factor > kTokensMax) {
    return absl::InvalidArgumentError(
        "write a number of tokens up to 1e18, as 2T, 300B, 40M or 1.5e12");
  }
  return count * factor;
}

void AddFlags(FlagReader* reader, PlanFlags* flags) {
  reader->Group("The job");
  reader->Option("model", &flags->model,
                 "a named model's shape (qwen3-8b, gpt2-124m, ...), or that of a Hugging Face "
                 "folder, a checkpoint's directory or a GGUF file [llama-3-8b]",
                 {.value = "MODEL"});
  reader->Custom("tokens",
                 [flags](const std::string& text) -> absl::Status {
                   CONVENE_ASSIGN_OR_RETURN(flags->tokens, ParseCount(text));
                   return absl::OkStatus();
                 },
                 "of the whole training, as 2T or 300B", {.value = "COUNT"});
  const double most = std::numeric_limits<int>::max();
  reader->Option("sequence-length", &flags->sequence_length,
                 "tokens a sample [4096, or the model's positions]",
                 {.value = "N", .least = 1, .most = most});
  reader->Option("global-batch-size", &flags->global_batch_size,
                 "samples a step [0.5 to 16 million tokens, by the model's size]",
                 {.value = "N", .least = 1, .most = most});
  reader->Choice<PlanPrecision>("precision", &flags->precision,
                                {{"bf16", PlanPrecision::kBf16},
                                 {"fp8", PlanPrecision::kFp8},
                                 {"fp32", PlanPrecision::kFp32}},
                                "of products [bf16]");
  reader->Choice<worker::DType>(
      "reduce-dtype", &flags->reduce_dtype,
      {{"fp32", worker::DType::kFloat32}, {"bf16", worker::DType::kBFloat16}},
      "of gradients between ranks [fp32]");
  reader->Option("optimizer", &flags->optimizer, "adamw, muon or sgd [adamw]",
                 {.choices = {"adamw", "muon", "sgd"}});

  reader->Group("The cluster");
  reader->Option("gpus", &flags->gpus, "GPUs of the whole job [8]",
                 {.value = "N", .least = 1, .most = kGpusMax});
  reader->Option("gpu", &flags->gpu, "kind of GPU; --cluster describes others [h100]",
                 {.choices = worker::GpuNames()});
  reader->Option("network", &flags->network, "between machines [the GPU's usual one]",
                 {.choices = worker::NetworkNames()});
  reader->Option("nodes-of", &flags->nodes_of, "GPUs a machine [8; gb200 4]",
                 {.value = "N", .least = 1, .most = 1024});
  reader->Option("cluster", &flags->cluster, "a YAML file that describes other GPUs and networks",
                 {.value = "FILE"});
  reader->Custom("measure",
                 [flags](const std::string& text) {
                   flags->measured.push_back(text);
                   return absl::OkStatus();
                 },
                 "links and arithmetic as FILE has them, the result of `convene bench --save FILE "
                 "all_reduce compute` on one machine, or of `convene bench --pairs --save FILE` "
                 "between machines; may be repeated",
                 {.value = "FILE"});
  reader->Option("price-per-gpu-hour", &flags->price, "of one GPU, in your money",
                 {.value = "PRICE", .least = 0, .most = kPriceMax});

  AddWishes(reader, &flags->wishes);

  reader->Group("The answer");
  reader->Option("layouts", &flags->layouts, "layouts to show [3]",
                 {.value = "N", .least = 1, .most = 100});
  reader->Switch("explain", &flags->explains, "walk up from the simplest layout to the best one");
  reader->Choice<PlanFile>("emit", &flags->file,
                           {{"train.yaml", PlanFile::kTrainYaml}, {"sbatch", PlanFile::kSbatch}},
                           "print the best layout as a file: of convene-train, or of Slurm");
  reader->Option("data", &flags->data, "what these files name as data [tokens.bin]",
                 {.value = "PATH"});
  reader->Switch("json", &flags->is_json, "print JSON, for programs");
  reader->Check([flags] { return CheckPairs(*flags); });
}

absl::StatusOr<worker::PlanJob> JobOf(const PlanFlags& flags, const worker::ModelConfig& model) {
  const bool is_float8 = flags.precision == PlanPrecision::kFp8;
  if (is_float8 && (model.experts.count > 0 || model.family->latent_attention)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--precision fp8: the trainer has no 8-bit products in blocks with experts or "
                     "latent attention, as ",
                     flags.model, " has; choose --precision bf16"));
  }
  worker::PlanJob job = {.model = model};
  const int positions = model.family->learned_positions ? model.positions : 0;
  int length = flags.sequence_length.value_or(kSequenceDefault);
  if (positions > 0 && !flags.sequence_length.has_value()) length = std::min(length, positions);
  if (positions > 0 && length > positions) {
    return absl::InvalidArgumentError(absl::StrCat("--sequence-length ", length, ": ", flags.model,
                                                   " has ", positions, " positions; give at most ",
                                                   positions));
  }
  job.sequence_length = length;
  const auto parameters = static_cast<double>(worker::ParameterCount(model));
  const double samples = std::max<double>(DefaultStepTokens(parameters) / length, flags.gpus);
  // A power of two is shared without a rest by most numbers of ranks.
  const int batch = static_cast<int>(std::exp2(std::ceil(std::log2(samples))));
  job.global_batch_size = flags.global_batch_size.value_or(batch);
  job.dtype =
      flags.precision == PlanPrecision::kFp32 ? worker::DType::kFloat32 : worker::DType::kBFloat16;
  job.float8 = is_float8;
  job.reduce_dtype = flags.reduce_dtype;
  job.optimizer_states = flags.optimizer == "adamw" ? 2 : 1;
  job.whole_matrices = flags.optimizer == "muon";
  return job;
}

absl::StatusOr<worker::Cluster> ClusterOf(const PlanFlags& flags,
                                          const std::optional<worker::Cluster>& from_file) {
  worker::Cluster cluster;
  if (from_file.has_value()) {
    cluster = *from_file;
  } else {
    CONVENE_ASSIGN_OR_RETURN(cluster.gpu, worker::FindGpu(flags.gpu.empty() ? "h100" : flags.gpu));
  }
  if (!from_file.has_value() || !flags.network.empty()) {
    const std::string& network = flags.network.empty() ? cluster.gpu.network : flags.network;
    CONVENE_ASSIGN_OR_RETURN(cluster.network, worker::FindNetwork(network));
  }
  cluster.gpus = flags.gpus;
  if (flags.nodes_of.has_value()) worker::SetNode(*flags.nodes_of, &cluster.gpu);
  const int node = std::min(cluster.gpu.node, cluster.gpus);
  if (cluster.gpus % node != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--gpus ", cluster.gpus,
                                                   " do not fill machines of ", node,
                                                   "; give a multiple of it, or --nodes-of"));
  }
  cluster.gpu.node = node;
  cluster.gpu.domain = std::min(cluster.gpu.domain, cluster.gpus);
  return cluster;
}

}  // namespace convene::launcher
