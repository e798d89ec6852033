// PURE. Lists of endpoints, "a:29400,b,c": the places where a rendezvous may be, of which one
// leads.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/host_port.h"

namespace convene::rendezvous {

inline constexpr size_t kMostPlaces = 16;

// One place or several, with commas between. InvalidArgument as ParseHostPort says, for a place
// that is there twice, and for more than kMostPlaces. `least_port` is for one place alone: of
// several each has a port.
absl::StatusOr<std::vector<HostPort>> ParsePlaces(absl::string_view text,
                                                  std::optional<int> default_port,
                                                  int least_port = 1);

// The reverse.
std::string FormatPlaces(const std::vector<HostPort>& places);

// "none of 2 endpoints answers as the rendezvous: a:29400 (refused), b:29400 (no answer)", for
// the person. Both lists are of one length.
std::string NoneAnswers(const std::vector<std::string>& endpoints,
                        const std::vector<std::string>& reasons);

}  // namespace convene::rendezvous
