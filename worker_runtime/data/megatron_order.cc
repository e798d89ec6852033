#include "worker_runtime/data/megatron_order.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "tools/base/check.h"

namespace convene::worker {
namespace {

constexpr int64_t kStride = 64;
constexpr double kSeparateBelow = 0.80;

// numpy's RandomState(seed): std::mt19937 is seeded and drawn from in the same way.
class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : generator_(seed) {}

  template <typename T>
  void Shuffle(absl::Span<T> values) {
    for (size_t i = values.size(); i-- > 1;) std::swap(values[i], values[Draw(i)]);
  }

 private:
  // Of [0, max].
  uint32_t Draw(uint32_t max) {
    const uint32_t mask = std::numeric_limits<uint32_t>::max() >> std::countl_zero(max);
    while (true) {
      const auto value = static_cast<uint32_t>(generator_()) & mask;
      if (value <= max) return value;
    }
  }

  std::mt19937 generator_;
};

// [0, count), `times` times, shuffled together.
void AppendShuffled(int64_t count, int64_t times, NumpyRandom* random,
                    std::vector<int32_t>* sequences) {
  const size_t begin = sequences->size();
  for (int64_t time = 0; time < times; ++time) {
    for (int64_t i = 0; i < count; ++i) sequences->push_back(static_cast<int32_t>(i));
  }
  random->Shuffle(absl::MakeSpan(*sequences).subspan(begin));
}

}  // namespace

absl::StatusOr<MegatronOrder> MegatronOrder::Build(const MegatronRun& run, int64_t count,
                                                   std::function<int64_t(int64_t)> length) {
  CONVENE_CHECK(run.sequence_length >= 1 && count >= 0);
  const int64_t sample_tokens = run.sequence_length;
  if (run.seed < 0 || run.seed > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("seed ", run.seed, ": numpy, whose shuffle Megatron's order is, takes seeds ",
                     "from 0 to 4294967295"));
  }
  int64_t epoch_tokens = 0;
  for (int64_t i = 0; i < count; ++i) epoch_tokens += length(i);
  if (run.samples < 1 || epoch_tokens <= sample_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        run.samples, " samples of ", sample_tokens, " tokens of data with ", epoch_tokens,
        ": at least one sample of at least ", sample_tokens + 1, " tokens is needed"));
  }
  constexpr int64_t kSamplesMax = std::numeric_limits<uint32_t>::max() - 1;
  // So that neither the samples nor their tokens overflow.
  const bool samples_fit =
      epoch_tokens / sample_tokens < kSamplesMax &&
      run.samples < kSamplesMax - epoch_tokens / sample_tokens &&
      run.samples < (std::numeric_limits<int64_t>::max() - 2 * epoch_tokens) / sample_tokens;
  const int64_t epochs =
      samples_fit ? (run.samples * sample_tokens + 1 + epoch_tokens - 1) / epoch_tokens : 0;
  if (!samples_fit || count > std::numeric_limits<int32_t>::max() ||
      epochs > std::numeric_limits<int32_t>::max() / count) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Megatron's order of ", run.samples, " samples from ", count,
        " sequences has tables of more than 2^31 entries: use this program's own order"));
  }
  MegatronOrder order;
  order.sequence_length_ = run.sequence_length;
  order.length_ = std::move(length);
  order.epochs_ = epochs;
  const int64_t samples_before_last = ((epochs - 1) * epoch_tokens - 1) / sample_tokens;
  const int64_t samples = (epochs * epoch_tokens - 1) / sample_tokens;
  if (epochs > 1) {
    const int64_t epoch_samples = (epoch_tokens - 1) / sample_tokens;
    order.separate_final_epoch_ =
        run.samples - samples_before_last <
        static_cast<int64_t>(kSeparateBelow * static_cast<double>(epoch_samples));
  }
  NumpyRandom random(static_cast<uint32_t>(run.seed));
  order.sequences_.reserve(epochs * count);
  AppendShuffled(count, order.separate_final_epoch_ ? epochs - 1 : epochs, &random,
                 &order.sequences_);
  if (order.separate_final_epoch_) AppendShuffled(count, 1, &random, &order.sequences_);
  order.IndexTokens();
  order.shuffle_.resize(samples);
  for (int64_t i = 0; i < samples; ++i) order.shuffle_[i] = static_cast<uint32_t>(i);
  const absl::Span<uint32_t> all = absl::MakeSpan(order.shuffle_);
  const int64_t together = order.separate_final_epoch_ ? samples_before_last : samples;
  random.Shuffle(all.subspan(0, together));
  random.Shuffle(all.subspan(together));
  return order;
}

void MegatronOrder::IndexTokens() {
  int64_t tokens = 0;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (i % kStride == 0) tokens_before_.push_back(tokens);
    tokens += length_(sequences_[i]);
  }
}

void MegatronOrder::PiecesOf(int64_t index, std::vector<Piece>* pieces) const {
  CONVENE_CHECK(index >= 0 && index < sample_count());
  pieces->clear();
  const int64_t begin = int64_t{shuffle_[index]} * sequence_length_;
  // The last stride that begins at or before the sample.
  const auto stride = std::upper_bound(tokens_before_.begin(), tokens_before_.end(), begin) - 1;
  auto entry = static_cast<size_t>((stride - tokens_before_.begin()) * kStride);
  int64_t skip = begin - *stride;
  int64_t needed = sequence_length_ + INT64_C(1);
  while (needed > 0) {
    const int32_t sequence = sequences_[entry++];
    const int64_t tokens = length_(sequence);
    if (skip >= tokens) {
      skip -= tokens;
      continue;
    }
    const int64_t count = std::min(tokens - skip, needed);
    pieces->push_back({sequence, skip, count});
    needed -= count;
    skip = 0;
  }
}

}  // namespace convene::worker
