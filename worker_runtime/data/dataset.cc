#include "worker_runtime/data/dataset.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/sample_order.h"

namespace convene::worker {
namespace {

constexpr int32_t kIgnoredTarget = -1;

}  // namespace

Dataset::Dataset(TokenFile tokens, int sequence_length, int64_t training_samples,
                 int64_t validation_samples)
    : tokens_(std::move(tokens)),
      sequence_length_(sequence_length),
      training_samples_(training_samples),
      validation_samples_(validation_samples) {}

absl::StatusOr<Dataset> Dataset::Open(const std::string& token_file, int sequence_length,
                                      double validation_fraction) {
  if (sequence_length < 1) {
    return absl::InvalidArgumentError(absl::StrCat("sequence_length ", sequence_length));
  }
  if (!(validation_fraction >= 0.0 && validation_fraction < 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("validation_fraction ", validation_fraction, " is not in [0, 1)"));
  }
  CONVENE_ASSIGN_OR_RETURN(TokenFile tokens, TokenFile::Open(token_file));
  const bool has_validation = validation_fraction > 0.0;
  const int64_t samples = std::max<int64_t>(0, (tokens.token_count() - 1) / sequence_length);
  const int64_t needed_samples = has_validation ? 2 : 1;
  if (samples < needed_samples) {
    return absl::InvalidArgumentError(
        absl::StrCat("data has ", tokens.token_count(), " tokens; sequence_length ",
                     sequence_length, " needs at least ", needed_samples * sequence_length + 1,
                     " (one training sample", has_validation ? " and one validation sample" : "",
                     "): give more data or a shorter sequence_length"));
  }
  int64_t validation_samples = 0;
  if (has_validation) {
    validation_samples =
        std::clamp<int64_t>(static_cast<int64_t>(samples * validation_fraction), 1, samples - 1);
  }
  return Dataset(std::move(tokens), sequence_length, samples - validation_samples,
                 validation_samples);
}

std::string Dataset::Identity() const {
  return absl::StrCat(token_count(), " tokens with hash ",
                      absl::Hex(content_hash(), absl::kZeroPad16));
}

std::string Dataset::SamplesText() const {
  return absl::StrCat(training_samples_, " training samples of ", sequence_length_, " tokens");
}

void Dataset::FillRow(int64_t sample, int32_t* inputs, int32_t* targets) const {
  const int64_t length = sequence_length_;
  if (sample == kNoSample) {
    std::fill_n(inputs, length, 0);
    std::fill_n(targets, length, kIgnoredTarget);
    return;
  }
  tokens_.Read(sample * length, length, inputs);
  tokens_.Read(sample * length + 1, length, targets);
}

void Dataset::FillMicrobatch(int64_t seed, absl::Span<const int64_t> positions, int32_t* inputs,
                             int32_t* targets) const {
  for (const int64_t position : positions) {
    FillRow(position == kNoSample ? kNoSample : SampleAt(seed, training_samples_, position), inputs,
            targets);
    inputs += sequence_length_;
    targets += sequence_length_;
  }
}

void Dataset::FillValidation(absl::Span<const int64_t> indices, int32_t* inputs,
                             int32_t* targets) const {
  for (const int64_t index : indices) {
    CONVENE_CHECK(index == kNoSample || (index >= 0 && index < validation_samples_));
    FillRow(index == kNoSample ? kNoSample : training_samples_ + index, inputs, targets);
    inputs += sequence_length_;
    targets += sequence_length_;
  }
}

}  // namespace convene::worker
