// libFuzzer on what instruction data is made of: chat templates and conversations. The input's
// first byte chooses the reader of the rest; 0xFF, which no UTF-8 has, parts template and JSON.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tools/base/check.h"
#include "worker_runtime/data/chat/chat_encoder.h"
#include "worker_runtime/data/chat/jinja/read_json.h"
#include "worker_runtime/data/chat/marked_sample.h"
#include "worker_runtime/data/chat/testing/fake_tokenizer.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

// Small, so that a template that takes long ends soon.
constexpr int64_t kSteps = 20000;
constexpr size_t kBytes = 100000;

std::pair<absl::string_view, absl::string_view> Parts(absl::string_view input) {
  return absl::StrSplit(input, absl::MaxSplits('\xFF', 1));
}

const FakeTokenizer& Tokens() {
  static const auto* const tokenizer = [] {
    FakeTokenizerOptions options;
    options.words = {" a", "the", "\n\n", "assistant", "user"};
    for (const std::string& name : NamedTemplateNames()) {
      for (std::string& text : SpecialsOf(*FindNamedTemplate(name))) {
        const auto same = [&](const std::string& known) { return known == text; };
        if (std::none_of(options.specials.begin(), options.specials.end(), same)) {
          options.specials.push_back(std::move(text));
        }
      }
    }
    options.end_of_document = "</s>";
    options.puts_space_before = true;
    return new FakeTokenizer(std::move(options));
  }();
  return *tokenizer;
}

// A template is refused, or its text is UTF-8, not too long, and holds the spans.
void ReadTemplate(absl::string_view input) {
  const auto [source, json] = Parts(input);
  const auto parsed = jinja::ChatTemplate::Parse(source);
  const auto variables = jinja::ReadJson(json);
  if (!parsed.ok() || !variables.ok() || !variables->is_dict()) return;
  jinja::RenderOptions options;
  options.max_steps = kSteps;
  options.max_bytes = kBytes;
  options.now = absl::CivilSecond(2026, 3, 7);
  const auto rendered = parsed->Render(variables->as_dict(), options);
  if (!rendered.ok()) return;
  CONVENE_CHECK(rendered->text.size() <= kBytes && IsUtf8(rendered->text));
  size_t done = 0;
  for (const jinja::TextSpan& span : rendered->generated) {
    CONVENE_CHECK(done <= span.begin && span.begin <= span.end);
    done = span.end;
  }
  CONVENE_CHECK(done <= rendered->text.size());
}

// A record is refused, or gives tokens of which some count.
void Encode(ChatFormat format, absl::string_view record, TrainOn train_on, Side side) {
  ChatOptions options;
  options.train_on = train_on;
  options.side = side;
  const auto factory = ChatEncoderFactory::Make(std::move(format), &Tokens(), options);
  CONVENE_CHECK(factory.ok());
  EncodedDocument document;
  if (!(*factory)->New()->Encode(record, &document).ok()) return;
  CONVENE_CHECK(document.counted.empty() == (train_on == TrainOn::kAll));
  CONVENE_CHECK(document.counted.empty() || document.counted.size() == document.ids.size());
  CONVENE_CHECK(document.text_bytes >= 0);
  const std::string sample =
      MarkCounted(Tokens(), document.ids, document.counted, MarkStyle::kPlain, 1000);
  CONVENE_CHECK(IsUtf8(sample));
}

void ReadNamed(absl::string_view input) {
  if (input.empty()) return;
  const std::vector<std::string> names = NamedTemplateNames();
  const auto choice = static_cast<uint8_t>(input[0]);
  Encode(*FindNamedTemplate(names[choice % names.size()]), input.substr(1),
         static_cast<TrainOn>(choice / names.size() % 3),
         static_cast<Side>(choice / names.size() / 3 % 3));
}

void ReadFolder(absl::string_view input) {
  if (input.empty()) return;
  const auto choice = static_cast<uint8_t>(input[0]);
  const auto [source, record] = Parts(input.substr(1));
  auto folder = MakeFolderTemplate(std::string(source), "");
  if (!folder.ok()) return;
  Encode(*std::move(folder), record, static_cast<TrainOn>(choice % 3),
         static_cast<Side>(choice / 3 % 3));
}

using Reader = void (*)(absl::string_view);
constexpr Reader kReaders[] = {ReadTemplate, ReadNamed, ReadFolder};

}  // namespace
}  // namespace convene::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  convene::worker::kReaders[data[0] % std::size(convene::worker::kReaders)](rest);
  return 0;
}
