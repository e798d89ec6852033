#include "launcher/rendezvous_conf.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/flag_reader.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

constexpr absl::Duration kLeaseMin = absl::Seconds(1);
constexpr absl::Duration kLeaseMax = absl::Hours(1);
// torchrun's defaults for the half of the pair that is not given.
constexpr double kKeepAliveIntervalSeconds = 5;
constexpr double kKeepAliveAttempts = 3;
constexpr double kTimeoutMin = 0.001;

// Keys that belong to the stores of torchrun's backends.
bool IsWithoutEffect(const std::string& key) {
  static const auto* const keys = new std::vector<std::string>{
      "close_timeout", "heartbeat_timeout", "store_type", "protocol",
      "ssl_cert",      "ssl_cert_key",      "ca_cert",    "etcd_prefix"};
  return std::find(keys->begin(), keys->end(), key) != keys->end();
}

// Sets the flag of `keys` that each item names. With `is_strict` an unknown key is a slip.
absl::Status Read(const std::string& text, bool is_strict, FlagReader* keys,
                  std::vector<std::string>* reasons) {
  std::vector<std::string> names;
  for (const FlagReader::Flag& key : keys->flags()) names.push_back(key.name);
  std::vector<std::string> unused;
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    std::pair<std::string, std::string> pair = absl::StrSplit(item, absl::MaxSplits('=', 1));
    absl::StripAsciiWhitespace(&pair.first);
    absl::StripAsciiWhitespace(&pair.second);
    const bool known = std::find(names.begin(), names.end(), pair.first) != names.end();
    if (!known && !IsWithoutEffect(pair.first) && is_strict) {
      const std::string nearest = ClosestMatch(pair.first, names);
      return absl::InvalidArgumentError(
          absl::StrCat("unknown key \"", pair.first, "\"; ",
                       nearest.empty() ? "known are " + absl::StrJoin(names, ", ")
                                       : absl::StrCat("did you mean ", nearest, "?")));
    }
    if (pair.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(pair.first, " needs =VALUE"));
    }
    if (known) {
      CONVENE_RETURN_IF_ERROR(keys->Set(pair.first, pair.second));
    } else {
      unused.push_back(absl::StrCat(pair.first, "=", pair.second));
    }
  }
  if (!unused.empty()) {
    reasons->push_back(
        absl::StrCat("--rdzv-conf ", absl::StrJoin(unused, ","), " has no effect here"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<absl::Duration>> Lease(std::optional<double> interval,
                                                    std::optional<double> attempts) {
  if (!interval.has_value() && !attempts.has_value()) return std::optional<absl::Duration>();
  const absl::Duration lease = absl::Seconds(interval.value_or(kKeepAliveIntervalSeconds) *
                                             attempts.value_or(kKeepAliveAttempts));
  if (lease >= kLeaseMin && lease <= kLeaseMax) return std::optional<absl::Duration>(lease);
  return absl::InvalidArgumentError(absl::StrCat(
      "--rdzv-conf: keep_alive_interval x keep_alive_max_attempt is ", absl::FormatDuration(lease),
      "; a silent node is lost after that time, so choose from ", absl::FormatDuration(kLeaseMin),
      " to ", absl::FormatDuration(kLeaseMax)));
}

}  // namespace

absl::StatusOr<RendezvousConf> ParseRendezvousConf(const std::string& text, ConfReader reader,
                                                   std::vector<std::string>* reasons) {
  RendezvousConf conf;
  std::optional<absl::Duration> join_timeout;
  std::optional<double> interval;
  std::optional<double> attempts;
  FlagReader keys;
  if (reader != ConfReader::kStatic) {
    keys.Option("join_timeout", &join_timeout, "", {.least = kTimeoutMin});
    keys.Option("last_call_timeout", &conf.last_call, "");
    keys.Option("keep_alive_interval", &interval, "", {.least = 0});
    // With one attempt a single late heartbeat would be a death.
    keys.Option("keep_alive_max_attempt", &attempts, "", {.least = 2});
    keys.Option("read_timeout", &conf.connect_timeout, "", {.least = kTimeoutMin});
    keys.Option("is_host", &conf.is_host, "");
  }
  if (reader != ConfReader::kC10d) {
    keys.Option("timeout", &conf.join_timeout, "", {.least = kTimeoutMin});
  }
  if (reader == ConfReader::kConvene) keys.Option("rank", &conf.rank, "", {.least = 0});
  CONVENE_RETURN_IF_ERROR(
      Annotate(Read(text, reader == ConfReader::kConvene, &keys, reasons), "--rdzv-conf"));
  if (join_timeout.has_value()) conf.join_timeout = join_timeout;
  CONVENE_ASSIGN_OR_RETURN(conf.lease, Lease(interval, attempts));
  return conf;
}

}  // namespace convene::launcher
