// PURE. The words of a process about a certificate that ends.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace convene::rendezvous {

// A person has so long to renew it.
inline constexpr absl::Duration kExpiryNotice = absl::Hours(14 * 24);
inline constexpr absl::Duration kBetweenNotices = absl::Hours(24);

struct ExpiryNews {
  std::string warning;       // for the log; "": there is nothing to say
  absl::Duration next_look;  // the time until this is asked again: a day, or less
};

// `path`: the certificate's file; it is good until `end`.
ExpiryNews NewsOfExpiry(const std::string& path, absl::Time end, absl::Time now);

}  // namespace convene::rendezvous
