// `convene events RUN`: the decisions of a run's daemon, each with its reason.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "launcher/command_table.h"
#include "rendezvous/lock/credentials.h"
#include "tools/base/flag_reader.h"

namespace convene::launcher {

struct EventsFlags {
  std::string endpoint = "localhost";  // "host:port" once it is read
  rendezvous::Credentials credentials;
  std::string job_id;
  bool follow = false;
  bool as_text = false;  // else JSON
};

void AddFlags(FlagReader* reader, EventsFlags* flags);

// Errors: FetchStatus's. With `follow` a daemon that goes away is waited for, for 60 s.
absl::StatusOr<int> EventsCommand(const EventsFlags& flags);

Command EventsRow();

}  // namespace convene::launcher
