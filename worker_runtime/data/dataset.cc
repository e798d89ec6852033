#include "worker_runtime/data/dataset.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/check.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/blend.h"
#include "worker_runtime/data/rows.h"
#include "worker_runtime/ops/targets.h"

namespace convene::worker {
namespace {

// Sources with as many samples must not go through them in the same order. The first source has the
// seed itself: data that was one source stays in its order.
int64_t SeedOf(int64_t seed, int source) {
  return static_cast<int64_t>(static_cast<uint64_t>(seed) +
                              static_cast<uint64_t>(source) * 0x9e3779b97f4a7c15);
}

bool OccursIn(const TokenSource& source, int32_t token) {
  std::array<int32_t, 4096> block;
  int64_t count = 0;
  for (int64_t first = 0; first < source.token_count(); first += count) {
    count = std::min<int64_t>(block.size(), source.token_count() - first);
    source.Read(first, count, block.data());
    const auto end = block.begin() + count;
    if (std::find(block.begin(), end, token) != end) return true;
  }
  return false;
}

// The tokens of `ranges` that are targets, where they count: all but the first of each document, or
// of the row. Replaces `ranges`.
void KeepTargets(bool are_documents, std::vector<TokenRange>* ranges) {
  for (TokenRange& range : *ranges) {
    ++range.first;
    --range.count;
    if (!are_documents) return;
  }
}

int64_t CountedIn(const TokenSource& source, const TokenRange& range) {
  if (!source.has_counted()) return range.count;
  std::vector<uint8_t> counted(range.count);
  source.ReadCounted(range.first, range.count, counted.data());
  return std::accumulate(counted.begin(), counted.end(), int64_t{0});
}

// Of the targets that count. REQUIRES: source.token_bytes() is not empty.
int64_t BytesIn(const TokenSource& source, const TokenRange& range) {
  const absl::Span<const uint16_t> bytes_of = source.token_bytes();
  std::vector<int32_t> tokens(range.count);
  std::vector<uint8_t> counted(range.count);
  source.Read(range.first, range.count, tokens.data());
  source.ReadCounted(range.first, range.count, counted.data());
  int64_t bytes = 0;
  for (int64_t i = 0; i < range.count; ++i) {
    const auto id = static_cast<size_t>(tokens[i]);
    if (counted[i] != 0 && id < bytes_of.size()) bytes += bytes_of[id];
  }
  return bytes;
}

std::string IdentityOf(const TokenSource& source) {
  return absl::StrCat(source.token_count(), " tokens with hash ",
                      absl::Hex(source.content_hash(), absl::kZeroPad16));
}

}  // namespace

struct Dataset::Parts {
  std::vector<std::shared_ptr<const TokenSource>> sources;
  std::vector<std::unique_ptr<Rows>> rows;  // of each source
  std::vector<std::shared_ptr<const TokenSource>> left_out;
  std::vector<int64_t> weights;
  std::unique_ptr<Blend> training, validation;  // null where there is nothing of it
  int sequence_length = 0;
  int64_t id_limit = 0;
  int64_t training_samples = 0;
  int64_t validation_samples = 0;

