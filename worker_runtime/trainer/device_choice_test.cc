#include "worker_runtime/trainer/device_choice.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

TEST_CASE("auto takes a GPU where there is one, each rank of a node its own") {
  CHECK(ChooseDevice(DeviceChoice::kAuto, 0, 3) == std::nullopt);
  CHECK(ChooseDevice(DeviceChoice::kAuto, 8, 3) == 3);
  CHECK(ChooseDevice(DeviceChoice::kCuda, 1, 3) == 0);
  CHECK(ChooseDevice(DeviceChoice::kCpu, 8, 3) == std::nullopt);
}

TEST_CASE("cuda never means the CPU, also where there is no GPU") {
  CHECK(ChooseDevice(DeviceChoice::kCuda, 0, 3) == 3);
}

TEST_CASE("a run that could have had a GPU says why it has none") {
  const absl::Status no_driver = absl::NotFoundError("no NVIDIA driver here");
  const auto why = [&](DeviceChoice choice, bool program, bool machine) {
    return WhyNoGpu(choice, no_driver, program, machine);
  };
  CHECK(why(DeviceChoice::kAuto, true, false) ==
        "no NVIDIA driver here (--device cuda makes this an error)");
  CHECK_FALSE(why(DeviceChoice::kAuto, true, true).empty());
  CHECK_FALSE(why(DeviceChoice::kAuto, false, true).empty());
  CHECK(why(DeviceChoice::kAuto, false, false).empty());
  CHECK(why(DeviceChoice::kCpu, true, true).empty());
}

TEST_CASE("the precision is bf16 on a GPU and fp32 on a CPU unless one is named") {
  CHECK(ChoosePrecision(std::nullopt, true) == DType::kBFloat16);
  CHECK(ChoosePrecision(std::nullopt, false) == DType::kFloat32);
  CHECK(ChoosePrecision(DType::kFloat32, true) == DType::kFloat32);
}

TEST_CASE("a method whose attention is slow on GPUs is warned of, with the one that is not") {
  TrainOptions options;
  options.model.heads = 16;
  options.model.kv_heads = 8;
  options.sequence_length = 64;
  CHECK(WhySlowAttention(options, {.cp = 4}, /*is_gpu=*/true).empty());
  CHECK(WhySlowAttention(options, {.cp = 16}, true).empty());  // by ring
  options.packed_documents = true;
  CHECK(absl::StartsWith(WhySlowAttention(options, {.cp = 16}, true),
                         "cp_size 16 by ring with packed documents:"));
  CHECK(WhySlowAttention(options, {.cp = 4}, true).empty());
  options.packed_documents = false;
  options.cp_method = ContextMethod::kAllGather;
  const std::string why = WhySlowAttention(options, {.cp = 4}, true);
  CHECK(absl::StrContains(why, "by allgather"));
  CHECK(absl::StrContains(why, "an estimate"));
  CHECK(WhySlowAttention(options, {.cp = 4}, /*is_gpu=*/false).empty());
  TrainOptions windowed = options;
  windowed.model.sliding_window = static_cast<int>(options.sequence_length) - 1;
  CHECK(absl::StartsWith(WhySlowAttention(windowed, {}, true), "sliding_window "));
  windowed.model.sliding_window = static_cast<int>(options.sequence_length);
  TrainOptions capped = windowed;
  capped.model.score_cap = 50;
  CHECK(absl::StartsWith(WhySlowAttention(capped, {}, true), "scores with a cap, which "));
  CHECK(WhySlowAttention(windowed, {}, true).empty());
  CHECK(WhySlowAttention(options, {}, true).empty());
  options.precision = DType::kFloat32;
  CHECK(WhySlowAttention(options, {.cp = 4}, true).empty());
}

