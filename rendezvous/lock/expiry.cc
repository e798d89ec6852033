#include "rendezvous/lock/expiry.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace convene::rendezvous {

ExpiryNews NewsOfExpiry(const std::string& path, absl::Time end, absl::Time now) {
  const absl::Duration left = end - now;
  if (left > kExpiryNotice) return {"", std::min(left - kExpiryNotice, kBetweenNotices)};
  const std::string date = absl::FormatTime("%Y-%m-%d %H:%M UTC", end, absl::UTCTimeZone());
  const std::string what = absl::StrCat("the certificate in ", path, ", or its CA's, ");
  if (left <= absl::ZeroDuration()) {
    return {absl::StrCat(what, "ended on ", date,
                         ": open connections go on, and new ones are refused until it is renewed"),
            kBetweenNotices};
  }
  const int64_t days = left / absl::Hours(24);
  return {absl::StrCat(what, "ends on ", date, ", in ",
                       days == 0   ? "less than a day"
                       : days == 1 ? "a day"
                                   : absl::StrCat(days, " days"),
                       ": renew it before, for new connections are refused from then on"),
          kBetweenNotices};
}

}  // namespace convene::rendezvous
