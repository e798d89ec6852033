#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "launcher/commands.h"
#include "launcher/job_spec.h"
#include "launcher/status_text.h"
#include "rendezvous/client/status_client.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

}  // namespace

absl::StatusOr<int> StatusCommand(const StatusFlags& flags) {
  CONVENE_ASSIGN_OR_RETURN(const auto place, SplitEndpoint(flags.endpoint, "--endpoint"));
  CONVENE_ASSIGN_OR_RETURN(
      const std::vector<rendezvous::JobView> jobs,
      rendezvous::FetchStatus(JoinEndpoint(place.first, place.second), flags.job_id, kTimeout));
  std::fputs(StatusText(jobs).c_str(), stdout);
  return 0;
}

}  // namespace convene::launcher
