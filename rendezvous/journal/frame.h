// PURE. Frames of the journal: a length, a checksum, bytes (file_journal.h has the layout).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace convene::rendezvous {

inline constexpr size_t kFrameHeaderBytes = 12;
inline constexpr uint32_t kMostEntryBytes = uint32_t{1} << 30;

// The bytes before `entry` in its frame. REQUIRES: entry.size() <= kMostEntryBytes.
std::string FrameHeader(absl::string_view entry);

// The entry of the whole frame that `text` begins with; none when it does not begin with one.
std::optional<absl::string_view> FirstEntry(absl::string_view text);

// Whether a whole frame begins anywhere in `text`.
bool HoldsWholeFrame(absl::string_view text);

}  // namespace convene::rendezvous
