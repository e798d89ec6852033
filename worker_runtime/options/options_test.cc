#include "worker_runtime/options/options.h"

#include <cmath>

#include "tools/base/testing/status_testing.h"
#include "worker_runtime/options/load_options.h"

namespace convene::worker {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TrainOptions Defaults() {
  const auto options = LoadOptions({"--data=a.txt", "--token-cache-dir=/cache"},
                                   [](const std::string&) { return std::optional<std::string>(); });
  REQUIRE_OK(options);
  return **options;
}

// The defaults with one change, validated for `layout`.
template <typename Change>
absl::Status With(Change change, const Layout& layout = Layout{}) {
  TrainOptions options = Defaults();
  change(options);
  return ValidateOptions(options, layout);
}

TEST_CASE("the defaults fit every layout that the model can be split over") {
  for (int dp : {1, 2, 3, 8, 100})
    CHECK_OK(With([](TrainOptions&) {}, Layout{.pp = 2, .dp = dp, .tp = 2}));
}

TEST_CASE("sizes beyond what a forward pass or a step can hold are refused") {
  CHECK_STATUS(With([](TrainOptions& o) {
                 o.global_batch_size = 1 << 17;
                 o.micro_batch_size = 1 << 17;
               }),
               kInvalid, "micro_batch_size 131072 x sequence_length 128 x hidden_size 64");
  CHECK_STATUS(With([](TrainOptions& o) { o.global_batch_size = 1 << 24; }, Layout{.dp = 2}),
               kInvalid, "global_batch_size 16777216");
  CHECK_OK(With([](TrainOptions& o) { o.global_batch_size = 1 << 22; }));
}

TEST_CASE("a batch that does not come out even is cut all the same, and its empty rows are said") {
  const auto batch = [](int64_t global, int64_t micro, int dp) {
    TrainOptions options = Defaults();
    options.global_batch_size = global;
    options.micro_batch_size = micro;
    const Layout layout = {.dp = dp};
    CHECK_OK(ValidateOptions(options, layout));
    const std::string text = Describe(options, layout, dp);
    const size_t begin = text.find("global ");
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  CHECK(batch(32, 4, 4) == "global 32 = dp 4 x micro 4 x accumulation 2");
  CHECK(batch(32, 4, 3) == "global 32 = dp 3 x micro 4 x accumulation 3 less 4 empty rows");
  CHECK(batch(30, 4, 2) == "global 30 = dp 2 x micro 4 x accumulation 4 less 2 empty rows");
  CHECK(batch(7, 2, 1) == "global 7 = dp 1 x micro 2 x accumulation 4 less 1 empty row");
  CHECK(batch(4, INT64_MAX, 3) == "global 4 = dp 3 x micro 2 x accumulation 1 less 2 empty rows");
}

TEST_CASE("reproducible sums keep the micro batches that were asked for, on any layout") {
  TrainOptions options = Defaults();
  options.reproducible = true;
  options.global_batch_size = 10;
  options.micro_batch_size = 4;
  for (const int dp : {1, 2, 3, 7}) {
    const BatchCut cut = CutOf(options, Layout{.dp = dp});
    CHECK(cut.micro_batch_size == 4);
    CHECK(cut.keeps_microbatches);
  }
  CHECK_THAT(Describe(options, Layout{.dp = 2, .tp = 2}, 4),
             Catch::Contains("\nsums         reproducible: same bits on any dp, accumulation, pp, "
                             "schedule and ZeRO stage; other bits on another tp, cp or "
                             "micro_batch_size than 2, 1 and 4\n"));
  options.micro_batch_size = 16;
  CHECK(CutOf(options, Layout{.dp = 2}).micro_batch_size == 10);
}

TEST_CASE("what reproducible sums cannot be is refused") {
  const auto with = [](auto change) {
    return With([&](TrainOptions& o) {
      o.reproducible = true;
      change(o);
    });
  };
  CHECK_OK(with([](TrainOptions&) {}));
  CHECK_STATUS(with([](TrainOptions& o) { o.reduce_dtype = DType::kBFloat16; }), kInvalid,
               "leave reduce_dtype out, or reproducible");
  CHECK_STATUS(with([](TrainOptions& o) { o.ep_size = 2; }), kInvalid, "ep_size must be 1");
  const auto batch = [&](int64_t global, int64_t micro) {
    return with([=](TrainOptions& o) {
      o.global_batch_size = global;
      o.micro_batch_size = micro;
    });
  };
  CHECK_OK(batch(32768, 1));
  CHECK_STATUS(batch(32769, 1), kInvalid,
               "room for 32768 micro batches a step, and global_batch_size 32769 has more of "
               "micro_batch_size 1; micro_batch_size can be 2, or global_batch_size at most 32768");
  CHECK_OK(batch(32769, 2));
}

TEST_CASE("ranks that the layout does not need are told as spares, with the reason") {
  const Layout layout = {.dp = 3, .tp = 2};
  const auto described = [&](int world_size) { return Describe(Defaults(), layout, world_size); };
  CHECK_THAT(described(6), !Catch::Contains("spares"));
  CHECK_THAT(described(7),
             Catch::Contains("layout       dp3 x tp2 x pp1 on 6 ranks, rows split over tp\n"
                             "spares       rank 6 waits without training: "
                             "tp 2 x pp 1 = 2 does not divide 7 ranks\nbatch "));
  CHECK_THAT(Describe(Defaults(), Layout{.pp = 2, .dp = 1, .tp = 2}, 7),
             Catch::Contains("ranks 4 to 6 wait without training: tp 2 x pp 2 = 4 does not "));
}

TEST_CASE(
    "rows are split over tp where they come out even, or where it is asked for and possible") {
  const Layout layout = {.tp = 4};
  const auto splits = [&](int64_t sequence, int64_t micro, std::optional<bool> asked) {
    TrainOptions options = Defaults();
    options.sequence_length = sequence;
    options.micro_batch_size = micro;
    options.sequence_parallel = asked;
    CHECK_OK(ValidateOptions(options, layout));
    return SplitsRows(options, layout);
  };
  CHECK(splits(128, 1, std::nullopt));
  CHECK(splits(30, 2, std::nullopt));
  CHECK(!splits(30, 1, std::nullopt));
  CHECK(!splits(128, 1, false));
  CHECK(splits(128, 1, true));
  CHECK(!SplitsRows(Defaults(), Layout{}));
  const auto demand = [](int64_t sequence) {
    return [sequence](TrainOptions& o) {
      o.sequence_length = sequence;
      o.sequence_parallel = true;
    };
  };
  CHECK_STATUS(
      With(demand(30), layout), kInvalid,
      "sequence_length 30 does not come out even: sequence_parallel splits it over tp_size "
      "4; choose sequence_length 28 or 32, or leave sequence_parallel off");
  CHECK_STATUS(With(demand(3), layout), kInvalid, "choose sequence_length 4, or leave");
}

TEST_CASE("rows and heads that context parallelism cannot cut are refused, with those it can") {
  const auto with = [](ContextMethod method, int64_t sequence, const Layout& layout) {
    return With(
        [&](TrainOptions& o) {
          o.cp_method = method;
          o.sequence_length = sequence;
        },
        layout);
  };
  CHECK_OK(with(ContextMethod::kRing, 120, {.pp = 2, .dp = 2, .tp = 2, .cp = 3}));
  CHECK_STATUS(with(ContextMethod::kRing, 128, {.cp = 3}), kInvalid,
               "sequence_length 128 does not come out even: cp_method ring cuts it into 6 equal "
               "chunks for cp_size 3; choose sequence_length 126 or 132");
  // 8 key-value heads over tp 2.
  CHECK_OK(with(ContextMethod::kUlysses, 128, {.tp = 2, .cp = 4}));
  CHECK_STATUS(with(ContextMethod::kUlysses, 128, {.tp = 2, .cp = 8}), kInvalid,
               "the 8 query and 4 key-value heads of a tensor-parallel rank over cp_size 8, which "
               "does not come out even: cp_size can be 1, 2, 4; or choose");
  CHECK_STATUS(With([](TrainOptions& o) { o.sequence_parallel = true; }, {.tp = 8, .cp = 32}),
               kInvalid, "splits it over tp_size 8 x cp_size 32; choose sequence_length");
  TrainOptions options = Defaults();
  options.cp_size = 4;
  options.cp_method = ContextMethod::kUlysses;
  CHECK(Describe(options, {.dp = 2, .cp = 4}, 9).find("on 8 ranks, cp by ulysses") !=
        std::string::npos);
}

TEST_CASE(
    "without a method context parallelism is by heads where they come out even, else a ring") {
  TrainOptions options = Defaults();
  CHECK(ContextMethodOf(options, {.cp = 4}) == ContextMethod::kUlysses);
  // 8 key-value heads: 4 of a rank of tp 2, and one of each where tp is larger.
  CHECK(ContextMethodOf(options, {.tp = 2, .cp = 4}) == ContextMethod::kUlysses);
  CHECK(ContextMethodOf(options, {.tp = 2, .cp = 8}) == ContextMethod::kRing);
  CHECK(ContextMethodOf(options, {.tp = 8, .cp = 2}) == ContextMethod::kRing);
  CHECK(ContextMethodOf(options, {.cp = 3}) == ContextMethod::kRing);
  options.cp_method = ContextMethod::kAllGather;
  CHECK(ContextMethodOf(options, {.cp = 4}) == ContextMethod::kAllGather);
  // A length that a ring cannot cut.
  const auto odd = [](TrainOptions& o) { o.sequence_length = 4; };
  CHECK_OK(With(odd, {.cp = 4}));
}

TEST_CASE("schedules and cuts of the model that the pipeline cannot run are refused") {
  const Layout layout = {.pp = 2};
  const auto with = [&](const char* schedule, int virtual_stages, const char* cut,
                        const std::string& csv = "") {
    return With(
        [&](TrainOptions& o) {
          o.pp_schedule = schedule;
          o.pp_virtual_stages = virtual_stages;
          o.pp_layout = cut;
          o.pp_schedule_csv = csv;
          o.global_batch_size = 8;
          o.micro_batch_size = 4;
        },
        layout);
  };
  CHECK_OK(with("gpipe", 0, "5,3"));
  CHECK_OK(with("interleaved", 4, ""));
  CHECK_STATUS(with("interleaved", 1000000000, ""), kInvalid, "more chunks than 8 layers fill");
  CHECK_STATUS(with("1f1b", 0, "5,4"), kInvalid,
               "it adds up to 9 layers, and the model has 8; 4,4 would be legal");
  CHECK_STATUS(with("2f2b", 0, ""), kInvalid, "1f1b");
  CHECK_OK(with("zb-h1", 0, ""));
  CHECK_OK(with("dualpipe-v", 0, "2,2,2,2"));
  CHECK_STATUS(with("zb-v", 3, ""), kInvalid, "zb-v has 2 virtual stages a rank, not 3");
  const absl::Status chunks =
      With([](TrainOptions& o) { o.pp_schedule = "zb-v"; }, Layout{.pp = 6});
  CHECK_STATUS(chunks, kInvalid, "pp_size 6 x 2 chunks a rank of pp_schedule zb-v are more");
  CHECK_STATUS(chunks, kInvalid, "pp_size can be at most 5, or choose pp_schedule 1f1b");
  CHECK_OK(with("a.csv", 0, "", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"));
  CHECK_STATUS(with("a.csv", 0, "", "0F0,0B0\n1F0,1B0\n"), kInvalid,
               "a.csv is for 2 ranks and 1 micro batches, but this job has pp_size 2 and 2 micro");
  CHECK_STATUS(with("a.csv", 0, "", "0F0,0F1\n1F0,1F1\n"), kInvalid, "has no backward pass");
  const std::string turned = "1F0,1B0,1F1,1B1\n0F0,0F1,0B0,0B1\n";
  CHECK_OK(with("a.csv", 0, "", turned));
  CHECK_STATUS(with("a.csv", 2, "", turned), kInvalid, "pp_virtual_stages is set, but the chunks");
  CHECK_STATUS(With(
                   [&](TrainOptions& o) {
                     o.pp_schedule = "a.csv";
                     o.pp_schedule_csv = turned;
                     o.global_batch_size = 8;
                     o.model.tied_embeddings = true;
                   },
                   layout),
               kInvalid, "with tied embeddings they must be on rank 0 and rank 1");
}

TEST_CASE("the layout is told with its copies, and the spares that they leave") {
  TrainOptions options = Defaults();
  options.dp_shard_size = 2;
  CHECK_THAT(Describe(options, Layout{.dp = 6, .dp_replicate = 3}, 7),
             Catch::Contains("layout       dp6 (3 copies of 2 shards) x tp1 x pp1 on 6 ranks\n"
                             "spares       rank 6 waits without training: "
                             "tp 1 x pp 1 x dp_shard 2 = 2 does not divide 7 ranks\n"));
}

TEST_CASE("samples that make no sense are named") {
  CHECK_STATUS(With([](TrainOptions& o) { o.samples.every = -1; }), kInvalid, "sample_every -1");
  CHECK_STATUS(With([](TrainOptions& o) { o.samples.every = 5; }), kInvalid,
               "sample_every is 5, but there is no text to go on with");
  CHECK_STATUS(With([](TrainOptions& o) { o.samples.tokens = 0; }), kInvalid,
               "sample_tokens 0 must be from 1");
  CHECK_STATUS(With([](TrainOptions& o) { o.samples.temperature = std::nan(""); }), kInvalid,
               "sample_temperature nan must be 0 or more");
  CHECK_STATUS(With([](TrainOptions& o) {
                 o.samples.prompts = {"a", ""};
               }),
               kInvalid, "sample_prompt is empty");
  CHECK_STATUS(With([](TrainOptions& o) { o.samples.prompts.resize(65, "a"); }), kInvalid,
               "sample_prompt is given 65 times, and can be at most 64");
}

TEST_CASE("a memory plan needs no data") {
  CHECK_OK(With([](TrainOptions& o) {
    o.data.clear();
    o.print_memory_plan = true;
  }));
}

TEST_CASE("a rank keeps copies of at most 15 others") {
  CHECK_OK(With([](TrainOptions& o) { o.replicas = 15; }));
  CHECK_STATUS(With([](TrainOptions& o) { o.replicas = 1073741823; }), kInvalid,
               "replicas 1073741823 must be from 0 to 15: each rank keeps");
}

TEST_CASE("what is out of range is named with its value and the right one") {
  CHECK_STATUS(With([](TrainOptions& o) { o.data.clear(); }), kInvalid, "give --data FILE...");
  CHECK_STATUS(With([](TrainOptions& o) { o.data = {""}; }), kInvalid, "empty file name");
  CHECK_STATUS(With([](TrainOptions& o) { o.steps = 0; }), kInvalid, "steps 0 must be at least 1");
  CHECK_STATUS(With([](TrainOptions& o) { o.micro_batch_size = 0; }), kInvalid,
               "micro_batch_size 0");
  CHECK_STATUS(With([](TrainOptions& o) { o.sequence_length = -1; }), kInvalid,
               "sequence_length -1");
  CHECK_STATUS(With([](TrainOptions& o) { o.steps = INT64_MAX; }), kInvalid, "more tokens than");
  CHECK_STATUS(With([](TrainOptions& o) { o.learning_rate = 0; }), kInvalid,
               "learning_rate 0 must be greater than 0");
  CHECK_STATUS(With([](TrainOptions& o) { o.learning_rate = NAN; }), kInvalid, "learning_rate nan");
  CHECK_STATUS(With([](TrainOptions& o) { o.min_learning_rate = 0.5; }), kInvalid,
               "min_learning_rate 0.5 must be from 0 to learning_rate, which is 0.001");
  CHECK_STATUS(With([](TrainOptions& o) { o.warmup_steps = 101; }), kInvalid,
               "warmup_steps 101 must be from 0 to steps, which is 100");
  CHECK_STATUS(With([](TrainOptions& o) { o.trace = StepRange{.first = 12, .last = 10}; }),
               kInvalid,
               "trace steps=12:10 must be a first and a last step of the run's 100: "
               "write steps=10:12");
  CHECK_STATUS(With([](TrainOptions& o) { o.trace = StepRange{.first = 90, .last = 101}; }),
               kInvalid, "write steps=90:100");
  CHECK_STATUS(With([](TrainOptions& o) { o.trace = StepRange{.first = 0, .last = 1}; }), kInvalid,
               "write steps=1:1");
  CHECK_OK(With([](TrainOptions& o) { o.trace = StepRange{.first = 100, .last = 100}; }));
  const auto wsd = [](TrainOptions& o) {
    o.rate_shape = RateShape::kWsdLinear;
    o.lr_decay_steps = 91;
  };
  CHECK_STATUS(With(wsd), kInvalid,
               "lr_decay_steps 91 must be from 0 to steps - warmup_steps, which is 90");
  const auto offloaded_muon = [](TrainOptions& o) {
    o.optimizer = &MuonRule();
    o.offload_optimizer = true;
  };
  CHECK_STATUS(With(offloaded_muon), kInvalid, "choose offload none, or optimizer adamw or sgd");
  CHECK_STATUS(With([](TrainOptions& o) { o.momentum = 1; }), kInvalid,
               "momentum 1 must be at least 0 and less than 1");
  CHECK_STATUS(With([](TrainOptions& o) { o.spikes.max_loss = 0.5; }), kInvalid,
               "max_loss_spike 0.5 must be 0 (off) or above 1");
  CHECK_STATUS(With([](TrainOptions& o) { o.spikes.max_gradient = 1; }), kInvalid,
               "max_gradient_spike 1");
  CHECK_STATUS(With([](TrainOptions& o) { o.spikes.window = 0; }), kInvalid, "spike_window 0");
  CHECK_STATUS(With([](TrainOptions& o) { o.weight_decay = -0.1; }), kInvalid, "weight_decay -0.1");
  CHECK_STATUS(With([](TrainOptions& o) { o.beta1 = 1; }), kInvalid,
               "beta1 1 must be at least 0 and less than 1");
  CHECK_STATUS(With([](TrainOptions& o) { o.beta2 = -0.1; }), kInvalid, "beta2 -0.1");
  CHECK_STATUS(With([](TrainOptions& o) { o.epsilon = 0; }), kInvalid, "epsilon 0");
  CHECK_STATUS(With([](TrainOptions& o) { o.clip_grad_norm = -1; }), kInvalid, "clip_grad_norm -1");
  CHECK_STATUS(With([](TrainOptions& o) { o.max_skipped_steps = 0; }), kInvalid,
               "max_skipped_steps 0");
  CHECK_STATUS(With([](TrainOptions& o) { o.checkpoint_keep = 1; }), kInvalid, "checkpoint_keep 1");
  CHECK_STATUS(With([](TrainOptions& o) { o.max_failed_checkpoints = 0; }), kInvalid,
               "max_failed_checkpoints 0");
  CHECK_STATUS(With([](TrainOptions& o) { o.replicate_every = -1; }), kInvalid,
               "replicate_every -1");
  CHECK_STATUS(With([](TrainOptions& o) { o.log_every = 0; }), kInvalid, "log_every 0");
  CHECK_STATUS(With([](TrainOptions& o) { o.validation_fraction = 1; }), kInvalid,
               "validation_fraction 1");
  CHECK_STATUS(With([](TrainOptions& o) { o.validation_samples = 0; }), kInvalid,
               "validation_samples 0");
  CHECK_STATUS(With([](TrainOptions& o) { o.resume = ResumeMode::kDirectory; }), kInvalid,
               "resume must be auto, none or");
  CHECK_STATUS(With([](TrainOptions& o) { o.collective_timeout = absl::ZeroDuration(); }), kInvalid,
               "collective_timeout_seconds 0");
  CHECK_STATUS(With([](TrainOptions& o) { o.checkpoint_timeout = absl::ZeroDuration(); }), kInvalid,
               "checkpoint_timeout_seconds 0");
}

TEST_CASE("the token that ends a document must be one, where documents are packed") {
  const auto with_token = [](int64_t token, bool packed) {
    return With([=](TrainOptions& o) {
      o.packed_documents = packed;
      o.eod_token = token;
    });
  };
  CHECK_OK(with_token(0, true));
  CHECK_OK(with_token(255, true));
  CHECK_STATUS(with_token(256, true), kInvalid,
               "eod_token 256 is no token: it must be from 0 to 255");
  CHECK_STATUS(with_token(-1, true), kInvalid, "eod_token -1");
  CHECK_OK(with_token(256, false));
}

TEST_CASE("data that no file or field names are refused") {
  CHECK_STATUS(With([](TrainOptions& o) { o.tokenizer_path.clear(); }), kInvalid,
               "tokenizer must be byte, or");
  CHECK_STATUS(With([](TrainOptions& o) { o.text_field.clear(); }), kInvalid,
               "text_field must name a field");
  CHECK_STATUS(With([](TrainOptions& o) { o.max_bad_lines = -1; }), kInvalid,
               "max_bad_lines -1 must be at least 0");
}

TEST_CASE("the description names a tokenizer, unless it is that of bytes") {
  TrainOptions options = Defaults();
  CHECK_THAT(Describe(options, {}, 1), !Catch::Contains("tokenizer"));
  options.tokenizer_path = "llama3/";
  CHECK_THAT(Describe(options, {}, 1), Catch::Contains("\ntokenizer    llama3/\nlayout "));
}

TEST_CASE("the description says how messages become documents") {
  TrainOptions options = Defaults();
  options.chat_template = "llama3";
  options.packed_documents = true;
  CHECK_THAT(
      Describe(options, {}, 1),
      Catch::Contains("\ndocuments    messages by llama3, answers count in the loss; packed, "
                      "each apart\nrate "));
  options.packed_documents = false;
  options.train_on = TrainOn::kAll;
  CHECK_THAT(Describe(options, {}, 1),
             Catch::Contains("\ndocuments    messages by llama3, all of them count in the loss\n"));
}

TEST_CASE("pairs of answers say what they need") {
  const auto with = [](const auto& change, const Layout& layout = Layout()) {
    return With(
        [&](TrainOptions& o) {
          o.preference_beta = 0.1;
          o.chat_template = "llama3";
          o.packed_documents = true;
          o.init_from = "base";
          change(o);
        },
        layout);
  };
  CHECK_OK(with([](TrainOptions&) {}));
  CHECK_STATUS(with([](TrainOptions& o) { o.preference_beta = -1; }), kInvalid, "at least 0");
  CHECK_STATUS(with([](TrainOptions& o) { o.chat_template = ""; }), kInvalid, "--chat-template");
  CHECK_STATUS(with([](TrainOptions& o) { o.packed_documents = false; }), kInvalid,
               "leave packed_documents out");
  CHECK_STATUS(with([](TrainOptions& o) { o.init_from = ""; }), kInvalid, "--init-from");
  CHECK_STATUS(with([](TrainOptions& o) { o.max_bad_lines = 1; }), kInvalid, "max_bad_lines out");
  CHECK_STATUS(with([](TrainOptions& o) {
                 o.validation_data = {{"a", {"b"}}};
               }),
               kInvalid, "leave validation_data out");
  CHECK_STATUS(with([](TrainOptions& o) { o.data_order = DataOrder::kMegatron; }), kInvalid,
               "needs data_order convene");
  const Layout cp = {.cp = 2};
  CHECK_STATUS(with([](TrainOptions& o) { o.cp_method = ContextMethod::kUlysses; }, cp), kInvalid,
               "choose cp_method ring or allgather");
  CHECK_OK(with([](TrainOptions& o) { o.cp_method = ContextMethod::kRing; }, cp));
}

TEST_CASE("the description says where documents are packed") {
  TrainOptions options = Defaults();
  options.packed_documents = true;
  options.eod_token = 10;
  CHECK_THAT(Describe(options, Layout{}, 1),
             Catch::Contains("\ndocuments    packed, each apart; token 10 ends one\nrate "));
}

TEST_CASE("the model is checked against the layout too") {
  CHECK_STATUS(With([](TrainOptions& o) { o.model.ffn_size = 6; }, Layout{.tp = 4}), kInvalid,
               "cannot be split over tp_size 4");
}

TEST_CASE("what is sharded beside the optimizer's state, and where that is updated, is said") {
  TrainOptions options = Defaults();
  options.zero_stage = 3;
  options.offload_optimizer = true;
  CHECK_THAT(Describe(options, Layout{.dp = 2}, 2),
             Catch::Contains("dp2 x tp1 x pp1 on 2 ranks, ZeRO-3, updated by the host\n"));
}

TEST_CASE("the description shows the batch arithmetic") {
  CHECK(Describe(Defaults(), Layout{.pp = 2, .dp = 2, .tp = 2}, 8) ==
        "model        llama-tiny, 427,072 parameters "
        "(layers 8, hidden 64, ffn 192, heads 16/8 of 4, vocabulary 256)\n"
        "layout       dp2 x tp2 x pp2 on 8 ranks, rows split over tp\n"
        "batch        global 32 = dp 2 x micro 4 x accumulation 4\n"
        "tokens       4,096 a step (32 x 128), 410k in 100 steps\n"
        "rate         0.001 after 10 warm-up steps, then a cosine to 0.0001\n"
        "checkpoints  none\n");
}

TEST_CASE("the description tells how the rate goes down") {
  TrainOptions options = Defaults();
  const auto line = [&](RateShape shape) {
    options.rate_shape = shape;
    const std::string text = Describe(options, Layout{}, 1);
    return text.substr(text.find("then "), text.find("\ncheckpoints") - text.find("then "));
  };
  CHECK(line(RateShape::kLinear) == "then in a line to 0.0001");
  CHECK(line(RateShape::kWsdLinear) ==
        "then the same, and in the last 20 steps in a line to 0.0001");
  CHECK(line(RateShape::kWsdOneMinusSqrt) ==
        "then the same, and in the last 20 steps by 1 - sqrt to 0.0001");
  CHECK(line(RateShape::kConstant) == "then the same");
  CHECK(line(RateShape::kInverseSqrt) == "then by 1 / sqrt(step), never below 0.0001");
}

TEST_CASE("the description tells a changed shape and where checkpoints go") {
  TrainOptions options = Defaults();
  options.model.layers = 4;
  options.model.tied_embeddings = true;
  options.checkpoint_dir = "/data/run1";
  CHECK_THAT(Describe(options, Layout{}, 1),
             Catch::Contains("llama-tiny with changes, ") && Catch::Contains("256, tied)") &&
                 Catch::Contains("on 1 rank\n") &&
                 Catch::Contains("/data/run1, every 50 steps, newest 3 kept\n"));
  options.checkpoint_every = 0;
  options.resume = ResumeMode::kNone;
  CHECK_THAT(
      Describe(options, Layout{}, 1),
      Catch::Contains("/data/run1, the last step only, newest 3 kept; the run begins fresh\n"));
}

}  // namespace
}  // namespace convene::worker
