#include "worker_runtime/data/chat/chat_encoder.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/data/chat/answer_spans.h"
#include "worker_runtime/data/chat/counted_text.h"
#include "worker_runtime/data/chat/special_texts.h"

namespace convene::worker {

namespace {

std::string SourcesOf(const ChatFormat& format) {
  const auto* const folder = std::get_if<FolderTemplate>(&format);
  return folder == nullptr ? "" : absl::StrCat(folder->source, "\n", folder->tool_use_source);
}

}  // namespace

struct ChatEncoderFactory::Shared {
  Shared(ChatFormat format, const Tokenizer* tokenizer, const ChatOptions& options)
      : format(std::move(format)),
        tokenizer(*tokenizer),
        options(options),
        special_texts(*tokenizer, SourcesOf(this->format)) {
    if (options.date.has_value()) render_options.now = absl::CivilSecond(*options.date);
    render_options.max_steps = options.max_steps;
  }

  ChatFormat format;
  const Tokenizer& tokenizer;
  const ChatOptions options;
  const SpecialTexts special_texts;
  jinja::RenderOptions render_options;
  absl::flat_hash_map<std::string, int32_t> specials;  // of a format known by name
};

namespace {

using jinja::TextSpan;
using Shared = ChatEncoderFactory::Shared;

class ChatEncoder : public DocumentEncoder {
 public:
  explicit ChatEncoder(const Shared& shared)
      : shared_(shared),
        as_text_(shared.tokenizer.NewEncoder(SpecialText::kAsText)),
        as_tokens_(shared.tokenizer.NewEncoder(SpecialText::kAsTokens)) {}

  absl::Status Encode(absl::string_view record, EncodedDocument* document) override {
    document->Clear();
    CONVENE_ASSIGN_OR_RETURN(const ChatRecord read, ReadChatRecord(record, shared_.options.side));
    if (const auto* const pair = std::get_if<PromptAndCompletion>(&read)) {
      EncodePair(*pair, document);
    } else {
      const absl::Status encoded = EncodeConversation(std::get<Conversation>(read), document);
      // This one line is too much, which says nothing about the next.
      if (absl::IsResourceExhausted(encoded)) return absl::InvalidArgumentError(encoded.message());
      CONVENE_RETURN_IF_ERROR(encoded);
    }
    document->text_bytes = CountTextBytes(shared_.tokenizer, document->ids);
    if (shared_.options.train_on == TrainOn::kAll) {
      document->counted.clear();
      return absl::OkStatus();
    }
    if (std::find(document->counted.begin(), document->counted.end(), 1) ==
        document->counted.end()) {
      return absl::InvalidArgumentError("there is nothing to learn: no token counts in the loss");
    }
    return absl::OkStatus();
  }

 private:
  void Add(int32_t id, bool counts, EncodedDocument* document) {
    document->ids.push_back(id);
    document->counted.push_back(counts ? 1 : 0);
  }

  void EncodePair(const PromptAndCompletion& pair, EncodedDocument* document) {
    for (const int32_t id : shared_.tokenizer.prefix()) Add(id, false, document);
    const std::string text = pair.prompt + pair.completion;
    const std::vector<TextSpan> spans = {{pair.prompt.size(), text.size()}};
    AppendParts(text, spans, shared_.special_texts.CutsOf(text), as_text_.get(), document);
    if (const auto end = shared_.tokenizer.end_of_document()) Add(*end, true, document);
  }

  absl::Status EncodeConversation(const Conversation& conversation, EncodedDocument* document) {
    const std::vector<bool> learned = AnswersToLearn(conversation, shared_.options.train_on);
    const bool any = std::find(learned.begin(), learned.end(), true) != learned.end();
    if (!any && shared_.options.train_on != TrainOn::kAll) {
      return absl::InvalidArgumentError(
          "there is nothing to learn: the conversation has no message of the assistant");
    }
    if (const auto* const named = std::get_if<NamedTemplate>(&shared_.format)) {
      CONVENE_RETURN_IF_ERROR(EncodePieces(*named, conversation, learned, document));
    } else {
      CONVENE_RETURN_IF_ERROR(EncodeRendered(std::get<FolderTemplate>(shared_.format), conversation,
                                             learned, document));
    }
    const auto end = shared_.tokenizer.end_of_document();
    if (shared_.options.append_end_of_document && end.has_value() &&
        (document->ids.empty() || document->ids.back() != *end)) {
      Add(*end, false, document);
    }
    return absl::OkStatus();
  }