  const TokenSource& SourceOf(const Place& place) const { return *sources[place.source]; }
  const Rows& RowsOf(const Place& place) const { return *rows[place.source]; }
  // A source that is held out whole has been cut as if it were to be trained.
  int64_t FirstHeldOut(int source) const {
    return training == nullptr ? 0 : rows[source]->training_rows();
  }
};

namespace {

bool HoldsAllOut(const DatasetOptions& options) { return options.validation_fraction == 1.0; }

absl::Status CheckOptions(const DatasetOptions& options) {
  const double fraction = options.validation_fraction;
  if (options.sequence_length < 1) {
    return absl::InvalidArgumentError(absl::StrCat("sequence_length ", options.sequence_length));
  }
  if (!(fraction >= 0.0 && fraction <= 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("validation_fraction ", fraction, " is not in [0, 1]"));
  }
  if (options.sources.empty()) return absl::InvalidArgumentError("data: no source is given");
  if (options.sources.size() > kBlendSourcesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("data: ", options.sources.size(), " sources; at most ", kBlendSourcesMax));
  }
  if (options.order != SampleOrder::kMegatron) return absl::OkStatus();
  if (options.sources.size() > 1 || options.packing.has_value() || HoldsAllOut(options)) {
    return absl::InvalidArgumentError(
        "Megatron's order is that of one source, trained without packing: give one source, or "
        "leave the order to this program");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Rows>> Cut(const TokenSource& source,
                                          const DatasetOptions& options) {
  const RowsOptions cut = {
      .sequence_length = options.sequence_length,
      .validation_fraction = HoldsAllOut(options) ? 0.0 : options.validation_fraction};
  if (options.packing.has_value()) {
    return options.pairs ? CutPairs(source, cut, *options.packing)
                         : PackDocuments(source, cut, *options.packing);
  }
  if (options.order == SampleOrder::kMegatron) {
    return CutAsMegatron(source, cut, options.seed, options.run_samples);
  }
  return CutContiguously(source, cut);
}

// `why`: the first source's, where there are several.
absl::Status TooShort(const absl::Status& why, size_t sources) {
  if (sources == 1) return absl::InvalidArgumentError(why.message());
  return absl::InvalidArgumentError(absl::StrCat(
      "data: each of the ", sources, " files is too short; the first: ", why.message()));
}

}  // namespace

Dataset::Dataset(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<Dataset> Dataset::Open(const DatasetOptions& options) {
  CONVENE_RETURN_IF_ERROR(CheckOptions(options));
  const auto parts = std::make_shared<Parts>();
  parts->sequence_length = options.sequence_length;
  parts->id_limit = options.vocabulary_size > 0 ? options.vocabulary_size : int64_t{1} << 31;
  std::vector<int64_t> training_counts;
  std::vector<int64_t> validation_counts;
  absl::Status first_too_short;
  for (const auto& [source, weight] : options.sources) {
    const int needed = source->document_vocabulary_size();
    if (needed > parts->id_limit) {
      return absl::InvalidArgumentError(
          absl::StrCat(source->path(), " has ids for a vocabulary of ", needed,
                       "; the model's vocabulary_size is ", options.vocabulary_size,
                       " and must be at least that"));
    }
    absl::StatusOr<std::unique_ptr<Rows>> rows = Cut(*source, options);
    const absl::Status why = Annotate(rows.status(), source->path());
    if (absl::IsOutOfRange(why)) {
      // A source with a share is one that the user counts on.
      if (weight.has_value()) return TooShort(why, 1);
      first_too_short.Update(why);
      parts->left_out.push_back(source);
      continue;
    }
    CONVENE_RETURN_IF_ERROR(why);
    parts->sources.push_back(source);
    const int64_t trained = (*rows)->training_rows();
    training_counts.push_back(HoldsAllOut(options) ? 0 : trained);
    validation_counts.push_back(HoldsAllOut(options) ? trained : (*rows)->validation_rows());
    parts->training_samples += training_counts.back();
    parts->validation_samples += validation_counts.back();
    parts->rows.push_back(*std::move(rows));
  }
  if (parts->sources.empty()) return TooShort(first_too_short, options.sources.size());
  std::vector<double> shares;
  for (const DatasetSource& source : options.sources) {
    if (source.weight.has_value()) shares.push_back(*source.weight);
  }
  CONVENE_CHECK(shares.empty() || shares.size() == options.sources.size());
  const auto& counts = HoldsAllOut(options) ? validation_counts : training_counts;
  parts->weights = shares.empty() ? counts : WeightsOfShares(shares);
  if (!HoldsAllOut(options)) parts->training = std::make_unique<Blend>(parts->weights);
  if (options.validation_fraction > 0.0) {
    parts->validation = std::make_unique<Blend>(validation_counts);
  }
  return Dataset(parts);
}

absl::Span<const std::shared_ptr<const TokenSource>> Dataset::left_out() const {
  return parts_->left_out;
}

int Dataset::sequence_length() const { return parts_->sequence_length; }
int64_t Dataset::training_samples() const { return parts_->training_samples; }
int64_t Dataset::validation_samples() const { return parts_->validation_samples; }

int Dataset::vocabulary_size() const {
  int largest = 0;
  for (const auto& source : parts_->sources) largest = std::max(largest, source->vocabulary_size());
  return largest;
}

int64_t Dataset::token_count() const {
  int64_t count = 0;
  for (const auto& source : parts_->sources) count += source->token_count();
  return count;
}

uint64_t Dataset::content_hash() const {
  uint64_t hash = parts_->sources[0]->content_hash();
  for (size_t i = 1; i < parts_->sources.size(); ++i) {
    hash = hash * 0x9e3779b97f4a7c15 + parts_->sources[i]->content_hash();
  }
  return hash;
}

const TokenizerIdentity& Dataset::tokenizer() const {
  for (const auto& source : parts_->sources) {
    if (source->tokenizer().fingerprint != 0) return source->tokenizer();
  }
  return parts_->sources[0]->tokenizer();
}

bool Dataset::Contains(int32_t token) const {
  return std::any_of(parts_->sources.begin(), parts_->sources.end(),
                     [token](const auto& source) { return OccursIn(*source, token); });
}

std::string Dataset::Identity() const {
  if (parts_->sources.size() == 1) return IdentityOf(*parts_->sources[0]);
  const double sum = std::accumulate(parts_->weights.begin(), parts_->weights.end(), 0.0);
  std::string text;
  for (size_t i = 0; i < parts_->sources.size(); ++i) {
    // As exact as the shares are kept: other ones are another order.
    absl::StrAppendFormat(&text, "%s%s (share %.12g)", i == 0 ? "" : " + ",
                          IdentityOf(*parts_->sources[i]),
                          static_cast<double>(parts_->weights[i]) / sum);
  }
  return text;
}

std::string Dataset::SamplesText() const {
  std::string text;
  for (size_t i = 0; i < parts_->rows.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : " + ", parts_->rows[i]->training_rows(), " ",
                    parts_->rows[i]->Text());
  }
  return text;
}

bool Dataset::has_counted() const {
  return has_documents() || std::any_of(parts_->sources.begin(), parts_->sources.end(),
                                        [](const auto& source) { return source->has_counted(); });
}

bool Dataset::has_documents() const { return parts_->rows[0]->are_documents(); }

std::optional<PackingCounts> Dataset::packing_counts() const {
  std::optional<PackingCounts> sum;
  for (const auto& rows : parts_->rows) {
    const std::optional<PackingCounts> counts = rows->packing_counts();
    if (!counts.has_value()) continue;
    if (!sum.has_value()) sum.emplace();
    *sum += *counts;
  }
  return sum;
}

std::vector<Dataset::Place> Dataset::TrainingPlaces(int64_t seed,
                                                    absl::Span<const int64_t> positions) const {
  std::vector<Place> places;
  for (const int64_t position : positions) {
    Place& place = places.emplace_back();
    if (position == kNoSample) continue;
    const auto [source, index] = parts_->training->At(position);
    place = {source, parts_->rows[source]->TrainingRow(SeedOf(seed, source), index)};
  }
  return places;
}

std::vector<Dataset::Place> Dataset::ValidationPlaces(absl::Span<const int64_t> indices) const {
  std::vector<Place> places;
  for (const int64_t index : indices) {
    Place& place = places.emplace_back();
    if (index == kNoSample) continue;
    CONVENE_CHECK(index >= 0 && index < parts_->validation_samples);
    const auto [source, held_out] = parts_->validation->At(index);
    place = {source, parts_->FirstHeldOut(source) + held_out};
  }
  return places;
}

int64_t Dataset::row_count() const {
  const int last = static_cast<int>(parts_->rows.size()) - 1;
  const Rows& rows = *parts_->rows[last];
  return RowNumber({last, rows.training_rows() + rows.validation_rows()});
}

std::vector<Dataset::Place> Dataset::RowPlaces(absl::Span<const int64_t> numbers) const {
  std::vector<Place> places;
  for (const int64_t number : numbers) {
    Place& place = places.emplace_back();
    if (number == kNoSample) continue;
    place.row = number;
    for (const auto& rows : parts_->rows) {
      const int64_t count = rows->training_rows() + rows->validation_rows();
      if (place.row < count) break;
      place.row -= count;
      ++place.source;
    }
  }
  return places;
}

int64_t Dataset::RowNumber(const Place& place) const {
  int64_t number = place.row;
  for (int source = 0; source < place.source; ++source) {
    number += parts_->rows[source]->training_rows() + parts_->rows[source]->validation_rows();
  }
  return number;
}

absl::Status Dataset::FillRow(const Place& place, int32_t* inputs, int32_t* targets) const {
  const TokenSource& source = parts_->SourceOf(place);
  const Rows& rows = parts_->RowsOf(place);
  const int64_t length = parts_->sequence_length;
  std::vector<TokenRange> ranges;
  rows.RangesOf(place.row, &ranges);
  // One more than the inputs: the last target.
  std::vector<int32_t> tokens(length + 1, 0);
  std::vector<uint8_t> counted(length + 1, 0);
  int64_t filled = 0;
  for (const TokenRange& range : ranges) {
    if (rows.are_pairs() && filled > 0) filled = length / 2;
    source.Read(range.first, range.count, tokens.data() + filled);
    source.ReadCounted(range.first, range.count, counted.data() + filled);
    // A document's first token is no target: none of the document is before it.
    if (rows.are_documents()) counted[filled] = 0;
    filled += range.count;
  }
  for (int64_t i = 0; i < filled; ++i) {
    if (tokens[i] >= 0 && tokens[i] < parts_->id_limit) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        source.path(), ": a sample has the token ", tokens[i], " as its number ", i, " (it begins ",
        "at token ", ranges[0].first, "); ids must be from 0 to ", parts_->id_limit - 1,
        ", below the model's vocabulary_size: give the vocabulary that the data was made with"));
  }
  std::copy_n(tokens.begin(), length, inputs);
  for (int64_t i = 0; i < length; ++i) {
    const int32_t none = i < filled ? kIgnoredTarget : kPaddingTarget;
    targets[i] = counted[i + 1] != 0 ? tokens[i + 1] : none;
  }
  return absl::OkStatus();
}

