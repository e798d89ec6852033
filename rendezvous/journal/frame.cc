#include "rendezvous/journal/frame.h"

#include <xxhash.h>

#include "tools/base/check.h"

namespace convene::rendezvous {
namespace {

constexpr size_t kLengthBytes = 4;

void PutLittleEndian(uint64_t value, size_t bytes, std::string* out) {
  for (size_t i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

uint64_t GetLittleEndian(absl::string_view text, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) {
    value |= uint64_t{static_cast<unsigned char>(text[i])} << (8 * i);
  }
  return value;
}

// The length is the checksum's seed, so that a frame of zeros is not whole.
uint64_t Checksum(uint64_t length, absl::string_view entry) {
  return XXH3_64bits_withSeed(entry.data(), entry.size(), length + 1);
}

}  // namespace

std::string FrameHeader(absl::string_view entry) {
  CONVENE_CHECK(entry.size() <= kMostEntryBytes);
  std::string header;
  PutLittleEndian(entry.size(), kLengthBytes, &header);
  PutLittleEndian(Checksum(entry.size(), entry), kFrameHeaderBytes - kLengthBytes, &header);
  return header;
}

std::optional<absl::string_view> FirstEntry(absl::string_view text) {
  if (text.size() < kFrameHeaderBytes) return std::nullopt;
  const uint64_t length = GetLittleEndian(text, kLengthBytes);
  if (length > kMostEntryBytes || length > text.size() - kFrameHeaderBytes) return std::nullopt;
  const absl::string_view entry = text.substr(kFrameHeaderBytes, length);
  const uint64_t checksum =
      GetLittleEndian(text.substr(kLengthBytes), kFrameHeaderBytes - kLengthBytes);
  if (checksum != Checksum(length, entry)) return std::nullopt;
  return entry;
}

bool HoldsWholeFrame(absl::string_view text) {
  for (; text.size() >= kFrameHeaderBytes; text.remove_prefix(1)) {
    if (FirstEntry(text).has_value()) return true;
  }
  return false;
}

}  // namespace convene::rendezvous
