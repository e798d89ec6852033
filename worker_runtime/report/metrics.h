// The metrics file: JSON lines that tell the course of a run, for plots and tests.
//
//   {"step":12,"loss":2.3412,"grad_norm":0.81,"learning_rate":0.00098,"tokens":49152,"tokens_per_second":41200.5,
//    "step_seconds":0.0994,"epoch":1,"world_size":8,"layout":"dp2 x tp2 x pp2"}          (one line
//    in the file)
//   {"step":50,"validation_loss":2.2981,"bits_per_byte":3.3155}
//   {"step":50,"validation_set":"code","validation_loss":1.9127}
//   {"step":50,"checkpoint_held_seconds":0.021,"checkpoint_seconds":0.87}
//   {"step":50,"sample_prompt":"Once upon","sample_text":" a time","sample_tokens":2,
//    "sample_end":"length"}                                                             (one line)
//
// Every line is whole JSON and appended by a single write. Numbers keep their exact value; NaN and
// infinities, which JSON does not have, are null and read back as NaN. Lines are not fsynced: a
// power cut may lose the newest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/unique_fd.h"

namespace convene::worker {

// Each member is a key of the line, in this order; a nullopt has none.
struct StepMetrics {
  int64_t step = 0;      // finished optimizer steps: the first is 1
  double loss = 0;       // mean over the step's targets that count; NaN where none does
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  // Of models with experts: what the router's losses add to the loss that is trained; the most
  // tokens of an expert over the mean, and the entropy of the experts' shares in nats, each the
  // mean over layers and microbatches, without padding; and the share of these whose tokens went to
  // the experts in pieces, for want of memory.
  std::optional<double> balance_loss, z_loss, expert_load, expert_entropy, experts_in_pieces;
  // Of pairs of answers: the share of those that count whose chosen answer has the higher reward,
  // and the mean by which it is higher (ops/preference_loss.h), before the update.
  std::optional<double> reward_accuracy, reward_margin;
  // Why the step changed no weight: "no_number", "loss_spike" or "gradient_spike"; nullopt where it
  // did, or no target counts.
  std::optional<std::string> skipped;
  // Spikes so far that took the training back to a checkpoint; nullopt: none.
  std::optional<int64_t> rollbacks;
  int64_t tokens = 0;                   // gone through since step 0, over all ranks, counted or not
  std::optional<double> counted_share;  // of the step's targets; nullopt: all count
  double tokens_per_second = 0;
  double step_seconds = 0;
  // Of a GPU that convene plan knows: shares of its peak (planner/utilization.h).
  std::optional<double> mfu_full_attention, mfu_causal_attention;
  std::optional<double> data_seconds;  // of step_seconds, rank 0 waited so long for samples
  // The most resident memory that rank 0's process has had.
  std::optional<int64_t> host_memory_peak_bytes;
  int64_t epoch = 0;
  int64_t world_size = 0;
  std::string layout;
  friend bool operator==(const StepMetrics&, const StepMetrics&) = default;
};

struct ValidationMetrics {
  int64_t step = 0;  // steps finished when it ran
  // The name of the held-out data; nullopt: the held-out part of the training data.
  std::optional<std::string> validation_set;
  double validation_loss = 0;
  // The same in bits for each byte of text that the counted targets stand for; nullopt where the
  // data does not say how many bytes these are.
  std::optional<double> bits_per_byte;
  std::optional<double> reward_accuracy, reward_margin;  // StepMetrics'
  friend bool operator==(const ValidationMetrics&, const ValidationMetrics&) = default;
};

// A checkpoint that was saved; the line may follow those of later steps.
struct CheckpointMetrics {
  int64_t step = 0;                    // steps that it holds
  double checkpoint_held_seconds = 0;  // the training stood still for so long
  double checkpoint_seconds = 0;       // until the checkpoint was on the disk, the former included
  friend bool operator==(const CheckpointMetrics&, const CheckpointMetrics&) = default;
};

// A text that the model made.
struct SampleMetrics {
  int64_t step = 0;  // steps finished when it was made
  std::string sample_prompt;
  std::string sample_text;    // behind the prompt
  int64_t sample_tokens = 0;  // of it
  std::string sample_end;     // why it ends: "end_token" or "length"
  friend bool operator==(const SampleMetrics&, const SampleMetrics&) = default;
};

using MetricsRecord =
    std::variant<StepMetrics, ValidationMetrics, CheckpointMetrics, SampleMetrics>;

// A text as JSON has it, with its quotes. Bytes that are not UTF-8 become '?'.
std::string JsonText(absl::string_view text);

// One line, with its newline.
std::string MetricsLine(const MetricsRecord& record);

// A line without its newline. InvalidArgument when it is not exactly one of these objects.
absl::StatusOr<MetricsRecord> ParseMetricsLine(absl::string_view line);

// Calls `hear` for each member that is a number, in the line's order, but for the step.
void ForEachNumber(const MetricsRecord& record,
                   absl::FunctionRef<void(const char* key, double value)> hear);

// The open file of the one rank that writes it. Not thread-safe.
class MetricsFile {
 public:
  // Creates `path` and its directories when absent. A run that resumes with `resumed_step` finished
  // steps will do the later ones again, so their lines, and a torn last line, are dropped (the file
  // is then replaced atomically); a fresh start (0) drops all. FailedPrecondition, with the file
  // untouched, when it holds a line that MetricsLine cannot have written: it is somebody else's
  // file.
  static absl::StatusOr<MetricsFile> Open(const std::string& path, int64_t resumed_step);

  // The lines of resumed_step that were kept; none of a fresh start.
  const std::vector<MetricsRecord>& of_resumed_step() const { return of_resumed_step_; }

  // On failure (ResourceExhausted when the disk is full) no part of the line stays behind.
  absl::Status Append(const MetricsRecord& record);

 private:
  MetricsFile(std::string path, UniqueFd fd, std::vector<MetricsRecord> of_resumed_step)
      : path_(std::move(path)), fd_(std::move(fd)), of_resumed_step_(std::move(of_resumed_step)) {}

  std::string path_;
  UniqueFd fd_;
  std::vector<MetricsRecord> of_resumed_step_;
};

}  // namespace convene::worker