absl::Status Dataset::Fill(absl::Span<const Place> places, int32_t* inputs,
                           int32_t* targets) const {
  const int64_t length = parts_->sequence_length;
  for (const Place& place : places) {
    if (place.row == kNoSample) {
      std::fill_n(inputs, length, 0);
      std::fill_n(targets, length, kPaddingTarget);
    } else {
      CONVENE_RETURN_IF_ERROR(FillRow(place, inputs, targets));
    }
    inputs += length;
    targets += length;
  }
  return absl::OkStatus();
}

void Dataset::FillDocuments(absl::Span<const Place> places, int32_t* begin) const {
  CONVENE_CHECK(has_documents());
  std::vector<TokenRange> ranges;
  for (const Place& place : places) {
    ranges.clear();
    if (place.row != kNoSample) parts_->RowsOf(place).RangesOf(place.row, &ranges);
    int64_t filled = 0;
    const auto add = [&](int64_t count) {
      std::fill_n(begin + filled, count, static_cast<int32_t>(filled));
      filled += count;
    };
    for (const TokenRange& range : ranges) {
      // Between two answers there is padding, which is a document too.
      if (filled > 0 && parts_->RowsOf(place).are_pairs()) {
        add(parts_->sequence_length / 2 - filled);
      }
      add(range.count);
    }
    std::fill_n(begin + filled, parts_->sequence_length - filled, static_cast<int32_t>(filled));
    begin += parts_->sequence_length;
  }
}