// A global batch of `samples` in micro batches of one.
GraphChoice Graphs(int samples, const Layout& layout, bool is_gpu = true,
                   TrainOptions options = {}) {
  options.cuda_graphs = true;
  options.global_batch_size = samples;
  options.micro_batch_size = 1;
  return ChooseGraphs(options, layout, is_gpu);
}

TEST_CASE("nothing is captured, and nothing said, unless somebody asks") {
  const GraphChoice choice = ChooseGraphs({}, {}, /*is_gpu=*/true);
  CHECK_FALSE(choice.use_graphs);
  CHECK(choice.text.empty());
}

TEST_CASE("passes are captured on a GPU, also in a pipeline and beside data-parallel ranks") {
  for (const Layout& layout : {Layout{}, Layout{.pp = 2}, Layout{.dp = 2}}) {
    for (const int samples : {2, 4}) {  // with dp 2: one micro batch, and two
      CHECK(Graphs(samples, layout).use_graphs);
      CHECK(absl::StartsWith(Graphs(samples, layout).text, "on"));
    }
  }
  CHECK(Graphs(1, {}, /*is_gpu=*/true, {.offload_optimizer = true}).use_graphs);
  CHECK_THAT(Graphs(100, {}).text, Catch::Contains("the first 64 of 100 micro batches"));
  CHECK(Graphs(100, {}).use_graphs);
}

TEST_CASE("what stands against graphs is said") {
  const auto check_off = [](const GraphChoice& choice, const char* words) {
    CHECK_FALSE(choice.use_graphs);
    CHECK_THAT(choice.text, Catch::StartsWith("off: ") && Catch::Contains(words));
  };
  check_off(Graphs(4, {}, /*is_gpu=*/false), "CPU");
  check_off(Graphs(4, {}, /*is_gpu=*/true, {.profile = true}), "--profile");
  check_off(Graphs(4, {}, /*is_gpu=*/true, {.packed_documents = true}), "packed documents");
  check_off(Graphs(4, Layout{.tp = 2}), "tp_size 2");
  check_off(Graphs(4, {}, /*is_gpu=*/true, {.zero_stage = 2}), "zero_stage 2");
}

TEST_CASE(
    "on GPUs every named schedule runs, and a file whose ranks have too many neighbours not") {
  TrainOptions options;
  options.model = {.layers = 8,
                   .hidden_size = 8,
                   .ffn_size = 8,
                   .heads = 1,
                   .kv_heads = 1,
                   .head_size = 8,
                   .vocabulary_size = 16};
  options.global_batch_size = 8;
  options.micro_batch_size = 1;
  for (const char* name : {"gpipe", "1f1b", "interleaved"}) {
    options.pp_schedule = name;
    CHECK_OK(CheckSchedule(options, {.pp = 4}, /*is_gpu=*/true));
  }
  // Chunks on the ranks 0, 1, 0, 2, 0, 3.
  const int chunks_of[] = {0, 2, 4, 1, 3, 5};
  const size_t rows[] = {0, 3, 4, 5, 6};
  options.pp_schedule = "star.csv";
  for (int rank = 0; rank < 4; ++rank) {
    std::string forwards, backwards;
    for (size_t i = rows[rank]; i < rows[rank + 1]; ++i) {
      for (int microbatch = 0; microbatch < 8; ++microbatch) {
        absl::StrAppend(&forwards, chunks_of[i], "F", microbatch, ",");
        backwards = absl::StrCat(chunks_of[i], "B", microbatch, ",", backwards);
      }
    }
    absl::StrAppend(&options.pp_schedule_csv, forwards, backwards, "\n");
  }
  CHECK_OK(CheckSchedule(options, {.pp = 4}, /*is_gpu=*/false));
  CHECK_STATUS(CheckSchedule(options, {.pp = 4}, /*is_gpu=*/true),
               absl::StatusCode::kInvalidArgument,
               "pp_schedule star.csv has rank 0 exchange messages with 3 others, and on GPUs 2 is");
}

}  // namespace
}  // namespace convene::worker
