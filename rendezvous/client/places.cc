#include "rendezvous/client/places.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

absl::StatusOr<std::vector<HostPort>> ParsePlaces(absl::string_view text,
                                                  std::optional<int> default_port, int least_port) {
  const std::vector<absl::string_view> members = absl::StrSplit(text, ',');
  const bool is_list = members.size() > 1;
  if (members.size() > kMostPlaces) {
    return absl::InvalidArgumentError(
        absl::StrCat(members.size(), " endpoints are too many: write at most ", kMostPlaces));
  }
  std::vector<HostPort> places;
  for (const absl::string_view member : members) {
    CONVENE_ASSIGN_OR_RETURN(HostPort place,
                             ParseHostPort(is_list ? absl::StripAsciiWhitespace(member) : member,
                                           default_port, is_list ? 1 : least_port));
    if (std::count(places.begin(), places.end(), place) > 0) {
      return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" has ",
                                                     FormatHostPort(place.host, place.port),
                                                     " twice: write each endpoint once"));
    }
    places.push_back(std::move(place));
  }
  return places;
}

std::string FormatPlaces(const std::vector<HostPort>& places) {
  return absl::StrJoin(places, ",", [](std::string* out, const HostPort& place) {
    absl::StrAppend(out, FormatHostPort(place.host, place.port));
  });
}

std::string NoneAnswers(const std::vector<std::string>& endpoints,
                        const std::vector<std::string>& reasons) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < endpoints.size(); ++i) {
    parts.push_back(absl::StrCat(endpoints[i], " (", reasons[i], ")"));
  }
  return absl::StrCat("none of ", endpoints.size(),
                      " endpoints answers as the rendezvous: ", absl::StrJoin(parts, ", "));
}

}  // namespace convene::rendezvous