std::vector<TokenRange> Dataset::TargetsOf(const Place& place) const {
  std::vector<TokenRange> ranges;
  const Rows& rows = parts_->RowsOf(place);
  rows.RangesOf(place.row, &ranges);
  KeepTargets(rows.are_documents(), &ranges);
  return ranges;
}

int64_t Dataset::CountedTargets(absl::Span<const Place> places) const {
  const bool all_count = !has_counted();
  int64_t counted = 0;
  for (const Place& place : places) {
    if (place.row == kNoSample) continue;
    if (parts_->RowsOf(place).are_pairs()) {
      ++counted;
      continue;
    }
    if (all_count) {
      counted += sequence_length();
      continue;
    }
    for (const TokenRange& range : TargetsOf(place)) {
      counted += CountedIn(parts_->SourceOf(place), range);
    }
  }
  return counted;
}

std::optional<int64_t> Dataset::ValidationTargetBytes(absl::Span<const int64_t> indices) const {
  for (const auto& source : parts_->sources) {
    if (source->token_bytes().empty()) return std::nullopt;
  }
  int64_t bytes = 0;
  for (const Place& place : ValidationPlaces(indices)) {
    if (place.row == kNoSample) continue;
    for (const TokenRange& range : TargetsOf(place)) {
      bytes += BytesIn(parts_->SourceOf(place), range);
    }
  }
  return bytes;
}

}  // namespace convene::worker