  absl::Status EncodePieces(NamedTemplate format, const Conversation& conversation,
                            const std::vector<bool>& learned, EncodedDocument* document) {
    CONVENE_ASSIGN_OR_RETURN(const std::vector<Piece> pieces,
                             PiecesOf(format, conversation, learned));
    for (const Piece& piece : pieces) {
      if (piece.is_special) {
        Add(shared_.specials.at(piece.text), piece.counted, document);
      } else {
        std::vector<TextSpan> spans;
        if (piece.counted) spans.push_back({0, piece.text.size()});
        AppendParts(piece.text, spans, shared_.special_texts.CutsOf(piece.text), as_text_.get(),
                    document);
      }
    }
    return absl::OkStatus();
  }

  absl::Status EncodeRendered(const FolderTemplate& folder, Conversation conversation,
                              const std::vector<bool>& learned, EncodedDocument* document) {
    CONVENE_ASSIGN_OR_RETURN(const bool broken, shared_.special_texts.Break(&conversation));
    const bool tools = conversation.variables.Find("tools") != nullptr;
    const jinja::ChatTemplate& chat_template =
        tools && folder.tool_use.has_value() ? *folder.tool_use : folder.chat_template;
    CONVENE_ASSIGN_OR_RETURN(
        jinja::Rendered rendered,
        shared_.options.train_on == TrainOn::kAll
            ? RenderWhole(chat_template, folder.variables, conversation, shared_.render_options)
            : RenderAnswers(chat_template, folder.variables, conversation, learned,
                            shared_.special_texts.texts(), shared_.render_options));
    for (const std::string& undefined : rendered.undefined) {
      document->warnings.push_back(absl::StrCat("the chat template prints nothing at ", undefined));
    }
    std::vector<size_t> cuts;
    if (broken) {
      CONVENE_ASSIGN_OR_RETURN(cuts, SpecialTexts::Mend(&rendered.text, &rendered.generated));
    }
    AppendParts(rendered.text, rendered.generated, std::move(cuts), as_tokens_.get(), document);
    return absl::OkStatus();
  }

  // The parts of `text` between the cuts, each tokenised apart; what is in `spans` counts.
  void AppendParts(absl::string_view text, const std::vector<TextSpan>& spans,
                   std::vector<size_t> cuts, Encoder* encoder, EncodedDocument* document) {
    cuts.push_back(text.size());
    size_t begin = 0;
    for (const size_t end : cuts) {
      std::vector<TextSpan> within;
      for (const TextSpan& span : spans) {
        const TextSpan part = {std::max(span.begin, begin), std::min(span.end, end)};
        if (part.begin < part.end) within.push_back({part.begin - begin, part.end - begin});
      }
      AppendCounted(text.substr(begin, end - begin), within, shared_.tokenizer, encoder, document);
      begin = end;
    }
  }

  const Shared& shared_;
  const std::unique_ptr<Encoder> as_text_;
  const std::unique_ptr<Encoder> as_tokens_;
};

}  // namespace

ChatEncoderFactory::ChatEncoderFactory(std::unique_ptr<const Shared> shared)
    : shared_(std::move(shared)) {}

ChatEncoderFactory::~ChatEncoderFactory() = default;

absl::StatusOr<std::unique_ptr<ChatEncoderFactory>> ChatEncoderFactory::Make(
    ChatFormat format, const Tokenizer* tokenizer, const ChatOptions& options) {
  auto shared = std::make_unique<Shared>(std::move(format), tokenizer, options);
  if (const auto* const named = std::get_if<NamedTemplate>(&shared->format)) {
    for (const std::string& text : SpecialsOf(*named)) {
      std::optional<int32_t> id = tokenizer->SpecialId(text);
      if (!id.has_value()) id = shared->special_texts.TurnTokenId(text);
      if (!id.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the tokenizer (", tokenizer->kind(), ") has no special token '", text,
                         "', which this chat template needs: choose the template that belongs to "
                         "the tokenizer"));
      }
      shared->specials[text] = *id;
    }
  }
  if (auto* const folder = std::get_if<FolderTemplate>(&shared->format)) {
    CONVENE_RETURN_IF_ERROR(SetNamedTokens(tokenizer->named_tokens(), &folder->variables));
  }
  return std::unique_ptr<ChatEncoderFactory>(new ChatEncoderFactory(std::move(shared)));
}

std::unique_ptr<DocumentEncoder> ChatEncoderFactory::New() const {
  return std::make_unique<ChatEncoder>(*shared_);
}

}  // namespace convene::worker
