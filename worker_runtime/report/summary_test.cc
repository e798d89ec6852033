#include "worker_runtime/report/summary.h"

#include <catch2/catch.hpp>

namespace convene::worker {
namespace {

TrainingSummary Finished() {
  return {.first_step = 250,
          .step = 500,
          .steps = 500,
          .loss = 2.1046,
          .loss_step = 500,
          .made_steps = 250,
          .validations = {{.validation_loss = 2.2031}},
          .wall_time = absl::Seconds(125),
          .tokens_per_second = 41'234,
          .kept_time = absl::Seconds(119),
          .data_time = absl::Seconds(1),
          .checkpoint_time = absl::Seconds(2),
          .restarts = 1,
          .checkpoint = "/run/step_00000500",
          .checkpoint_step = 500,
          .metrics_file = "/run/metrics.jsonl"};
}

TEST_CASE("a finished run shows its result, its history and how to train on") {
  CHECK(SummaryText(Finished()) ==
        "finished: 500 steps, the first 250 of them from a checkpoint, after 1 restart\n"
        "  loss        2.1046, validation 2.2031\n"
        "  time        2:05, 41.2k tokens/s\n"
        "  goodput     95.2 % of the time in steps that are kept; 0.8 % waiting for samples, 1.6 % "
        "held by checkpoints\n"
        "  metrics     /run/metrics.jsonl\n"
        "  checkpoint  /run/step_00000500 (step 500)\n"
        "  to go on    the same command with --steps 1000 trains as long again, at the learning "
        "rates of 1000 steps\n");
}

TEST_CASE("a summary says that the file of metrics lacks lines") {
  TrainingSummary summary = Finished();
  summary.lost_metrics = 30;
  CHECK_THAT(SummaryText(summary),
             Catch::Contains("  metrics     /run/metrics.jsonl, without the last 30 lines\n"));
}

TEST_CASE("a stopped run says from which step the same command goes on") {
  TrainingSummary summary = Finished();
  summary.first_step = 0;
  summary.restarts = 2;
  summary.step = 320;
  summary.loss_step = 320;
  summary.checkpoint_step = 300;
  summary.validations.clear();
  const std::string text = SummaryText(summary);
  CHECK_THAT(text, Catch::StartsWith("stopped after step 320, after 2 restarts\n"));
  CHECK_THAT(text, Catch::Contains("  loss        2.1046\n"));
  CHECK_THAT(text, Catch::EndsWith("the same command goes on from step 300 to step 500\n"));
}

TEST_CASE("a run that went back after spikes says so, and counts the steps that it took back") {
  TrainingSummary summary = Finished();
  summary.first_step = 0;
  summary.rollbacks = 2;
  summary.made_steps = 523;
  summary.skipped_steps = 2;
  summary.spikes = 2;
  CHECK_THAT(SummaryText(summary),
             Catch::StartsWith("finished: 500 steps, after 1 restart and 2 rollbacks\n"));
  CHECK_THAT(SummaryText(summary), Catch::Contains("2 of 523 steps changed no weight: loss or"));
  summary.restarts = 0;
  summary.rollbacks = 1;
  CHECK_THAT(SummaryText(summary), Catch::StartsWith("finished: 500 steps, after 1 rollback\n"));
}

TEST_CASE("a run that had nothing left to do says so, and shows no loss of its own") {
  TrainingSummary summary = Finished();
  summary.first_step = summary.step;
  summary.loss.reset();
  CHECK_THAT(SummaryText(summary), Catch::Contains("  loss        validation 2.2031\n"));
  CHECK_THAT(SummaryText(summary), Catch::StartsWith("nothing was left to do: 500 steps are in the "
                                                     "checkpoint, and --steps is 500\n"));
  summary.steps = 100;
  CHECK_THAT(SummaryText(summary), Catch::StartsWith("nothing was left to do: 500 steps are in the "
                                                     "checkpoint, and --steps is 100\n"));
  CHECK_THAT(SummaryText(summary), Catch::Contains("with --steps 1000 trains as long again"));
}

TEST_CASE("a run whose last steps were skipped does not look like one that learned to its end") {
  TrainingSummary summary = Finished();
  summary.skipped_steps = 1;
  CHECK_THAT(SummaryText(summary),
             Catch::Contains("  skipped     1 of 250 steps changed no weight: their gradient was "
                             "no number\n"));
  summary.loss_step = 491;
  summary.skipped_steps = 12;
  summary.skipped_at_end = 9;
  const std::string text = SummaryText(summary);
  CHECK_THAT(text,
             Catch::Contains("  loss        2.1046 in step 491, the last whose loss is a number, "
                             "validation 2.2031\n"));
  CHECK_THAT(text, Catch::Contains("  skipped     12 of 250 steps changed no weight: their "
                                   "gradient was no number; among them the last 9. Look at"));
}

TEST_CASE("steps that were skipped as spikes are not said to have had no number") {
  TrainingSummary summary = Finished();
  summary.skipped_steps = 3;
  summary.spikes = 3;
  CHECK_THAT(SummaryText(summary), Catch::Contains("3 of 250 steps changed no weight: loss or "
                                                   "gradient was a spike\n"));
  summary.spikes = 2;
  CHECK_THAT(SummaryText(summary), Catch::Contains("in 2 of them loss or gradient was a spike, in "
                                                   "the others the gradient was no number\n"));
}

TEST_CASE("where the time went, and the use of the machine, stand below the time") {
  TrainingSummary summary = Finished();
  summary.wall_time = absl::Seconds(200);
  summary.kept_time = absl::Seconds(180);
  summary.data_time = absl::Seconds(4);
  summary.checkpoint_time = absl::Seconds(7);
  summary.tokens_per_second = 80000;
  summary.world_size = 4;
  std::string text = SummaryText(summary);
  CHECK_THAT(text, Catch::Contains(" 80.0k tokens/s, 20.0k a rank\n"
                                   "  goodput     90.0 % of the time in steps that are kept; 2.0 % "
                                   "waiting for samples, 3.5 % held by checkpoints\n"));
  CHECK_THAT(text, !Catch::Contains("MFU") && !Catch::Contains("memory"));
  summary.mfu = Utilization{.full_attention = 0.4123, .causal_attention = 0.377};
  summary.peak = 989e12;
  summary.host_memory_peak_bytes = int64_t{3} << 29;
  text = SummaryText(summary);
  CHECK_THAT(text, Catch::Contains("  MFU         41.2 % of 989 TFLOP/s, with all scores of "
                                   "attention (PaLM); 37.7 % with the causal half"));
  CHECK_THAT(text, Catch::Contains("  memory      at most 1.5 GiB of the host's, by rank 0\n"));
}

TEST_CASE("bits a byte stand beside the loss that they are made of") {
  TrainingSummary summary = Finished();
  summary.validations[0].bits_per_byte = 3.17841;
  CHECK_THAT(SummaryText(summary),
             Catch::Contains("  loss        2.1046, validation 2.2031, 3.1784 bits a byte\n"));
  summary.validations.push_back({.validation_set = "code", .validation_loss = 1.5});
  CHECK_THAT(SummaryText(summary), Catch::Contains("3.1784 bits a byte, code 1.5000\n"));
}

TEST_CASE("without a checkpoint the summary names the flag that would have kept one") {
  TrainingSummary summary = Finished();
  summary.checkpoint.clear();
  CHECK_THAT(SummaryText(summary), Catch::EndsWith("give --checkpoint-dir DIR to keep it\n"));
  summary.step = 0;
  summary.first_step = 0;
  summary.loss.reset();
  summary.validations.clear();
  CHECK_THAT(SummaryText(summary),
             !Catch::Contains("loss") && Catch::Contains("start again; with --checkpoint-dir DIR"));
}

}  // namespace
}  // namespace convene::worker
