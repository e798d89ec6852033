#include <cstdio>
#include <string>
#include <vector>

#include "launcher/commands.h"
#include "launcher/status_text.h"
#include "rendezvous/client/status_client.h"
#include "tools/base/host_port.h"
#include "tools/base/status_macros.h"

namespace convene::launcher {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(5);

}  // namespace

absl::StatusOr<int> StatusCommand(const StatusFlags& flags) {
  const absl::StatusOr<HostPort> place = ParseHostPort(flags.endpoint, kDefaultRendezvousPort);
  CONVENE_RETURN_IF_ERROR(Annotate(place.status(), "--endpoint"));
  CONVENE_ASSIGN_OR_RETURN(
      const std::vector<rendezvous::JobView> jobs,
      rendezvous::FetchStatus(FormatHostPort(place->host, place->port), flags.job_id, kTimeout));
  std::fputs(StatusText(jobs).c_str(), stdout);
  return 0;
}

}  // namespace convene::launcher
