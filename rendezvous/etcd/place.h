// PURE. The place of a journal in etcd, and the names of its keys.
//
//   PREFIX/leader          the daemon that leads, in words; goes with its lease. Its create
//   revision
//                          is the leader's term.
//   PREFIX/counter         "LEASE/N": the last transaction of the leader's journal
//   PREFIX/jobs/ID         a job (StoredJob in proto/journal.proto)
//   PREFIX/parts/LEASE/N   a part of a record that is too large for one request
//   PREFIX/incidents/NAME  the report of an incident (journal/incident_shelf.h), as JSON
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::rendezvous::etcd {

struct Place {
  std::vector<std::string> members;  // "host:port"
  std::string prefix = "convene";    // without a slash at its end

  std::string leader() const { return prefix + "/leader"; }
  std::string counter() const { return prefix + "/counter"; }
  std::string jobs() const { return prefix + "/jobs/"; }
  std::string parts() const { return prefix + "/parts/"; }
  std::string incidents() const { return prefix + "/incidents/"; }
  std::string url() const;
};

// Files in PEM for the connections to etcd. No CA: without TLS. A certificate and its key: where
// etcd wants one (--client-cert-auth).
struct TlsFiles {
  std::string ca, cert, key;
};

// "etcd://host[:port],host[:port]...[/prefix]". InvalidArgument says what is wrong and gives the
// right form.
absl::StatusOr<Place> ParsePlace(absl::string_view url);

// The first key after all that begin with `prefix`, as the end of a range.
std::string EndOfPrefix(std::string prefix);

// "LEASE/N" with both in 16 hex digits, so that keys of one lease stand in the order of N.
std::string CountText(int64_t lease, int64_t number);

}  // namespace convene::rendezvous::etcd
