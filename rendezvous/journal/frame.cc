#include "rendezvous/journal/frame.h"

#include <xxhash.h>

#include <bit>
#include <cstring>

#include "tools/base/check.h"

namespace convene::rendezvous {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little endian");

// The length is the checksum's seed, so that a frame of zeros is not whole.
uint64_t Checksum(uint64_t length, absl::string_view entry) {
  return XXH3_64bits_withSeed(entry.data(), entry.size(), length + 1);
}

}  // namespace

std::string FrameHeader(absl::string_view entry) {
  CONVENE_CHECK(entry.size() <= kMostEntryBytes);
  const auto length = static_cast<uint32_t>(entry.size());
  const uint64_t checksum = Checksum(length, entry);
  std::string header(kFrameHeaderBytes, '\0');
  std::memcpy(&header[0], &length, sizeof(length));
  std::memcpy(&header[sizeof(length)], &checksum, sizeof(checksum));
  return header;
}

std::optional<absl::string_view> FirstEntry(absl::string_view text) {
  if (text.size() < kFrameHeaderBytes) return std::nullopt;
  uint32_t length = 0;
  uint64_t checksum = 0;
  std::memcpy(&length, text.data(), sizeof(length));
  std::memcpy(&checksum, text.data() + sizeof(length), sizeof(checksum));
  if (length > kMostEntryBytes || length > text.size() - kFrameHeaderBytes) return std::nullopt;
  const absl::string_view entry = text.substr(kFrameHeaderBytes, length);
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
