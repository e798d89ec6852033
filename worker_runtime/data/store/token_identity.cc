#include "worker_runtime/data/store/token_identity.h"

#include <algorithm>
#include <cstring>

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
  return bytes + kind + path;
}

absl::StatusOr<DecodedIdentity> DecodeIdentity(absl::string_view bytes) {
  Fixed fixed;
  if (bytes.size() < sizeof(fixed)) return absl::DataLossError("the tokenizer's part is cut short");
  std::memcpy(&fixed, bytes.data(), sizeof(fixed));
  bytes.remove_prefix(sizeof(fixed));
  const uint64_t table_bytes = uint64_t{fixed.token_bytes_count} * sizeof(uint16_t);
  if (table_bytes + fixed.kind_bytes + fixed.path_bytes != bytes.size()) {
    return absl::DataLossError("the tokenizer's part has another length than it says");
  }
  DecodedIdentity decoded;
  decoded.token_bytes.resize(fixed.token_bytes_count);
  if (table_bytes > 0) std::memcpy(decoded.token_bytes.data(), bytes.data(), table_bytes);
  bytes.remove_prefix(table_bytes);
  decoded.tokenizer.kind = std::string(bytes.substr(0, fixed.kind_bytes));
  decoded.tokenizer.path = std::string(bytes.substr(fixed.kind_bytes));
  decoded.tokenizer.fingerprint = fixed.fingerprint;
  if (fixed.end_of_document >= 0) decoded.tokenizer.end_of_document = fixed.end_of_document;
  return decoded;
}

}  // namespace convene::worker
