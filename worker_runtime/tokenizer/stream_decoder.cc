#include "worker_runtime/tokenizer/stream_decoder.h"

#include <algorithm>
#include <utility>

#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// Ids that show nothing, such as spaces at the beginning, are kept as context up to this many.
constexpr size_t kLongestContext = 64;

// Whether `more` goes on with the unfinished character that ends `bytes`.
bool GoesOn(const std::string& bytes, const std::string& more) {
  const size_t unfinished = UnfinishedSuffix(bytes);
  return FirstCharacter(bytes.substr(bytes.size() - unfinished) + more).length > unfinished;
}

}  // namespace

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool show_specials)
    : tokenizer_(tokenizer), show_specials_(show_specials) {}

std::string StreamDecoder::Add(int32_t id) {
  std::string bytes;
  tokenizer_.AppendTokenBytes(id, &bytes);
  // A token without bytes is special, or none; a hidden one does not end a character.
  if (bytes.empty() && !(show_specials_ && !tokenizer_.SpecialTextOf(id).empty())) return "";
  std::string text;
  if (!pending_.empty() && !GoesOn(pending_bytes_, bytes)) text = Show();
  pending_.push_back(id);
  pending_bytes_ += bytes;
  if (!bytes.empty() && UnfinishedSuffix(pending_bytes_) > 0) return text;
  return text + Show();
}

std::string StreamDecoder::Finish() {
  std::string text = pending_.empty() ? "" : Show();
  context_.clear();
  context_bytes_ = 0;
  return text;
}

std::string StreamDecoder::Show() {
  std::vector<int32_t> ids = context_;
  ids.insert(ids.end(), pending_.begin(), pending_.end());
  const std::string text = tokenizer_.Decode(ids, show_specials_);
  std::string added = text.substr(std::min(context_bytes_, text.size()));
  // The context is only what was added last, unless that alone shows nothing.
  context_bytes_ = tokenizer_.Decode(pending_, show_specials_).size();
  if (context_bytes_ > 0 || ids.size() > kLongestContext) {
    context_ = std::move(pending_);
  } else {
    context_ = std::move(ids);
    context_bytes_ = text.size();
  }
  pending_.clear();
  pending_bytes_.clear();
  return added;
}

}  // namespace convene::worker
