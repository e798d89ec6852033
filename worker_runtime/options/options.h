// PURE. The resolved settings of one training run, and their validation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "worker_runtime/data/batch_ramp.h"
#include "worker_runtime/data/chat/conversation.h"
#include "worker_runtime/data/sample_order.h"
#include "worker_runtime/device/dtype.h"
#include "worker_runtime/mesh/mesh.h"
#include "worker_runtime/model/config.h"
#include "worker_runtime/optimizer/learning_rate.h"
#include "worker_runtime/optimizer/spike_guard.h"
#include "worker_runtime/optimizer/update_rule.h"
#include "worker_runtime/options/sample_options.h"
#include "worker_runtime/parallel/context_cut.h"
#include "worker_runtime/schedule/plan.h"

namespace convene::worker {

enum class ResumeMode {
  kAuto,       // the newest whole checkpoint in checkpoint_dir, or a fresh start when there is none
  kNone,       // a fresh start
  kDirectory,  // the checkpoint in resume_directory
};

enum class DeviceChoice { kAuto, kCpu, kCuda };

// The layout of a job whose number of workers has changed (elastic_layout.h).
enum class ElasticLayout { kKeep, kBest };

// The order in which samples are trained.
enum class DataOrder { kConvene, kMegatron };

// Messages that are longer than a sample.
enum class TooLong { kCut, kDrop };

// Steps of a run, which count from 1.
struct StepRange {
  int64_t first = 0;
  int64_t last = 0;
};

// Data that are held out whole.
struct NamedData {
  std::string name;               // of letters, digits, '.', '_' and '-'
  std::vector<std::string> data;  // as TrainOptions::data
};

// Filled by LoadOptions (load_options.h): defaults, then the YAML file, then the flags. The
// defaults stand in proto/train_config.proto alone; the values below are only there until
// LoadOptions has run.
struct TrainOptions {
  std::string model_name;
  ModelConfig model;  // the named shape with its changes
  // The vocabulary's size is that of a model or a number that the user named; else it is the
  // default model's, and ApplyTokenIds (tokenizer_options.h) may change it.
  bool chose_vocabulary = false;
  std::vector<std::string> data;  // as ParseDataPaths (data/prepare/open_data.h) takes them
  std::vector<NamedData> validation_data;  // their names differ
  std::string tokenizer_path;              // as LoadTokenizer takes it
  std::string text_field;                  // of JSON lines
  int64_t max_bad_lines = 0;
  std::string chat_template;  // of messages; "": the data are plain texts
  TrainOn train_on = TrainOn::kAnswers;
  std::optional<absl::CivilDay> chat_date;  // for a template that asks for today's
  TooLong too_long = TooLong::kCut;
  double preference_beta = 0;  // above 0: the data are pairs of answers (ops/preference_loss.h)
  DataOrder data_order = DataOrder::kConvene;
  int64_t steps = 0;  // optimizer steps in all
  int64_t seed = 0;
  int64_t global_batch_size = 0;  // samples a step, over all ranks
  BatchRamp ramp;                 // to that, which RampOf (ramp_options.h) fills in
  int64_t micro_batch_size = 0;   // samples a forward pass
  int64_t sequence_length = 0;    // tokens a sample
  bool packed_documents = false;  // a sample's documents do not see each other
  // Ends a document, and belongs to it. Nullopt: ApplyTokenIds takes the tokenizer's, if that has
  // one.
  std::optional<int64_t> eod_token;
  int tp_size = 0;
  int cp_size = 0;
  int ep_size = 1;
  std::optional<ContextMethod> cp_method;  // nullopt: ContextMethodOf decides
  int pp_size = 0;
  int dp_size = 0;              // 0 = derived from the world size (DecideLayout)
  std::string pp_schedule;      // a schedule's name, or a file's
  std::string pp_schedule_csv;  // the file's text; "" where pp_schedule is a name
  int pp_virtual_stages = 0;    // 0 = as few as the schedule has
  std::string pp_layout;        // CutLayers'
  int dp_shard_size = 0;        // 0 = DecideLayout decides
  int dp_replicate_size = 0;    // the same
  ElasticLayout elastic_layout = ElasticLayout::kKeep;
  int zero_stage = 0;
  bool reshard_after_forward = false;
  bool offload_optimizer = false;
  bool offload_parameters = false;
  std::optional<bool> sequence_parallel;  // nullopt: where it is possible
  bool overlap_communication = true;
  DeviceChoice device = DeviceChoice::kAuto;
  std::optional<DType> precision;  // nullopt: bf16 on a GPU, fp32 on a CPU
  bool float8 = false;             // and the products of blocks take 8-bit floats
  int bf16_end_blocks = 0;         // but for so many blocks at each end of the model
  DType reduce_dtype = DType::kFloat32;
  Recompute recompute = Recompute::kNone;
  bool deterministic = false;
  std::string tuning_dir;     // "": choices that are timed are not kept
  bool reproducible = false;  // EngineOptions'
  bool cuda_graphs = false;
  bool print_memory_plan = false;
  bool profile = false;
  bool comm_log = false;
  std::optional<StepRange> trace;
  std::string trace_file;
  double learning_rate = 0;
  double min_learning_rate = 0;
  int64_t warmup_steps = 0;
  RateShape rate_shape = RateShape::kCosine;
  int64_t lr_decay_steps = 0;  // of the two kWsd
  const UpdateRule* optimizer = &AdamWRule();
  double weight_decay = 0;
  bool decay_embeddings = true;  // a tied head is one
  bool decay_norms_and_biases = false;
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  double momentum = 0;
  bool nesterov = false;
  double clip_grad_norm = 0;  // 0 = off
  int64_t max_skipped_steps = 0;
  SpikeOptions spikes;
  std::string checkpoint_dir;    // "" = no checkpoints
  int64_t checkpoint_every = 0;  // 0 = only the last
  int checkpoint_keep = 0;
  bool checkpoint_in_background = true;
  int64_t max_failed_checkpoints = 0;  // in a row
  int64_t replicate_every = 0;         // steps; 0 = never
  int replicas = 0;                    // of each shard, on other nodes
  ResumeMode resume = ResumeMode::kAuto;
  std::string resume_directory;  // for kDirectory
  std::string init_from;         // the first weights; "": the seed's
  std::string init_adapter;      // the first adapters; "": the seed's
  int longest_text = 0;          // CheckpointInfo::longest_text of the checkpoints of a new run
  bool accept_new_data = false;
  std::string metrics_file;     // "" = none
  std::string tensorboard_dir;  // the same
  int64_t log_every = 0;
  double peak_tflops = 0;  // of a device, for the MFU; 0: as the planner knows the GPU
  double validation_fraction = 0;
  int64_t validation_every = 0;  // 0 = only at the end
  int64_t validation_samples = 0;
  SampleOptions samples;
  std::string token_cache_dir;
  double token_cache_days = 0;               // 0 = any age
  std::optional<int64_t> token_cache_bytes;  // absent: a quarter of the disk
  absl::Duration collective_timeout;
  absl::Duration checkpoint_timeout;  // of the same where ranks wait for a checkpoint's files
};

// Checks ranges, relations (warm-up within the steps), and ValidateModel. InvalidArgument names the
// key, its value and the legal values near it: with one of them in its place, and all else as it
// is, the options are legal. The global batch need not come out even: a job that lost a
// node goes on with it. Every rank gives the same answer.
absl::Status ValidateOptions(const TrainOptions& options, const Layout& layout);

// The order of the passes, and how the model is cut for it.
struct PipelineChoice {
  Schedule schedule;
  std::vector<int> chunk_layers;
};
// InvalidArgument: the errors of MakeSchedule, ReadCsv and CutLayers; a schedule file for another
// number of ranks or of micro batches.
absl::StatusOr<PipelineChoice> PipelineOf(const TrainOptions& options, const Layout& layout);

// The method of context parallelism: the one that was asked for; else ulysses where the heads of a
// tensor-parallel rank come out even over cp, because on GPUs it alone runs cuDNN's attention; else
// ring. The same on every device, so that the layout says which bits come out.
ContextMethod ContextMethodOf(const TrainOptions& options, const Layout& layout);

// Whether the residual stream's rows are split over tp (parallel/residual_rows.h). REQUIRES:
// ValidateOptions said OK.
bool SplitsRows(const TrainOptions& options, const Layout& layout);

// The learning rate of all steps.
LearningRateSchedule RateScheduleOf(const TrainOptions& options);

// The shares of the data-parallel ranks in a step's samples. A micro batch may have fewer rows than
// options.micro_batch_size; with options.reproducible only where a step has no more samples.
// REQUIRES: ValidateOptions said OK.
BatchCut CutOf(const TrainOptions& options, const Layout& layout);

// A few aligned lines to print at the start: model, layout, spares, batch arithmetic, length,
// checkpoints; with a newline at the end. `world_size`: the job's; the layout may need fewer ranks.
// REQUIRES: ValidateOptions said OK.
std::string Describe(const TrainOptions& options, const Layout& layout, int world_size);

}  // namespace convene::worker
