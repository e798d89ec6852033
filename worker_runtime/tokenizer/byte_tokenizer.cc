#include "worker_runtime/tokenizer/byte_tokenizer.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/tokenizer/fingerprint.h"
#include "worker_runtime/tokenizer/unicode.h"

namespace convene::worker {
namespace {

constexpr int kBytes = 256;

class ByteEncoder : public Encoder {
 public:
  void Encode(absl::string_view text, std::vector<int32_t>* ids) override {
    ids->reserve(ids->size() + text.size());
    for (const char byte : text) ids->push_back(static_cast<unsigned char>(byte));
  }
};

class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() {
    kind_ = "byte";
    Fingerprint fingerprint;
    fingerprint.Add(kind_);
    fingerprint_ = fingerprint.value();
    vocabulary_size_ = kBytes;
    end_of_document_ = 0;
  }
  std::unique_ptr<Encoder> NewEncoder(SpecialText) const override {
    return std::make_unique<ByteEncoder>();
  }
  std::optional<int32_t> SpecialId(absl::string_view) const override { return std::nullopt; }
  std::string SpecialTextOf(int32_t) const override { return ""; }
  void AppendTokenBytes(int32_t id, std::string* bytes) const override {
    if (id >= 0 && id < kBytes) bytes->push_back(static_cast<char>(id));
  }
  std::string Decode(absl::Span<const int32_t> ids, bool /*show_specials*/) const override {
    std::string bytes, text;
    for (const int32_t id : ids) AppendTokenBytes(id, &bytes);
    AppendAsUtf8(bytes, Replacement::kMaximalSubpart, &text);
    return text;
  }
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace convene::worker
