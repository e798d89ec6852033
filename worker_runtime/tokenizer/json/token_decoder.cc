#include "worker_runtime/tokenizer/json/token_decoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/json/byte_level.h"
#include "worker_runtime/tokenizer/json/normalizer_steps.h"
#include "worker_runtime/tokenizer/json/text_normalizer.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

using Step = std::unique_ptr<DecoderStep>;

class ByteLevelStep : public DecoderStep {
 public:
  void Apply(std::vector<std::string>* tokens) const override {
    std::string bytes;
    for (std::string& token : *tokens) {
      ApplyToOne(&token);
      bytes += token;
    }
    std::string repaired;
    tokens->assign(1, std::string(ValidUtf8(bytes, &repaired)));
  }
  // A token with a character that stands for no byte goes out as it is.
  void ApplyToOne(std::string* token) const override {
    std::optional<std::string> bytes = Unspelled(*token);
    if (bytes.has_value()) *token = *std::move(bytes);
  }
};

class ReplaceStep : public DecoderStep {
 public:
  explicit ReplaceStep(std::unique_ptr<NormalizerStep> step) : step_(std::move(step)) {}

  void ApplyToOne(std::string* token) const override {
    std::string result;
    step_->Apply(*token, /*at_start=*/0, &result);
    *token = std::move(result);
  }
  size_t growth() const override { return step_->growth(); }

 private:
  const std::unique_ptr<NormalizerStep> step_;
};

// The byte of a token such as "<0x0A>".
std::optional<char> ByteOf(absl::string_view token) {
  if (token.size() != 6 || token.substr(0, 3) != "<0x" || token[5] != '>') return std::nullopt;
  // Rust reads "+A" as a number, too.
  const absl::string_view digits = token.substr(token[3] == '+' ? 4 : 3, token[3] == '+' ? 1 : 2);
  uint32_t byte = 0;
  const bool are_digits = std::all_of(digits.begin(), digits.end(), [](char c) {
    return ('0' <= c && c <= '9') || ('a' <= (c | 0x20) && (c | 0x20) <= 'f');
  });
  if (!are_digits || !absl::SimpleHexAtoi(digits, &byte)) return std::nullopt;
  return static_cast<char>(byte);
}

class ByteFallbackStep : public DecoderStep {
 public:
  void Apply(std::vector<std::string>* tokens) const override {
    std::vector<std::string> result;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (IsUtf8(bytes)) {
        result.push_back(bytes);
      } else {
        result.insert(result.end(), bytes.size(), std::string(kReplacementCharacter));
      }
      bytes.clear();
    };
    for (std::string& token : *tokens) {
      const std::optional<char> byte = ByteOf(token);
      if (byte.has_value()) {
        bytes.push_back(*byte);
      } else {
        flush();
        result.push_back(std::move(token));
      }
    }
    flush();
    *tokens = std::move(result);
  }
  void ApplyToOne(std::string* token) const override {
    const std::optional<char> byte = ByteOf(*token);
    if (byte.has_value()) token->assign(1, *byte);
  }
};

class FuseStep : public DecoderStep {
 public:
  void Apply(std::vector<std::string>* tokens) const override {
    tokens->assign(1, absl::StrJoin(*tokens, ""));
  }
  void ApplyToOne(std::string*) const override {}
};

class StripStep : public DecoderStep {
 public:
  StripStep(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

  void Apply(std::vector<std::string>* tokens) const override {
    for (std::string& token : *tokens) {
      absl::string_view text = token;
      for (int64_t i = 0; i < start_ && absl::ConsumePrefix(&text, content_); ++i) {
      }
      for (int64_t i = 0; i < stop_ && absl::ConsumeSuffix(&text, content_); ++i) {
      }
      token = std::string(text);
    }
  }
  // It is there for the ends of a text, as a rule; within, a token keeps what it has.
  void ApplyToOne(std::string*) const override {}

 private:
  const std::string content_;  // one character
  const int64_t start_, stop_;
};

class MetaspaceStep : public DecoderStep {
 public:
  MetaspaceStep(std::string replacement, bool strips_first)
      : replacement_(std::move(replacement)), strips_first_(strips_first) {}

  void Apply(std::vector<std::string>* tokens) const override {
    for (size_t i = 0; i < tokens->size(); ++i) {
      Replace(i == 0 && strips_first_ ? "" : " ", &(*tokens)[i]);
    }
  }
  void ApplyToOne(std::string* token) const override { Replace(" ", token); }

 private:
  void Replace(absl::string_view space, std::string* token) const {
    *token = absl::StrReplaceAll(*token, {{replacement_, space}});
  }

  const std::string replacement_;
  const bool strips_first_;
};

absl::StatusOr<Step> ReadStrip(const JsonNode& node) {
  CONVENE_ASSIGN_OR_RETURN(std::string content, node.GetCharacter("content"));
  CONVENE_ASSIGN_OR_RETURN(const int64_t start, node.GetNumber("start", INT32_MAX));
  CONVENE_ASSIGN_OR_RETURN(const int64_t stop, node.GetNumber("stop", INT32_MAX));
  return std::make_unique<StripStep>(std::move(content), start, stop);
}

absl::StatusOr<Step> ReadMetaspace(const JsonNode& node) {
  CONVENE_ASSIGN_OR_RETURN(std::string replacement, node.GetCharacter("replacement"));
  CONVENE_ASSIGN_OR_RETURN(bool strips_first, node.GetBool("add_prefix_space", true));
  if (const auto scheme = node.Find("prepend_scheme"); scheme.has_value()) {
    CONVENE_ASSIGN_OR_RETURN(const std::string name, scheme->String());
    strips_first = name != "never";
  }
  return std::make_unique<MetaspaceStep>(std::move(replacement), strips_first);
}

absl::StatusOr<Step> ReadStep(const std::string& type, const JsonNode& node) {
  if (type == "ByteLevel") return std::make_unique<ByteLevelStep>();
  if (type == "ByteFallback") return std::make_unique<ByteFallbackStep>();
  if (type == "Fuse") return std::make_unique<FuseStep>();
  if (type == "Strip") return ReadStrip(node);
  if (type == "Metaspace") return ReadMetaspace(node);
  if (type == "Replace") {
    CONVENE_ASSIGN_OR_RETURN(std::unique_ptr<NormalizerStep> step, ReadReplace(node));
    return std::make_unique<ReplaceStep>(std::move(step));
  }
  return LacksFeature(node.place(), absl::StrCat("\"", type, "\""));
}

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::Read(const std::optional<JsonNode>& node) {
  TokenDecoder decoder;
  if (!node.has_value()) return decoder;
  decoder.has_steps_ = true;
  CONVENE_RETURN_IF_ERROR(ReadSteps(*node, "decoders", ReadStep, &decoder.steps_));
  return decoder;
}

std::string TokenDecoder::Decode(std::vector<std::string> tokens) const {
  if (!has_steps_) return absl::StrJoin(tokens, " ");
  for (const Step& step : steps_) step->Apply(&tokens);
  return absl::StrJoin(tokens, "");
}

std::string TokenDecoder::Bytes(absl::string_view token) const {
  std::string bytes(token);
  for (const Step& step : steps_) {
    // After the step that makes bytes, no step finds text in a part of a character.
    if (!IsUtf8(bytes)) break;
    step->ApplyToOne(&bytes);
  }
  return bytes;
}

}  // namespace convene::worker
