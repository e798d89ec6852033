#include "worker_runtime/options/load_options.h"

#include <map>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"
#include "worker_runtime/options/load_first_weights.h"
#include "worker_runtime/options/ramp_options.h"

namespace convene::worker {
namespace {

using testing::TempDir;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::optional<std::string> HomeOnly(const std::string& name) {
  if (name == "HOME") return "/home/ada";
  return std::nullopt;
}

absl::StatusOr<std::optional<TrainOptions>> Load(const std::vector<std::string>& arguments) {
  return LoadOptions(arguments, HomeOnly);
}

TrainOptions Options(const std::vector<std::string>& arguments) {
  const auto options = Load(arguments);
  REQUIRE_OK(options);
  REQUIRE(options->has_value());
  return **options;
}

TEST_CASE("with only data named, the defaults are a small run that works") {
  const TrainOptions options = Options({"--data", "a.txt"});
  CHECK_OK(ValidateOptions(options, Layout{}));
  CHECK(options.model == *NamedModel("llama-tiny"));
  CHECK(options.steps == 100);
  CHECK(options.global_batch_size == 32);
  CHECK(options.micro_batch_size == 4);
  CHECK(options.sequence_length == 128);
  CHECK(options.dp_size == 0);
  CHECK(options.min_learning_rate == Approx(1e-4));
  CHECK(options.warmup_steps == 10);
  CHECK(options.beta2 == 0.95);
  CHECK(options.max_skipped_steps == 20);
  CHECK(options.checkpoint_dir.empty());
  CHECK(options.resume == ResumeMode::kAuto);
  CHECK(options.collective_timeout == absl::Seconds(300));
  CHECK(options.checkpoint_timeout == absl::Minutes(30));
}

TEST_CASE("documents are packed when asked, and may end with another token than the tokenizer's") {
  CHECK_FALSE(Options({"--data", "a.txt"}).packed_documents);
  CHECK(Options({"--data", "a.txt", "--packed-documents"}).packed_documents);
  CHECK(Options({"--data", "a.txt", "--packed-documents"}).eod_token == std::nullopt);
  CHECK(Options({"--data", "a.txt", "--packed-documents", "true", "--eod-token", "10"}).eod_token ==
        10);
  CHECK_STATUS(LoadOptions({"--data", "a.txt", "--eod-token", "10"}, HomeOnly),
               absl::StatusCode::kInvalidArgument, "but not packed_documents");
}

TEST_CASE("data are what their keys say, and texts of bytes where nothing is said") {
  const TrainOptions plain = Options({"--data", "a.txt"});
  CHECK(plain.tokenizer_path == "byte");
  CHECK(plain.text_field == "text");
  CHECK(plain.max_bad_lines == 0);
  CHECK(plain.chat_template.empty());
  CHECK(plain.data_order == DataOrder::kConvene);
  CHECK_FALSE(plain.chose_vocabulary);
  const TrainOptions options =
      Options({"--data", "a.bin:0.7,b.jsonl:0.3", "--tokenizer", "llama3/", "--text-field",
               "meta.text", "--max-bad-lines", "5", "--data-order", "megatron"});
  CHECK(options.data == std::vector<std::string>{"a.bin:0.7,b.jsonl:0.3"});
  CHECK(options.tokenizer_path == "llama3/");
  CHECK(options.text_field == "meta.text");
  CHECK(options.max_bad_lines == 5);
  CHECK(options.data_order == DataOrder::kMegatron);
  CHECK_STATUS(Load({"--data-order", "random"}), kInvalid,
               "data_order is \"random\"; it can be convene, megatron");
}

TEST_CASE("a ramp of the batch has three numbers, and grows to the global batch") {
  const TrainOptions options =
      Options({"--data=a.txt", "--rampup-batch-size=8,4,1000", "--global-batch-size=32"});
  CHECK_OK(ValidateOptions(options, Layout{}));
  CHECK(RampOf(options).full == 32);
  CHECK(RampOf(options).start == 8);
  CHECK(RampOf(options).increment == 4);
  CHECK(RampOf(options).samples == 1000);
  const std::map<int, Schedule> schedules = RampSchedules(options, Layout{.dp = 2});
  // Rows of 4 over two ranks: of 8 to 28 samples 1 to 4 micro batches.
  std::vector<int> counts;
  for (const auto& [count, schedule] : schedules) {
    counts.push_back(count);
    CHECK(schedule.microbatches == count);
  }
  CHECK(counts == std::vector<int>{1, 2, 3});
  CHECK(RampSchedules(Options({"--data=a.txt"}), Layout{}).empty());
  for (const char* wrong : {"8", "8,4", "8,4,x", "8,4,1000,1", "8,4,0"}) {
    CHECK_STATUS(Load({"--rampup-batch-size", wrong}), kInvalid, "START,INCREMENT,SAMPLES");
  }
  const auto refuses = [](std::vector<std::string> flags, const char* text) {
    flags.emplace_back("--data=a.txt");
    CHECK_STATUS(ValidateOptions(Options(flags), Layout{}), kInvalid, text);
  };
  refuses({"--rampup-batch-size=32,4,1000"}, "below global_batch_size, which is 32");
  refuses({"--rampup-batch-size=0,4,1000"}, "must begin with a batch from 1");
  refuses({"--rampup-batch-size=8,5,1000"}, "a number that divides 24");
  refuses({"--rampup-batch-size=8,4,-1"}, "over at least 1 sample");
  refuses({"--rampup-batch-size=8,4,1000", "--cuda-graphs"}, "CUDA graphs are made for one");
}

TEST_CASE("validation sets have names, and a name that comes again adds to its set") {
  const TrainOptions options = Options({"--data", "a.txt", "--validation-data", "code=c.bin",
                                        "web-1.x=a=b.txt", "--validation-data=code=d.bin"});
  REQUIRE(options.validation_data.size() == 2);
  CHECK(options.validation_data[0].name == "code");
  CHECK(options.validation_data[0].data == std::vector<std::string>{"c.bin", "d.bin"});
  CHECK(options.validation_data[1].name == "web-1.x");
  CHECK(options.validation_data[1].data == std::vector<std::string>{"a=b.txt"});
  for (const char* wrong : {"c.bin", "=c.bin", "code=", "a b=c.bin", "a\"b=c.bin"}) {
    CHECK_STATUS(Load({"--data", "a.txt", "--validation-data", wrong}), kInvalid,
                 "it can be NAME=DATA");
  }
}

TEST_CASE("messages are packed, and their answers count, unless something else is said") {
  const TrainOptions options = Options({"--data", "a.jsonl", "--chat-template", "llama3"});
  CHECK(options.chat_template == "llama3");
  CHECK(options.packed_documents);
  CHECK(options.train_on == TrainOn::kAnswers);
  CHECK(options.too_long == TooLong::kCut);
  const TrainOptions other = Options({"--data", "a.jsonl", "--chat-template", "llama3",
                                      "--train-on", "all", "--too-long", "drop"});
  CHECK(other.train_on == TrainOn::kAll);
  CHECK(Options({"--chat-template", "llama3", "--chat-date", "2026-02-28"}).chat_date ==
        absl::CivilDay(2026, 2, 28));
  CHECK_STATUS(Load({"--chat-template", "llama3", "--chat-date", "2026-02-30"}), kInvalid,
               "chat_date is \"2026-02-30\"; it can be a day such as 2026-11-30");
  CHECK(other.too_long == TooLong::kDrop);
  const std::vector<std::string> unpacked = {"--chat-template", "llama3",
                                             "--packed-documents=false"};
  CHECK_FALSE(Options(unpacked).packed_documents);
  CHECK_STATUS(Load({unpacked[0], unpacked[1], unpacked[2], "--too-long", "drop"}), kInvalid,
               "too_long is set, but without packed_documents");
  for (const char* flag : {"--sample-prompt=a", "--sample-tokens=3", "--sample-temperature=1"}) {
    CHECK_STATUS(Load({flag}), kInvalid, "is set, but sample_every is 0: no text is made");
  }
  const TrainOptions samples =
      Options({"--sample-every", "7", "--sample-prompt", "a", "--sample-prompt", "b", "c"});
  CHECK(samples.samples.every == 7);
  CHECK(samples.samples.prompts == std::vector<std::string>{"a", "b", "c"});
  CHECK(samples.samples.tokens == 64);
  CHECK(samples.samples.temperature == 0);
  CHECK_STATUS(Load({"--chat-template", "llama3", "--train-on", "prompts"}), kInvalid,
               "train_on is \"prompts\"; it can be answers, last, all");
  CHECK_STATUS(Load({"--chat-template", "llama3", "--too-long", "keep"}), kInvalid,
               "too_long is \"keep\"; it can be cut, drop");
}

TEST_CASE("a key of messages without them, and a key of texts with them, is refused") {
  CHECK_STATUS(Load({"--train-on", "all"}), kInvalid, "train_on is set, but no chat_template");
  CHECK_STATUS(Load({"--too-long", "drop"}), kInvalid, "too_long is set, but no chat_template");
  CHECK_STATUS(Load({"--chat-date", "2026-11-30"}), kInvalid, "chat_date is set, but no chat_");
  CHECK_STATUS(Load({"--chat-template", "llama3", "--text-field", "body"}), kInvalid,
               "text_field is set, but with chat_template a line's messages are read");
  CHECK_STATUS(Load({"--chat-template", "llama3", "--eod-token", "1"}), kInvalid,
               "eod_token is set, but with chat_template");
}

TEST_CASE("a vocabulary is chosen by its size or by a model's name") {
  CHECK(Options({"--model", "llama-tiny"}).chose_vocabulary);
  CHECK(Options({"--vocabulary-size", "256"}).chose_vocabulary);
  CHECK_FALSE(Options({"--layers", "4"}).chose_vocabulary);
}

TEST_CASE("device, precision and recompute are words, and a wrong one is told the right ones") {
  const TrainOptions options =
      Options({"--data", "a.txt", "--device", "cpu", "--precision", "bf16", "--reduce-dtype",
               "bf16", "--recompute", "selective", "--deterministic", "--cuda-graphs"});
  CHECK(options.device == DeviceChoice::kCpu);
  CHECK(options.precision == DType::kBFloat16);
  CHECK(options.reduce_dtype == DType::kBFloat16);
  CHECK(options.recompute == Recompute::kSelective);
  CHECK(options.deterministic);
  CHECK(options.cuda_graphs);
  CHECK_FALSE(Options({"--data", "a.txt"}).cuda_graphs);
  CHECK(Options({"--data", "a.txt"}).precision == std::nullopt);
  const TrainOptions in_fp8 =
      Options({"--data", "a.txt", "--precision", "fp8", "--bf16-end-blocks", "1"});
  CHECK(in_fp8.precision == DType::kBFloat16);
  CHECK(in_fp8.float8);
  CHECK(in_fp8.bf16_end_blocks == 1);
  CHECK_FALSE(options.float8);
  CHECK_STATUS(LoadOptions({"--data", "a.txt", "--precision", "fp4"}, HomeOnly),
               absl::StatusCode::kInvalidArgument,
               "precision is \"fp4\"; it can be auto, fp32, bf16, fp8");
  CHECK_STATUS(LoadOptions({"--data", "a.txt", "--bf16-end-blocks", "1"}, HomeOnly),
               absl::StatusCode::kInvalidArgument,
               "bf16_end_blocks is set, but without precision fp8");
}

TEST_CASE("recompute is a word or a list of parts, and a wrong one is told all of them") {
  const auto recompute = [](const char* text) {
    return Options({"--data", "a.txt", "--recompute", text}).recompute;
  };
  CHECK(recompute("full") == Recompute::kFull);
  CHECK(recompute("norms,swiglu") == Recompute::kSelective);
  CHECK(recompute("mlp,attention") == Recompute{.swiglu = true, .attention = true, .mlp = true});
  CHECK(Options({"--data", "a.txt", "--recompute", "full", "--recompute-layers", "2"})
            .recompute.layers == 2);
  for (const std::string text : {"attention,full", "attention,,mlp", "norm"}) {
    CHECK_STATUS(Load({"--recompute", text}), kInvalid,
                 "recompute is \"" + text +
                     "\"; it can be none, selective, full, or some of norms, swiglu, attention and "
                     "mlp, with commas");
  }
  CHECK_STATUS(Load({"--recompute-layers", "2"}), kInvalid, "but recompute is none");
  CHECK_STATUS(Load({"--recompute", "full", "--recompute-layers", "0"}), kInvalid,
               "recompute_layers 0 must be a number from 1");
  CHECK_STATUS(Load({"--recompute", "full", "--recompute-layers", "9"}), kInvalid,
               "recompute_layers 9 must be from 1 to the model's layers, 8");
}

TEST_CASE("a trace names its steps, and its file only beside them") {
  const TrainOptions options = Options({"--data", "a.txt", "--trace", "steps=10:12"});
  REQUIRE(options.trace.has_value());
  CHECK(options.trace->first == 10);
  CHECK(options.trace->last == 12);
  CHECK(options.trace_file == "trace.json");
  CHECK_FALSE(Options({"--data", "a.txt"}).trace.has_value());
  for (const char* wrong : {"10:12", "steps=10", "steps=10:12:14", "steps=a:b", "steps=", ""}) {
    CAPTURE(wrong);
    CHECK_STATUS(Load({"--data", "a.txt", "--trace", wrong}), kInvalid,
                 "it can be steps=FIRST:LAST, such as steps=10:12");
  }
  CHECK_STATUS(Load({"--data", "a.txt", "--trace-file", "a.json"}), kInvalid,
               "choose --trace steps=10:12");
}

TEST_CASE("the file wins over the defaults, and a flag over the file") {
  TempDir dir;
  const std::string path = dir.File("train.yaml");
  REQUIRE_OK(WriteFileAtomic(path,
                             "data: [a.txt, b.txt]\nsteps: 5000\nseed: 7\n"
                             "model_shape: {layers: 4, heads: 8}\n"));
  const TrainOptions options =
      Options({"--config", path, "--seed", "0", "--layers=2", "--data", "c.txt"});
  CHECK(options.steps == 5000);
  CHECK(options.warmup_steps == 100);
  CHECK(options.seed == 0);
  CHECK(options.data == std::vector<std::string>{"c.txt"});
  CHECK(options.model.layers == 2);
  CHECK(options.model.heads == 8);
  CHECK(options.model.hidden_size == 64);
}

TEST_CASE("what is said is not derived, even a zero") {
  const TrainOptions options =
      Options({"--min-learning-rate=0", "--warmup-steps=0", "--dp-size=2"});
  CHECK(options.min_learning_rate == 0);
  CHECK(options.warmup_steps == 0);
  CHECK(options.dp_size == 2);
}

TEST_CASE("the way of the rate is chosen by its words, and a word without an effect is refused") {
  const TrainOptions plain = Options({});
  CHECK(plain.rate_shape == RateShape::kCosine);
  const TrainOptions wsd = Options({"--lr-schedule=wsd"});
  CHECK(wsd.rate_shape == RateShape::kWsdOneMinusSqrt);
  CHECK(wsd.lr_decay_steps == 20);
  CHECK(Options({"--lr-schedule=wsd", "--warmup-steps=95"}).lr_decay_steps == 5);
  const TrainOptions line =
      Options({"--lr-schedule", "wsd", "--lr-decay-shape", "linear", "--lr-decay-steps", "7"});
  CHECK(line.rate_shape == RateShape::kWsdLinear);
  CHECK(line.lr_decay_steps == 7);
  CHECK(RateScheduleOf(line).decay_steps == 7);
  CHECK(Options({"--lr-schedule=linear"}).rate_shape == RateShape::kLinear);
  CHECK(Options({"--lr-schedule=constant"}).rate_shape == RateShape::kConstant);
  CHECK(Options({"--lr-schedule=inverse-sqrt"}).rate_shape == RateShape::kInverseSqrt);
  const auto refused = [](const std::vector<std::string>& arguments) {
    return LoadOptions(arguments, HomeOnly);
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  CHECK_STATUS(refused({"--lr-schedule=wavy"}), kInvalid,
               "it can be linear, cosine, wsd, constant, inverse-sqrt");
  CHECK_STATUS(refused({"--lr-decay-steps=7"}), kInvalid, "but only lr_schedule wsd");
  CHECK_STATUS(refused({"--lr-decay-shape=linear"}), kInvalid, "but only lr_schedule wsd");
  CHECK_STATUS(refused({"--lr-schedule=constant", "--min-learning-rate=0"}), kInvalid,
               "the rate stays at learning_rate");
}

TEST_CASE("the optimizer is chosen by its name, and what it does not have is refused") {
  CHECK(Options({}).optimizer == &AdamWRule());
  const TrainOptions sgd = Options({"--optimizer=sgd", "--momentum=0.5", "--nesterov"});
  CHECK(sgd.optimizer == &SgdRule());
  CHECK(sgd.momentum == 0.5);
  CHECK(sgd.nesterov);
  CHECK(Options({"--optimizer=sgd"}).momentum == 0.9);
  CHECK(Options({"--optimizer=sgd", "--momentum=0"}).optimizer == &PlainSgdRule());
  CHECK_FALSE(Options({"--optimizer=sgd"}).nesterov);
  const TrainOptions muon = Options({"--optimizer=muon"});
  CHECK(muon.optimizer == &MuonRule());
  CHECK(muon.momentum == 0.95);
  CHECK(muon.nesterov);
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  CHECK_STATUS(LoadOptions({"--optimizer=adam"}, HomeOnly), kInvalid, "it can be adamw, muon, sgd");
  CHECK_STATUS(LoadOptions({"--optimizer=sgd", "--momentum=0", "--nesterov"}, HomeOnly), kInvalid,
               "nesterov is set, but momentum is 0");
  CHECK_STATUS(LoadOptions({"--optimizer=sgd", "--beta2=0.9"}, HomeOnly), kInvalid,
               "beta2 is set, but with optimizer sgd");
  CHECK_STATUS(LoadOptions({"--spike-window=9"}, HomeOnly), kInvalid,
               "spike_window is set, but neither max_loss_spike nor");
  CHECK(Options({"--max-loss-spike=1.5"}).spikes.max_loss == 1.5);
  CHECK(Options({"--max-loss-spike=1.5"}).spikes.max_rollbacks == 0);
  CHECK_STATUS(LoadOptions({"--on-spike=rollback"}, HomeOnly), kInvalid, "on_spike is set, but");
  const std::vector<std::string> back = {"--max-loss-spike=2", "--on-spike=rollback"};
  const auto back_with = [&](std::vector<std::string> more) {
    more.insert(more.end(), back.begin(), back.end());
    return LoadOptions(more, HomeOnly);
  };
  CHECK_STATUS(back_with({}), kInvalid, "no checkpoint is there to go back to");
  CHECK_STATUS(back_with({"--checkpoint-dir=c", "--checkpoint-every=0"}), kInvalid,
               "no checkpoint is there to go back to");
  CHECK_STATUS(back_with({"--checkpoint-dir=c", "--data-order=megatron"}), kInvalid,
               "data_order megatron has no more");
  CHECK(Options({"--max-loss-spike=2", "--on-spike=rollback", "--checkpoint-dir=c"})
            .spikes.max_rollbacks == 3);
  CHECK_STATUS(back_with({"--checkpoint-dir=c", "--max-rollbacks=0"}), kInvalid, "max_rollbacks 0");
  CHECK_STATUS(LoadOptions({"--max-loss-spike=2", "--max-rollbacks=1"}, HomeOnly), kInvalid,
               "max_rollbacks is set, but without on_spike rollback");
  CHECK(Options({"--max-gradient-spike=5", "--spike-window=9"}).spikes.window == 9);
  CHECK_STATUS(LoadOptions({"--weight-decay=0", "--decay-embeddings=false"}, HomeOnly), kInvalid,
               "decay_embeddings is set, but weight_decay is 0");
  CHECK_STATUS(LoadOptions({"--momentum=0.9"}, HomeOnly), kInvalid,
               "momentum is set, but only the optimizers muon and sgd");
}

TEST_CASE("the token cache follows the environment") {
  CHECK(Options({}).token_cache_dir == "/home/ada/.cache/convene");
  CHECK(Options({"--token-cache-dir=/tmp/x"}).token_cache_dir == "/tmp/x");
  CHECK(Options({}).tuning_dir == "/home/ada/.cache/convene/tuning");
  CHECK(Options({"--token-cache-dir=/tmp/x"}).tuning_dir == "/tmp/x/tuning");
  CHECK(Options({"--tuning-dir=/tmp/y"}).tuning_dir == "/tmp/y");
  CHECK(Options({"--tuning-dir=none"}).tuning_dir.empty());
  const auto with_cache = [](const std::string& name) -> std::optional<std::string> {
    return name == "XDG_CACHE_HOME" ? "/var/cache" : "/home/ada";
  };
  CHECK((*LoadOptions({}, with_cache))->token_cache_dir == "/var/cache/convene");
  const auto nothing = [](const std::string&) { return std::optional<std::string>(); };
  const auto homeless = LoadOptions({"--data=a"}, nothing);
  REQUIRE_OK(homeless);
  CHECK_OK(ValidateOptions(**homeless, Layout{}));  // token files need no cache
}

TEST_CASE("resume is auto, none or a directory that exists") {
  TempDir dir;
  CHECK(Options({"--resume=none"}).resume == ResumeMode::kNone);
  const TrainOptions options = Options({"--resume", dir.path()});
  CHECK(options.resume == ResumeMode::kDirectory);
  CHECK(options.resume_directory == dir.path());
  CHECK(Options({"--resume", dir.path() + "/./"}).resume_directory == dir.path());
  CHECK_STATUS(Load({"--resume=atuo"}), absl::StatusCode::kNotFound,
               "resume \"atuo\" is no directory; it can be auto, none or");
  CHECK_STATUS(Load({"--resume="}), absl::StatusCode::kNotFound, "resume \"\" is no directory");
  // A run that has saved may have lost what it began with.
  const std::string gone = dir.File("step_00000100");
  CHECK_STATUS(Load({"--resume", gone}), absl::StatusCode::kNotFound, "is no directory");
  CHECK(Options({"--resume", gone, "--checkpoint-dir", dir.path()}).resume_directory == gone);
}

TEST_CASE("help ends the reading") {
  const auto options = Load({"--help", "--no-such-flag"});
  REQUIRE_OK(options);
  CHECK_FALSE(options->has_value());
}

TEST_CASE("checkpoint settings without a directory are refused, wherever they stand") {
  CHECK_STATUS(Load({"--checkpoint-every=10"}), kInvalid,
               "checkpoint_every is set, but no checkpoint_dir");
  TempDir dir;
  REQUIRE_OK(WriteFileAtomic(dir.File("train.yaml"), "checkpoint_keep: 5\n"));
  CHECK_STATUS(Load({"--config", dir.File("train.yaml")}), kInvalid,
               "checkpoint_keep is set, but no checkpoint_dir");
  CHECK_STATUS(Load({"--checkpoint-in-background=false"}), kInvalid,
               "checkpoint_in_background is set, but no checkpoint_dir");
  const TrainOptions options = Options({"--config", dir.File("train.yaml"), "--checkpoint-dir=/c"});
  CHECK(options.checkpoint_keep == 5);
  CHECK(options.checkpoint_in_background);
  CHECK_FALSE(Options({"--data=a", "--checkpoint-dir=/c", "--checkpoint-in-background=false"})
                  .checkpoint_in_background);
}

TEST_CASE("replicas need a time when they are made") {
  CHECK(Options({"--data=a"}).replicate_every == 0);
  const TrainOptions options = Options({"--data=a", "--replicas=2", "--replicate-every=5"});
  CHECK((options.replicas == 2 && options.replicate_every == 5));
  CHECK_STATUS(Load({"--replicas=1"}), kInvalid, "choose --replicate-every N");
  CHECK_STATUS(Load({"--replicas=-1", "--replicate-every=1"}), kInvalid, "replicas -1");
}

TEST_CASE("without shards every rank has a copy of the optimizer's state") {
  CHECK(Options({"--data=a", "--zero-stage=0"}).dp_shard_size == 1);
  CHECK(Options({"--data=a", "--dp-replicate-size=3"}).dp_replicate_size == 3);
  CHECK(Options({"--data=a"}).sequence_parallel == std::nullopt);
  CHECK(Options({"--data=a", "--sequence-parallel=false"}).sequence_parallel == false);
  CHECK(Options({"--data=a"}).overlap_communication);
  CHECK_FALSE(Options({"--data=a", "--overlap-communication=false"}).overlap_communication);
}

TEST_CASE(
    "what is sharded is said, and how long parameters stay gathered with zero_stage 3 alone") {
  CHECK(Options({"--data=a"}).zero_stage == 1);
  CHECK(Options({"--data=a", "--zero-stage=2"}).zero_stage == 2);
  CHECK(Options({"--data=a", "--zero-stage=3"}).reshard_after_forward);
  CHECK_FALSE(Options({"--data=a", "--zero-stage=3", "--reshard-after-forward=false"})
                  .reshard_after_forward);
  CHECK_STATUS(Load({"--zero-stage=2", "--reshard-after-forward=false"}), kInvalid,
               "only zero_stage 3 gathers parameters");
}

TEST_CASE("the optimizer's state may lie in host memory, and with zero_stage 3 all shards") {
  CHECK_FALSE(Options({"--data=a"}).offload_optimizer);
  CHECK(Options({"--data=a", "--offload=optimizer"}).offload_optimizer);
  CHECK_FALSE(Options({"--data=a", "--offload=optimizer"}).offload_parameters);
  CHECK(Options({"--data=a", "--offload=all", "--zero-stage=3"}).offload_parameters);
  CHECK_STATUS(Load({"--offload=all"}), kInvalid, "choose zero_stage 3, or offload optimizer");
  CHECK_STATUS(Load({"--offload=gpu"}), kInvalid, "it can be none, optimizer, all");
}

TEST_CASE("a schedule may stand in a file") {
  TempDir dir;
  REQUIRE_OK(WriteFileAtomic(dir.File("own.csv"), "0F0,0B0\n"));
  CHECK(Options({"--data=a", "--pp-schedule", dir.File("own.csv")}).pp_schedule_csv == "0F0,0B0\n");
  CHECK(Options({"--data=a"}).pp_schedule == "1f1b");
  CHECK_STATUS(Load({"--pp-schedule=/no/such.csv"}), absl::StatusCode::kNotFound, "/no/such.csv");
}

TEST_CASE("a wrong name or size is refused") {
  CHECK_STATUS(Load({"--model=llama-tinny"}), absl::StatusCode::kNotFound,
               "did you mean \"llama-tiny\"?");
  CHECK_STATUS(Load({"--layers=5000000000"}), kInvalid,
               "layers 5000000000 must be a number from 1");
  CHECK_STATUS(Load({"--tp-size=0"}), kInvalid, "tp_size 0 must be a number from 1");
  CHECK_STATUS(Load({"--cp-size=0"}), kInvalid, "cp_size 0 must be a number from 1");
  CHECK_STATUS(Load({"--cp-method=rings"}), kInvalid,
               "cp_method is \"rings\"; it can be auto, ring, allgather, ulysses");
  CHECK_STATUS(Load({"--dp-size=0"}), kInvalid, "dp_size 0 must be a number from 1");
  CHECK_STATUS(Load({"--dp-shard-size=0"}), kInvalid, "dp_shard_size 0 must be a number from 1");
  CHECK_STATUS(Load({"--zero-stage=4"}), kInvalid, "zero_stage 4 must be 0, 1, 2 or 3");
  CHECK_STATUS(Load({"--zero-stage=0", "--dp-shard-size=2"}), kInvalid,
               "so dp_shard_size 2 must be 1");
  CHECK_STATUS(Load({"--config=/no/such.yaml"}), absl::StatusCode::kNotFound, "/no/such.yaml");
}

TEST_CASE("an empty --init-from takes back the file's") {
  const TempDir dir;
  REQUIRE_OK(WriteFileAtomic(dir.File("train.yaml"), "data: a.txt\ninit_from: /nowhere\n"));
  const std::string config = "--config=" + dir.File("train.yaml");
  CHECK_STATUS(Load({config}), absl::StatusCode::kNotFound,
               "init_from: weights: there is nothing at /nowhere");
  const TrainOptions options = Options({config, "--init-from="});
  CHECK(options.init_from.empty());
  CHECK_FALSE(options.chose_vocabulary);
  CHECK(options.model == *NamedModel("llama-tiny"));
}

TEST_CASE("a run's model is made for the longest text of its first weights or its samples") {
  const auto of_samples = [](const std::string& length) {
    return Options({"--data", "a.txt", "--sequence-length", length}).longest_text;
  };
  CHECK(of_samples("128") == 0);  // nobody knows how far it reaches
  CHECK(of_samples("16384") == 16384);
  TrainOptions options = Options({"--data", "a.txt", "--sequence-length", "1024"});
  CHECK(ResolveLongestText(options, 32768) == 32768);
  CHECK(ResolveLongestText(options, 512) == 1024);
  options = Options({"--data", "a.txt", "--model", "gpt2-tiny", "--sequence-length", "64"});
  CHECK(ResolveLongestText(options, 0) == 0);
}

TEST_CASE("adapters want a rank, and weights to stand beside") {
  CHECK_FALSE(Options({"--data", "a.txt"}).model.adapter.is_on());
  CHECK_STATUS(Load({"--lora-rank", "4"}), kInvalid, "no weights are named: give init_from");
  CHECK_STATUS(Load({"--lora-rank", "-4"}), kInvalid, "lora_rank -4 must be from 1");
  CHECK_STATUS(Load({"--lora-alpha", "4"}), kInvalid, "lora_alpha has no effect without adapters");
  CHECK_STATUS(Load({"--lora-targets", "q_proj"}), kInvalid, "lora_targets has no effect");
  CHECK_STATUS(Load({"--lora-rank-stabilized"}), kInvalid, "lora_rank_stabilized has no effect");
  CHECK_STATUS(Load({"--lora-dropout", "0.1"}), kInvalid, "lora_dropout has no effect");
  CHECK_STATUS(Load({"--lora-rank", "4", "--lora-dropout", "1"}), kInvalid,
               "lora_dropout 1 must be from 0 to below 1");
  CHECK_STATUS(Load({"--lora-rank", "4", "--lora-dropout", "-0.1"}), kInvalid,
               "lora_dropout -0.1 must be");
  CHECK_STATUS(Load({"--init-adapter", "/nowhere"}), absl::StatusCode::kNotFound,
               "init_adapter: /nowhere");
}

}  // namespace
}  // namespace convene::worker
