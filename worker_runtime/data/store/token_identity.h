// PURE. The part of our token file that says how its ids were made, as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker_runtime/data/store/token_source.h"

namespace convene::worker {

// Longer texts are cut: they are for people.
constexpr size_t kIdentityTextBytesMax = 4096;

std::string EncodeIdentity(const TokenizerIdentity& tokenizer,
                           absl::Span<const uint16_t> token_bytes);

struct DecodedIdentity {
  TokenizerIdentity tokenizer;
  std::vector<uint16_t> token_bytes;
};
// DataLoss: not what EncodeIdentity writes, or a compact vocabulary that is none: ids that do not
// ascend, or are not below its whole_size, or whose CompactFingerprint is not the fingerprint.
absl::StatusOr<DecodedIdentity> DecodeIdentity(absl::string_view bytes);

}  // namespace convene::worker
