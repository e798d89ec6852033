#include "worker_runtime/planner/testing/published.h"

#include "absl/strings/str_cat.h"

namespace convene::worker::testing {
namespace {

Cluster ClusterOf(const std::string& gpu, int gpus) {
  Cluster cluster = {.gpu = *FindGpu(gpu), .gpus = gpus};
  cluster.network = *FindNetwork(cluster.gpu.network);
  return cluster;
}

// Benchmarks of torchtitan ran on H100 of 96 GB HBM2e at 500 W.
Cluster Titan(int gpus) {
  Cluster cluster = ClusterOf("h100", gpus);
  cluster.gpu.memory_bytes = 95e9;
  cluster.gpu.memory_bandwidth = 2.4e12;
  cluster.gpu.sustained = 0.7;  // of 500 W
  return cluster;
}

// GPT as Megatron-LM builds it: LayerNorm, GELU, biases, an inner width of four times the hidden.
ModelConfig Gpt(int layers, int hidden, int heads, int vocabulary, int positions, bool is_tied) {
  ModelConfig config = *NamedModel("gpt2-124m");
  config.layers = layers;
  config.hidden_size = hidden;
  config.ffn_size = 4 * hidden;
  config.heads = config.kv_heads = heads;
  config.head_size = hidden / heads;
  config.vocabulary_size = vocabulary;
  config.positions = positions;
  config.tied_embeddings = is_tied;
  return config;
}

PlanJob JobOf(const ModelConfig& model, int64_t sequence, int64_t batch, bool float8 = false) {
  return {
      .model = model, .sequence_length = sequence, .global_batch_size = batch, .float8 = float8};
}

// torchtitan's selective recomputation by op keeps every second product.
constexpr Recompute kEverySecondProduct = {.norms = true, .swiglu = true, .mlp = true};

void AddTitan(std::vector<PublishedRow>& rows) {
  const auto add = [&](const char* model, int gpus, int tp, int local_batch, bool float8,
                       const Recompute& recompute, double overlap, double tokens,
                       const char* what) {
    const int dp = gpus / tp;
    const ModelConfig config = *NamedModel(model);
    // 16 x 8,192 x 8,192 numbers are just too many for the trainer, so these rows are a little
    // shorter here.
    const bool is_full = int64_t{local_batch} * 8192 * config.hidden_size >= int64_t{1} << 30;
    rows.push_back({"torchtitan",
                    what,
                    JobOf(config, is_full ? 8176 : 8192, int64_t{local_batch} * dp, float8),
                    Titan(gpus),
                    {.tp = tp,
                     .pp = 1,
                     .cp = 1,
                     .zero_stage = 3,
                     .micro_batch_size = local_batch,
                     .recompute = recompute},
                    tokens,
                    overlap});
  };
  const Recompute half = kEverySecondProduct;
  add("llama-3-8b", 8, 1, 2, false, half, 0, 6667, "8B, 8 GPUs, compile");
  add("llama-3-8b", 8, 1, 2, true, half, 0, 8532, "8B, 8 GPUs, compile, float8");
  add("llama-3-8b", 128, 1, 2, false, half, 0, 6514, "8B, 128 GPUs, compile");
  add("llama-3-8b", 128, 1, 2, true, half, 0, 8380, "8B, 128 GPUs, compile, float8");
  add("llama-3-8b", 64, 8, 12, false, half, 0, 4378, "8B, 64 GPUs, TP8");
  add("llama-3-8b", 64, 8, 12, false, half, 0.6, 4809, "8B, 64 GPUs, TP8, async");
  add("llama-3-70b", 256, 8, 16, false, Recompute::kFull, 0, 597, "70B, 256 GPUs, TP8");
  add("llama-3-70b", 256, 8, 16, false, Recompute::kFull, 0.6, 652, "70B, 256 GPUs, TP8, async");
  add("llama-3-70b", 256, 8, 16, true, Recompute::kFull, 0, 810, "70B, 256 GPUs, TP8, float8");
  add("llama-3-70b", 256, 8, 16, true, Recompute::kFull, 0.6, 942,
      "70B, 256 GPUs, TP8, float8, async");
}

// FLOPs of a token by the formula of "Efficient Large-Scale Language Model Training on GPU
// Clusters", SC 2021, section 5.1, with or without the forward pass that is made again.
double Sc21Flops(double layers, double hidden, double sequence, double vocabulary, double passes) {
  return 24 * passes * layers * hidden * hidden *
         (1 + sequence / (6 * hidden) +
          vocabulary * (passes == 4 ? 1.0 : 4.0 / 3) / (16 * layers * hidden));
}

// Megatron-LM on H100. The table gives neither micro batch nor chunks: the planner's best.
void AddMegatron(std::vector<PublishedRow>& rows) {
  struct Row {
    int heads, hidden, layers, tp, pp, batch;
    double teraflops;
  };
  constexpr Row kRows[] = {
      {16, 2048, 24, 1, 1, 192, 408.8},     {32, 4096, 30, 2, 1, 192, 465.9},
      {48, 6144, 32, 4, 1, 192, 489.1},     {56, 7168, 48, 8, 1, 192, 459.6},
      {64, 8192, 84, 8, 2, 384, 419.7},     {80, 10240, 92, 8, 4, 768, 420.5},
      {96, 12288, 96, 8, 6, 1152, 432.8},   {128, 16384, 96, 8, 8, 1536, 474.4},
      {144, 18432, 112, 8, 16, 3072, 459.9}};
  for (const Row& row : kRows) {
    const ModelConfig model = Gpt(row.layers, row.hidden, row.heads, 131072, 4096, false);
    const double flops = Sc21Flops(row.layers, row.hidden, 4096, 131072, 3);
    rows.push_back({"megatron",
                    absl::StrCat("hidden ", row.hidden, ", tp", row.tp, " pp", row.pp),
                    JobOf(model, 4096, row.batch),
                    ClusterOf("h100", 48 * row.tp * row.pp),
                    {.tp = row.tp, .pp = row.pp, .cp = 1, .zero_stage = 1},
                    row.teraflops * 1e12 / flops});
  }
}

void AddBridge(std::vector<PublishedRow>& rows) {
  const auto add = [&](const char* system, const char* model, const char* gpu, int gpus,
                       bool float8, int64_t batch, int64_t sequence, const Wishes& wishes,
                       double tokens) {
    rows.push_back({system, absl::StrCat(model, ", ", gpus, " x ", gpu),
                    JobOf(*NamedModel(model), sequence, batch, float8), ClusterOf(gpu, gpus),
                    wishes, tokens});
  };
  Wishes alone = {.tp = 1, .pp = 1, .cp = 1, .micro_batch_size = 1};
  add("bridge", "llama-3-8b", "h100", 8, true, 128, 8192, alone, 14451);
  add("bridge", "llama-3-70b", "h100", 64, true, 256, 8192,
      {.tp = 4, .pp = 8, .cp = 1, .micro_batch_size = 1, .virtual_stages = 5}, 1664);
  add("bridge", "llama-3-405b", "h100", 1024, true, 1536, 8192,
      {.tp = 8, .pp = 8, .cp = 2, .micro_batch_size = 1, .virtual_stages = 8}, 328);
  add("bridge", "llama-3-8b", "b200", 8, true, 128, 8192, alone, 30624);
  add("bridge-moe", "qwen3-30b-a3b", "h100", 16, true, 1024, 4096,
      {.tp = 1, .pp = 1, .cp = 1, .ep = 16, .micro_batch_size = 1}, 8960);
  add("bridge-moe", "qwen3-235b-a22b", "h100", 256, true, 8192, 4096,
      {.tp = 2, .pp = 8, .cp = 1, .ep = 32, .micro_batch_size = 1, .virtual_stages = 4}, 1712);
  add("bridge-moe", "gpt-oss-120b", "h100", 64, false, 1280, 4096,
      {.tp = 1, .pp = 4, .cp = 1, .ep = 8, .micro_batch_size = 1}, 5824);
  add("bridge-moe", "deepseek-v3", "h100", 1024, true, 8192, 4096,
      {.tp = 2, .pp = 8, .cp = 1, .ep = 64, .micro_batch_size = 1, .virtual_stages = 4}, 1297);
}

// Table 1 of SC 2021: all recomputed, interleaved, softmax in memory. Batches from the paper (from
// memory, as trainers.md marks the TFLOP/s, too); micro batches and chunks: the planner's best.
void AddSc21(std::vector<PublishedRow>& rows) {
  struct Row {
    int heads, hidden, layers, tp, pp, gpus, batch;
    double teraflops;
  };
  constexpr Row kRows[] = {
      {24, 2304, 24, 1, 1, 32, 512, 137},        {32, 3072, 30, 2, 1, 64, 512, 138},
      {32, 4096, 36, 4, 1, 128, 512, 142},       {48, 6144, 40, 8, 1, 256, 1024, 135},
      {64, 8192, 48, 8, 2, 512, 1536, 138},      {80, 10240, 60, 8, 4, 1024, 1792, 140},
      {96, 12288, 80, 8, 8, 1536, 2304, 148},    {128, 16384, 96, 8, 16, 1920, 2160, 155},
      {128, 20480, 105, 8, 35, 2520, 2520, 163}, {160, 25600, 128, 8, 64, 3072, 3072, 163}};
  for (const Row& row : kRows) {
    const ModelConfig model = Gpt(row.layers, row.hidden, row.heads, 51200, 2048, true);
    const double flops = Sc21Flops(row.layers, row.hidden, 2048, 51200, 4);
    PlanJob job = JobOf(model, 2048, row.batch);
    job.splits_rows = false;
    rows.push_back(
        {"sc21",
         absl::StrCat("hidden ", row.hidden, ", tp", row.tp, " pp", row.pp),
         job,
         ClusterOf("a100", row.gpus),
         {.tp = row.tp, .pp = row.pp, .cp = 1, .zero_stage = 0, .recompute = Recompute::kFull},
         row.teraflops * 1e12 / flops,
         0});
  }
}

void AddOthers(std::vector<PublishedRow>& rows) {
  // llm.c: ZeRO-1, gradients in bf16.
  const auto add_llmc = [&](const ModelConfig& model, const char* gpu, int micro, int64_t tokens,
                            double seconds) {
    PlanJob job = JobOf(model, 1024, tokens / 1024);
    job.reduce_dtype = DType::kBFloat16;
    rows.push_back({"llm.c",
                    absl::StrCat("hidden ", model.hidden_size, ", 8 x ", gpu),
                    job,
                    ClusterOf(gpu, 8),
                    {.tp = 1,
                     .pp = 1,
                     .cp = 1,
                     .zero_stage = 1,
                     .micro_batch_size = micro,
                     .recompute = Recompute::kNone},
                    static_cast<double>(tokens) / seconds / 8});
  };
  add_llmc(Gpt(12, 768, 12, 50304, 1024, true), "a100", 64, 524288, 0.300);
  add_llmc(Gpt(48, 1600, 25, 50304, 1024, true), "h100", 16, 1048576, 2.80);
  // fms-fsdp: hybrid sharding, each node a whole copy (HSDP in its table).
  const auto add_fms = [&](const char* gpu, int gpus, double tokens) {
    rows.push_back({"fms-fsdp",
                    absl::StrCat("Llama 2 7B, ", gpus, " x ", gpu),
                    JobOf(*NamedModel("llama-2-7b"), 4096, 2 * int64_t{gpus}),
                    ClusterOf(gpu, gpus),
                    {.tp = 1,
                     .pp = 1,
                     .cp = 1,
                     .dp_replicate = gpus / 8,
                     .zero_stage = 3,
                     .micro_batch_size = 2,
                     .recompute = Recompute::kNone},
                    tokens});
  };
  add_fms("h100", 96, 9600);
  add_fms("a100", 128, 4550);
}

// nanotron: a million tokens a step. Its benchmark_summary.svg gives the layout, the micro batch
// and the ZeRO stage of each cell; scripts/scaling_benchmarks.py gives the models: a table of
// 131,072 tokens, keys for each head, tied below 4B. MFU counts all scores of 989 TFLOP/s. The
// nodes are of a cloud whose network (EFA) has a longer hop, which is fitted on the odd rows.
void AddNanotron(std::vector<PublishedRow>& rows) {
  constexpr double kHopSeconds = 35e-6;
  struct Model {
    const char* size;
    int layers, hidden, heads, ffn;
  };
  constexpr Model kModels[] = {{"1.34B", 16, 2048, 32, 8192},
                               {"3.57B", 28, 3072, 32, 8192},
                               {"8.86B", 32, 4096, 32, 14336},
                               {"80B", 80, 8192, 64, 28672}};
  struct Row {
    int nodes, model, dp, tp, pp, micro, zero;
    double mfu;
  };
  constexpr Row kRows[] = {
      {1, 0, 4, 1, 2, 4, 1, 44.3},    {1, 1, 4, 1, 2, 2, 1, 46.7},   {1, 2, 2, 1, 4, 1, 1, 45.2},
      {2, 0, 8, 1, 2, 1, 1, 41.6},    {2, 1, 8, 1, 2, 2, 1, 43.8},   {2, 2, 4, 4, 1, 4, 1, 43.9},
      {4, 0, 16, 1, 2, 1, 1, 38.4},   {4, 1, 16, 1, 2, 2, 1, 40.4},  {4, 2, 16, 1, 2, 1, 1, 43.3},
      {4, 3, 1, 8, 4, 1, 0, 14.8},    {8, 0, 32, 1, 2, 1, 1, 32.5},  {8, 1, 32, 1, 2, 1, 1, 35.5},
      {8, 2, 32, 1, 2, 1, 1, 39.5},   {8, 3, 1, 4, 16, 1, 0, 30.7},  {16, 0, 64, 2, 1, 4, 0, 29.5},
      {16, 1, 32, 4, 1, 8, 0, 34.6},  {16, 2, 16, 8, 1, 8, 0, 36.3}, {16, 3, 1, 4, 32, 1, 0, 34.3},
      {32, 0, 64, 4, 1, 4, 0, 23.2},  {32, 1, 64, 4, 1, 4, 0, 26.8}, {32, 2, 32, 8, 1, 8, 0, 32.7},
      {32, 3, 4, 4, 16, 1, 1, 30.8},  {64, 0, 128, 2, 2, 2, 1, 5.3}, {64, 1, 128, 4, 1, 2, 1, 10.5},
      {64, 2, 128, 4, 1, 2, 0, 18.7}, {64, 3, 32, 16, 1, 2, 1, 17.8}};
  for (const Row& row : kRows) {
    const Model& size = kModels[row.model];
    ModelConfig model = *NamedModel("llama-2-7b");
    model.layers = size.layers;
    model.hidden_size = size.hidden;
    model.heads = model.kv_heads = size.heads;
    model.head_size = size.hidden / size.heads;
    model.ffn_size = size.ffn;
    model.vocabulary_size = 131072;
    model.tied_embeddings = row.model < 2;
    ModelCounts counts(model);
    const TokenFlops flops = FlopsOf(model, 4096, counts);
    Cluster cluster = ClusterOf("h100", 8 * row.nodes);
    cluster.network.latency = kHopSeconds;
    Wishes wishes = {.tp = row.tp,
                     .pp = row.pp,
                     .cp = 1,
                     .dp_replicate = row.zero == 0 ? row.dp : 1,
                     .micro_batch_size = row.micro,
                     .virtual_stages = 1,
                     .recompute = Recompute::kNone};
    if (row.dp > 1) wishes.zero_stage = row.zero;
    rows.push_back({"nanotron", absl::StrCat(size.size, ", ", row.nodes, " nodes"),
                    JobOf(model, 4096, 256), cluster, wishes,
                    row.mfu / 100 * 989e12 / (flops.products + flops.full_attention)});
  }
}

}  // namespace

std::vector<PublishedRow> PublishedRows() {
  std::vector<PublishedRow> rows;
  AddTitan(rows);
  AddMegatron(rows);
  AddBridge(rows);
  AddSc21(rows);
  AddOthers(rows);
  AddNanotron(rows);
  return rows;
}

// 16 million tokens a step, bf16, tp 8, pp 16. The table gives TFLOP/s of a GPU; of attention's
// scores the causal half counts. Micro batch and chunks: the planner's best.
std::vector<PublishedRow> BlindRows() {
  std::vector<PublishedRow> rows;
  const ModelConfig model = *NamedModel("llama-3-405b");
  ModelCounts counts(model);
  const auto add = [&](int gpus, int cp, int64_t sequence, double teraflops) {
    const TokenFlops flops = FlopsOf(model, sequence, counts);
    rows.push_back({"llama-3",
                    absl::StrCat(gpus, " GPUs, ", sequence, " tokens a sample"),
                    JobOf(model, sequence, (int64_t{1} << 24) / sequence),
                    ClusterOf("h100", gpus),
                    {.tp = 8, .pp = 16, .cp = cp},
                    teraflops * 1e12 / (flops.products + flops.causal_attention)});
  };
  add(8192, 1, 8192, 430);
  add(16384, 1, 8192, 400);
  add(16384, 16, 131072, 380);
  return rows;
}

double SpeedOf(const PublishedRow& row) {
  struct System {
    const char* name;
    double speed;
  };
  constexpr System kSystems[] = {{"torchtitan", 1.091}, {"megatron", 0.993}, {"bridge", 0.861},
                                 {"bridge-moe", 1.083}, {"sc21", 1.026},     {"llm.c", 0.867},
                                 {"fms-fsdp", 1.092},   {"nanotron", 1.158}};
  for (const System& system : kSystems) {
    if (row.system == system.name) return system.speed;
  }
  return 1;
}

Efficiency EfficiencyOf(const PublishedRow& row) {
  Efficiency efficiency;
  efficiency.tp_overlap = row.tp_overlap;
  efficiency.overlaps_float8 = true;
  efficiency.sends_tokens_once = row.system == "bridge-moe";
  if (row.system == "nanotron") {
    efficiency.bucket_elements = 12.5e6;  // PyTorch's 25 MB, of bf16
    efficiency.hides_gathers = false;     // src/nanotron/optim/zero.py
  }
  efficiency.fused_attention = row.system != "sc21";
  return efficiency;
}

double RatioOf(const PublishedRow& row) {
  Wishes wishes = row.wishes;
  wishes.zero_bubble = false;  // none of these systems took it
  const auto plans = Search(row.job, row.cluster, wishes, 1, EfficiencyOf(row));
  if (!plans.ok() || plans->ranked.empty()) return 0;
  const double tokens = static_cast<double>(row.job.global_batch_size * row.job.sequence_length);
  return tokens / plans->ranked.front().step_seconds() / row.cluster.gpus / row.tokens_per_gpu /
         SpeedOf(row);
}

}  // namespace convene::worker::testing
