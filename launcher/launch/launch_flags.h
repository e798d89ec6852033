// The flags of `convene launch`: its own, and all of `convene run`.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "launcher/flags.h"
#include "launcher/launch/hostfile.h"
#include "tools/base/flag_reader.h"

namespace convene::launcher {

struct LaunchFlags {
  std::string hostfile;  // "": by the scheduler
  HostChoice choice;
  std::optional<int> ssh_port;
  std::string ssh_options;      // words
  std::string ssh_command;      // words; "": ssh
  std::string convene_program;  // on the hosts; "": this program's own path
  std::vector<std::string> exports;
  absl::Duration link_timeout = absl::Seconds(60);
  bool open_door = false;  // no join token is made

  RunFlags run;
  // The flags of `run` that were given, in order: name without dashes, value's text.
  std::vector<std::pair<std::string, std::string>> given_run_flags;
};

void AddFlags(FlagReader* reader, LaunchFlags* flags);

// Whether a flag of `run` was given, by a word or a variable. REQUIRES: the flags have been read.
bool WasGiven(const LaunchFlags& flags, absl::string_view name);

}  // namespace convene::launcher
