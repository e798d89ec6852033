#include "rendezvous/net/complaints.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"

namespace convene::rendezvous {
namespace {

constexpr absl::Duration kLogInterval = absl::Seconds(1);

}  // namespace

void Complaints::Warn(MonotonicTime now, absl::string_view text) {
  if (now < speaks_again_at_) {
    ++unsaid_;
    return;
  }
  speaks_again_at_ = now + kLogInterval;
  const int64_t unsaid = std::exchange(unsaid_, 0);
  spdlog::warn("{}{}", std::string(text),
               unsaid == 0 ? "" : absl::StrCat(" (", unsaid, " more like it)"));
}

}  // namespace convene::rendezvous
