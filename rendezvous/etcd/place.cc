#include "rendezvous/etcd/place.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/host_port.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous::etcd {
namespace {

constexpr absl::string_view kScheme = "etcd://";
constexpr int kClientPort = 2379;
constexpr size_t kMostMembers = 16;
constexpr size_t kLongestPrefix = 200;

absl::Status Wrong(absl::string_view url, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", url, "\" is no place for a journal: ", what,
                   ". Write etcd://HOST[:PORT],HOST[:PORT],...[/PREFIX], such as etcd://a,b,c or "
                   "etcd://10.0.0.1:2379/team1"));
}

}  // namespace

std::string Place::url() const {
  return absl::StrCat(kScheme, absl::StrJoin(members, ","), "/", prefix);
}

absl::StatusOr<Place> ParsePlace(absl::string_view url) {
  if (!absl::StartsWith(url, kScheme)) return Wrong(url, "it does not begin with etcd://");
  const absl::string_view rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  Place place;
  for (const absl::string_view text : absl::StrSplit(rest.substr(0, slash), ',')) {
    const absl::StatusOr<HostPort> member = ParseHostPort(text, kClientPort);
    if (!member.ok()) return Wrong(url, member.status().message());
    const std::string address = FormatHostPort(member->host, member->port);
    if (absl::c_linear_search(place.members, address)) {
      return Wrong(url, absl::StrCat("it names ", address, " twice"));
    }
    place.members.push_back(address);
  }
  if (place.members.size() > kMostMembers) {
    return Wrong(url, absl::StrCat("it names more than ", kMostMembers, " members of etcd"));
  }
  absl::string_view prefix = rest.substr(slash);
  while (absl::StartsWith(prefix, "/")) prefix.remove_prefix(1);
  while (absl::EndsWith(prefix, "/")) prefix.remove_suffix(1);
  if (prefix.size() > kLongestPrefix) {
    return Wrong(url, absl::StrCat("its prefix is longer than ", kLongestPrefix, " bytes"));
  }
  if (!std::all_of(prefix.begin(), prefix.end(), absl::ascii_isgraph)) {
    return Wrong(url, "its prefix has a character that is not visible ASCII");
  }
  if (!prefix.empty()) place.prefix = std::string(prefix);
  return place;
}

std::string EndOfPrefix(std::string prefix) {
  // No key of ours ends with the byte 255.
  ++prefix.back();
  return prefix;
}

std::string CountText(int64_t lease, int64_t number) {
  return absl::StrCat(absl::Hex(lease, absl::kZeroPad16), "/", absl::Hex(number, absl::kZeroPad16));
}

}  // namespace convene::rendezvous::etcd
