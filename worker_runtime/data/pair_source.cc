#include "worker_runtime/data/pair_source.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace convene::worker {
namespace {

class PairSource final : public TokenSource {
 public:
  PairSource(std::shared_ptr<const TokenSource> chosen, std::shared_ptr<const TokenSource> rejected)
      : chosen_(std::move(chosen)), rejected_(std::move(rejected)) {}

  TokenFormat format() const override { return chosen_->format(); }
  std::string kind() const override { return absl::StrCat("pairs in a ", chosen_->kind()); }
  const std::string& path() const override { return chosen_->path(); }
  int64_t token_count() const override { return chosen_->token_count() + rejected_->token_count(); }
  int64_t file_bytes() const override { return chosen_->file_bytes() + rejected_->file_bytes(); }
  int vocabulary_size() const override {
    return std::max(chosen_->vocabulary_size(), rejected_->vocabulary_size());
  }
  int document_vocabulary_size() const override {
    return std::max(chosen_->document_vocabulary_size(), rejected_->document_vocabulary_size());
  }
  const TokenizerIdentity& tokenizer() const override { return chosen_->tokenizer(); }
  uint64_t content_hash() const override {
    return chosen_->content_hash() * 0x9e3779b97f4a7c15 + rejected_->content_hash();
  }

  int64_t document_count() const override {
    return chosen_->document_count() + rejected_->document_count();
  }
  int64_t document_end(int64_t document) const override {
    const int64_t pairs = chosen_->document_count();
    return document < pairs ? chosen_->document_end(document)
                            : chosen_->token_count() + rejected_->document_end(document - pairs);
  }

  void Read(int64_t first, int64_t count, int32_t* tokens) const override {
    Split(first, count, [&](const TokenSource& source, int64_t begin, int64_t size, int64_t done) {
      source.Read(begin, size, tokens + done);
    });
  }
  bool has_counted() const override { return chosen_->has_counted() || rejected_->has_counted(); }
  void ReadCounted(int64_t first, int64_t count, uint8_t* counted) const override {
    Split(first, count, [&](const TokenSource& source, int64_t begin, int64_t size, int64_t done) {
      source.ReadCounted(begin, size, counted + done);
    });
  }
  // A loss of pairs is none a byte.
  absl::Span<const uint16_t> token_bytes() const override { return {}; }

 private:
  template <typename Take>
  void Split(int64_t first, int64_t count, const Take& take) const {
    const int64_t border = chosen_->token_count();
    const int64_t before = std::clamp<int64_t>(border - first, 0, count);
    if (before > 0) take(*chosen_, first, before, 0);
    if (before < count) take(*rejected_, first + before - border, count - before, before);
  }

  const std::shared_ptr<const TokenSource> chosen_, rejected_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const TokenSource>> JoinPairs(
    std::shared_ptr<const TokenSource> chosen, std::shared_ptr<const TokenSource> rejected) {
  if (chosen->document_count() != rejected->document_count()) {
    return absl::InvalidArgumentError(absl::StrCat(
        chosen->path(), " has ", chosen->document_count(), " chosen answers, and ",
        rejected->document_count(), " rejected ones: each line needs one of both; mend the data"));
  }
  if (chosen->content_hash() == rejected->content_hash()) {
    return absl::InvalidArgumentError(
        absl::StrCat(chosen->path(),
                     ": all chosen answers are the rejected ones, so there is nothing to learn: "
                     "give JSON lines with \"chosen\" and \"rejected\" (a file of tokens has no "
                     "pairs)"));
  }
  return std::make_shared<PairSource>(std::move(chosen), std::move(rejected));
}

}  // namespace convene::worker
