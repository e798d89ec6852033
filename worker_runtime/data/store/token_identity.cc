#include "worker_runtime/data/store/token_identity.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/tokenizer/fingerprint.h"

namespace convene::worker {
namespace {

struct Fixed {
  uint64_t fingerprint;
  int32_t end_of_document;  // -1: none
  uint32_t kind_bytes;
  uint32_t path_bytes;
  uint32_t token_bytes_count;
};
static_assert(sizeof(Fixed) == 24);

// No tokenizer has as many tokens; a damaged file must not ask for memory.
constexpr uint32_t kWholeSizeMax = 1 << 24;

// Of a compact vocabulary; its ids follow.
struct FixedOfCompact {
  uint64_t whole_fingerprint;
  uint32_t whole_size;
  uint32_t id_count;
};
static_assert(sizeof(FixedOfCompact) == 16);

std::string EncodeCompact(const CompactVocabulary& compact) {
  const FixedOfCompact fixed = {.whole_fingerprint = compact.whole_fingerprint,
                                .whole_size = static_cast<uint32_t>(compact.whole_size),
                                .id_count = static_cast<uint32_t>(compact.original_ids.size())};
  std::string bytes(reinterpret_cast<const char*>(&fixed), sizeof(fixed));
  bytes.append(reinterpret_cast<const char*>(compact.original_ids.data()),
               compact.original_ids.size() * sizeof(int32_t));
  return bytes;
}

absl::StatusOr<CompactVocabulary> DecodeCompact(absl::string_view bytes) {
  FixedOfCompact fixed = {};
  if (bytes.size() >= sizeof(fixed)) std::memcpy(&fixed, bytes.data(), sizeof(fixed));
  if (bytes.size() != sizeof(fixed) + uint64_t{fixed.id_count} * sizeof(int32_t) ||
      fixed.id_count == 0 || fixed.whole_size > kWholeSizeMax) {
    return absl::DataLossError(
        "the compact vocabulary has another length than it says, or too many ids");
  }
  CompactVocabulary compact = {.original_ids = std::vector<int32_t>(fixed.id_count),
                               .whole_size = static_cast<int>(fixed.whole_size),
                               .whole_fingerprint = fixed.whole_fingerprint};
  std::vector<int32_t>& ids = compact.original_ids;
  std::memcpy(ids.data(), bytes.data() + sizeof(fixed), ids.size() * sizeof(int32_t));
  const bool ascends =
      std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
  if (ascends && ids.front() >= 0 && ids.back() < compact.whole_size) return compact;
  return absl::DataLossError(
      absl::StrCat("the compact vocabulary is no ascending part of ", fixed.whole_size, " ids"));
}

}  // namespace

std::string EncodeIdentity(const TokenizerIdentity& tokenizer,
                           absl::Span<const uint16_t> token_bytes) {
  const std::string kind = tokenizer.kind.substr(0, kIdentityTextBytesMax);
  const std::string path = tokenizer.path.substr(0, kIdentityTextBytesMax);
  Fixed fixed = {};
  fixed.fingerprint = tokenizer.fingerprint;
  fixed.end_of_document = tokenizer.end_of_document.value_or(-1);
  fixed.kind_bytes = static_cast<uint32_t>(kind.size());
  fixed.path_bytes = static_cast<uint32_t>(path.size());
  fixed.token_bytes_count = static_cast<uint32_t>(token_bytes.size());
  std::string bytes(reinterpret_cast<const char*>(&fixed), sizeof(fixed));
  bytes.append(reinterpret_cast<const char*>(token_bytes.data()),
               token_bytes.size() * sizeof(uint16_t));
  absl::StrAppend(&bytes, kind, path);
  if (tokenizer.compact.has_value()) bytes += EncodeCompact(*tokenizer.compact);
  return bytes;
}

absl::StatusOr<DecodedIdentity> DecodeIdentity(absl::string_view bytes) {
  Fixed fixed;
  if (bytes.size() < sizeof(fixed)) return absl::DataLossError("the tokenizer's part is cut short");
  std::memcpy(&fixed, bytes.data(), sizeof(fixed));
  bytes.remove_prefix(sizeof(fixed));
  const uint64_t table_bytes = uint64_t{fixed.token_bytes_count} * sizeof(uint16_t);
  const uint64_t text_bytes = uint64_t{fixed.kind_bytes} + fixed.path_bytes;
  if (table_bytes + text_bytes > bytes.size()) {
    return absl::DataLossError("the tokenizer's part has another length than it says");
  }
  DecodedIdentity decoded;
  decoded.token_bytes.resize(fixed.token_bytes_count);
  if (table_bytes > 0) std::memcpy(decoded.token_bytes.data(), bytes.data(), table_bytes);
  bytes.remove_prefix(table_bytes);
  decoded.tokenizer.kind = std::string(bytes.substr(0, fixed.kind_bytes));
  decoded.tokenizer.path = std::string(bytes.substr(fixed.kind_bytes, fixed.path_bytes));
  decoded.tokenizer.fingerprint = fixed.fingerprint;
  if (fixed.end_of_document >= 0) decoded.tokenizer.end_of_document = fixed.end_of_document;
  if (bytes.size() > text_bytes) {
    CONVENE_ASSIGN_OR_RETURN(CompactVocabulary compact, DecodeCompact(bytes.substr(text_bytes)));
    if (fixed.fingerprint != CompactFingerprint(compact.whole_fingerprint, compact.original_ids)) {
      return absl::DataLossError("the fingerprint is not that of the compact vocabulary");
    }
    decoded.tokenizer.compact = std::move(compact);
  }
  return decoded;
}

}  // namespace convene::worker
