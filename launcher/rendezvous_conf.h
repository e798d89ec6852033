// PURE. The keys of --rdzv-conf.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace convene::launcher {

// nullopt: not given.
struct RendezvousConf {
  std::optional<absl::Duration> join_timeout;     // also torchrun's `timeout` of static jobs
  std::optional<absl::Duration> last_call;        // last_call_timeout
  std::optional<absl::Duration> lease;            // keep_alive_interval x keep_alive_max_attempt
  std::optional<absl::Duration> connect_timeout;  // read_timeout
  std::optional<bool> is_host;
  std::optional<int> rank;
};

// The keys that count: all of RendezvousConf, or the keys that this backend of torchrun's reads.
enum class ConfReader { kConvene, kC10d, kStatic };

// "key=value,...". A key of torchrun's that cannot have an effect here is accepted with any value;
// so is, under the name torchrun, each key that the backend of torchrun's does not read. One line
// in `reasons` names all of these. For kConvene an unknown key is an error. InvalidArgument for
// values out of range and for two that contradict each other.
absl::StatusOr<RendezvousConf> ParseRendezvousConf(const std::string& text, ConfReader reader,
                                                   std::vector<std::string>* reasons);

}  // namespace convene::launcher
