// `convene incidents RUN`: why epochs of a run failed.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/command_table.h"
#include "rendezvous/lock/credentials.h"
#include "tools/base/flag_reader.h"

namespace convene::launcher {

struct IncidentsFlags {
  std::string endpoint = "localhost";  // "host:port" once it is read
  rendezvous::Credentials credentials;
  std::vector<std::string> words;  // "RUN [NUMBER]"; once all is read, in the next two
  std::string job_id;
  int number = 0;  // 0: the list
  bool is_json = false;
  std::string torch_dumps;  // ReadTorchDumps' prefix; "": none
};

void AddFlags(FlagReader* reader, IncidentsFlags* flags);

// Errors: FetchStatus's; NotFound for a number that there is not; ReadTorchDumps'.
absl::StatusOr<int> IncidentsCommand(const IncidentsFlags& flags);

Command IncidentsRow();

}  // namespace convene::launcher
