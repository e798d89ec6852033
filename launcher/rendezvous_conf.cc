#include "launcher/rendezvous_conf.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

constexpr absl::Duration kLeaseMin = absl::Seconds(1);
constexpr absl::Duration kLeaseMax = absl::Hours(1);
// torchrun's defaults for the half of the pair that is not given.
constexpr double kKeepAliveIntervalSeconds = 5;
constexpr double kKeepAliveAttempts = 3;

using Settings = std::map<std::string, std::string>;

std::vector<std::string> KeysOf(ConfReader reader) {
  if (reader == ConfReader::kStatic) return {"timeout"};
  std::vector<std::string> keys = {"join_timeout",        "last_call_timeout",
                                   "keep_alive_interval", "keep_alive_max_attempt",
                                   "read_timeout",        "is_host"};
  if (reader == ConfReader::kConvene) keys.insert(keys.end(), {"timeout", "rank"});
  return keys;
}

// Whether the key belongs to the own stores of torchrun's backends.
bool IsWithoutEffect(const std::string& key) {
  static const auto* const keys = new std::vector<std::string>{
      "close_timeout", "heartbeat_timeout", "store_type", "protocol",
      "ssl_cert",      "ssl_cert_key",      "ca_cert",    "etcd_prefix"};
  return std::find(keys->begin(), keys->end(), key) != keys->end();
}

absl::StatusOr<Settings> Split(const std::string& text, ConfReader reader,
                               std::vector<std::string>* reasons) {
  const std::vector<std::string> keys = KeysOf(reader);
  Settings settings;
  std::vector<std::string> unused;
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    std::pair<std::string, std::string> pair = absl::StrSplit(item, absl::MaxSplits('=', 1));
    absl::StripAsciiWhitespace(&pair.first);
    absl::StripAsciiWhitespace(&pair.second);
    const bool known = std::find(keys.begin(), keys.end(), pair.first) != keys.end();
    if (!known && !IsWithoutEffect(pair.first) && reader == ConfReader::kConvene) {
      const std::string nearest = ClosestMatch(pair.first, keys);
      return absl::InvalidArgumentError(
          absl::StrCat("--rdzv-conf: unknown key \"", pair.first, "\"; ",
                       nearest.empty() ? "known are " + JoinCapped(keys, keys.size())
                                       : absl::StrCat("did you mean ", nearest, "?")));
    }
    if (pair.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--rdzv-conf: ", pair.first, " needs =VALUE"));
    }
    if (known) {
      settings[pair.first] = pair.second;
    } else {
      unused.push_back(absl::StrCat(pair.first, "=", pair.second));
    }
  }
  if (!unused.empty()) {
    reasons->push_back(
        absl::StrCat("--rdzv-conf ", absl::StrJoin(unused, ","), " has no effect here"));
  }
  return settings;
}

// nullopt: not given.
absl::StatusOr<std::optional<double>> Number(const Settings& settings, const std::string& key,
                                             double minimum) {
  const auto setting = settings.find(key);
  if (setting == settings.end()) return std::optional<double>();
  double number = 0;
  if (!absl::SimpleAtod(setting->second, &number) || !(number >= minimum) || number > 1e9) {
    return absl::InvalidArgumentError(absl::StrCat("--rdzv-conf: ", key, "=", setting->second,
                                                   " must be a number of at least ", minimum));
  }
  return std::optional<double>(number);
}

absl::StatusOr<std::optional<absl::Duration>> Time(const Settings& settings, const std::string& key,
                                                   double minimum_seconds) {
  CONVENE_ASSIGN_OR_RETURN(const auto seconds, Number(settings, key, minimum_seconds));
  if (!seconds.has_value()) return std::optional<absl::Duration>();
  return std::optional<absl::Duration>(absl::Seconds(*seconds));
}

absl::StatusOr<std::optional<absl::Duration>> Lease(const Settings& settings) {
  CONVENE_ASSIGN_OR_RETURN(const auto interval, Number(settings, "keep_alive_interval", 0));
  // With one attempt a single late heartbeat would count as a death.
  CONVENE_ASSIGN_OR_RETURN(const auto attempts, Number(settings, "keep_alive_max_attempt", 2));
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
  CONVENE_ASSIGN_OR_RETURN(const Settings settings, Split(text, reader, reasons));
  RendezvousConf conf;
  CONVENE_ASSIGN_OR_RETURN(conf.join_timeout, Time(settings, "timeout", 0.001));
  CONVENE_ASSIGN_OR_RETURN(const auto join_timeout, Time(settings, "join_timeout", 0.001));
  if (join_timeout.has_value()) conf.join_timeout = join_timeout;
  CONVENE_ASSIGN_OR_RETURN(conf.last_call, Time(settings, "last_call_timeout", 0));
  CONVENE_ASSIGN_OR_RETURN(conf.lease, Lease(settings));
  CONVENE_ASSIGN_OR_RETURN(conf.connect_timeout, Time(settings, "read_timeout", 0.001));
  if (const auto is_host = settings.find("is_host"); is_host != settings.end()) {
    bool value = false;
    if (!absl::SimpleAtob(is_host->second, &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rdzv-conf: is_host=", is_host->second, " must be true or false"));
    }
    conf.is_host = value;
  }
  if (const auto rank = settings.find("rank"); rank != settings.end()) {
    int value = 0;
    if (!absl::SimpleAtoi(rank->second, &value) || value < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rdzv-conf: rank=", rank->second, " must be a number from 0"));
    }
    conf.rank = value;
  }
  return conf;
}

}  // namespace convene::launcher
