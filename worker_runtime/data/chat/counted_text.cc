#include "worker_runtime/data/chat/counted_text.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "worker_runtime/data/chat/jinja/characters.h"

namespace convene::worker {
namespace {

using jinja::TextSpan;

// Whether [begin, end) of the text shares a byte with a span; an empty token belongs to the span
// that it stands in.
bool Counts(size_t begin, size_t end, absl::Span<const TextSpan> spans) {
  return std::any_of(spans.begin(), spans.end(), [&](const TextSpan& span) {
    if (begin == end) return span.begin <= begin && begin < span.end;
    return span.begin < span.end && begin < span.end && end > span.begin;
  });
}

// Lays tokens beside the text that they were made of, one after the other.
class Alignment {
 public:
  Alignment(absl::string_view text, const Tokenizer& tokenizer)
      : text_(text), tokenizer_(tokenizer) {}

  // Where the token lies in the text. False: the text does not go on with its bytes.
  bool Place(int32_t id, TextSpan* place) {
    bytes_ = tokenizer_.SpecialTextOf(id);
    const bool special = !bytes_.empty();
    if (!special) tokenizer_.AppendTokenBytes(id, &bytes_);
    const absl::string_view bytes = bytes_;
    if (TakeAt(next_, bytes, special, place)) return true;
    // A special token may swallow the white space around it.
    if (!special && !after_special_) return false;
    const size_t begin = text_.size() - jinja::StripLeft(text_.substr(next_)).size();
    return TakeAt(begin, bytes, special, place);
  }

  // Whether nothing but white space behind a special token is left.
  bool Complete() const {
    return next_ == text_.size() ||
           (after_special_ && jinja::StripLeft(text_.substr(next_)).empty());
  }

 private:
  // False: neither the bytes stand there nor, where the tokenizer puts a space before each piece of
  // a text, those behind that space.
  bool TakeAt(size_t begin, absl::string_view bytes, bool special, TextSpan* place) {
    const absl::string_view rest = text_.substr(begin);
    if (!absl::StartsWith(rest, bytes) &&
        (!absl::ConsumePrefix(&bytes, " ") || !absl::StartsWith(rest, bytes))) {
      return false;
    }
    *place = {begin, begin + bytes.size()};
    next_ = place->end;
    // A token that is that space alone leaves what the special token swallowed before it.
    after_special_ = special || (after_special_ && bytes.empty());
    return true;
  }

  const absl::string_view text_;
  const Tokenizer& tokenizer_;
  size_t next_ = 0;
  bool after_special_ = false;
  std::string bytes_;
};

bool CountAligned(absl::string_view text, absl::Span<const TextSpan> spans,
                  const Tokenizer& tokenizer, absl::Span<const int32_t> ids,
                  std::vector<uint8_t>* counted) {
  Alignment alignment(text, tokenizer);
  for (const int32_t id : ids) {
    TextSpan place;
    if (!alignment.Place(id, &place)) return false;
    // A span that ends before this token has no say about later ones.
    while (!spans.empty() && spans.front().end < place.begin) spans.remove_prefix(1);
    counted->push_back(Counts(place.begin, place.end, spans.subspan(0, 2)) ? 1 : 0);
  }
  return alignment.Complete();
}

}  // namespace

void AppendCounted(absl::string_view text, absl::Span<const TextSpan> spans,
                   const Tokenizer& tokenizer, Encoder* encoder, EncodedDocument* document) {
  const size_t ids_before = document->ids.size();
  const size_t counted_before = document->counted.size();
  encoder->Encode(text, &document->ids);
  const auto ids = absl::MakeConstSpan(document->ids).subspan(ids_before);
  if (CountAligned(text, spans, tokenizer, ids, &document->counted)) return;
  document->ids.resize(ids_before);
  document->counted.resize(counted_before);
  size_t done = 0;
  const auto append = [&](size_t end, uint8_t counts) {
    if (end > done) encoder->Encode(text.substr(done, end - done), &document->ids);
    document->counted.resize(counted_before + document->ids.size() - ids_before, counts);
    done = end;
  };
  for (const TextSpan& span : spans) {
    append(span.begin, 0);
    append(span.end, 1);
  }
  append(text.size(), 0);
}

int64_t CountTextBytes(const Tokenizer& tokenizer, absl::Span<const int32_t> ids) {
  int64_t count = 0;
  std::string bytes;
  for (const int32_t id : ids) {
    bytes.clear();
    tokenizer.AppendTokenBytes(id, &bytes);
    count += static_cast<int64_t>(bytes.size());
  }
  return count;
}

}  // namespace convene::worker
