#include "worker_runtime/data/chat/marked_sample.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/base/check.h"
#include "tools/base/text.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

void AppendVisible(absl::string_view bytes, std::string* text) {
  const std::string utf8 = Utf8(bytes);
  for (size_t i = 0; i < utf8.size(); i += CharacterLength(utf8[i])) {
    const char32_t character = CharacterAt(utf8, i).code;
    const bool control = character < 0x20 || (character >= 0x7F && character < 0xA0);
    if (control && character != '\n' && character != '\t') {
      absl::StrAppendFormat(text, "\\x%02x", static_cast<uint32_t>(character));
    } else {
      text->append(utf8, i, CharacterLength(utf8[i]));
    }
  }
}

}  // namespace

std::string MarkCounted(const Tokenizer& tokenizer, absl::Span<const int32_t> ids,
                        absl::Span<const uint8_t> counted, MarkStyle style, size_t longest) {
  CONVENE_CHECK(counted.empty() || counted.size() == ids.size());
  const bool terminal = style == MarkStyle::kTerminal;
  std::string text;
  for (size_t begin = 0; begin < ids.size();) {
    const bool counts = counted.empty() || counted[begin] != 0;
    // The bytes of neighbours go together: a character may be made of several tokens.
    std::string bytes;
    size_t end = begin;
    for (; end < ids.size() && bytes.size() < longest; ++end) {
      if ((counted.empty() || counted[end] != 0) != counts) break;
      const std::string special = tokenizer.SpecialTextOf(ids[end]);
      bytes += special;
      if (special.empty()) tokenizer.AppendTokenBytes(ids[end], &bytes);
    }
    if (counts) text += terminal ? "\x1b[4;32m" : "{+";
    AppendVisible(bytes, &text);
    if (counts) text += terminal ? "\x1b[0m" : "+}";
    begin = end;
    if (text.size() >= longest && begin < ids.size()) return text + "...";
  }
  return text;
}

}  // namespace convene::worker
