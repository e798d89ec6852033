// PURE. The command line that reaches a host, and the meaning of ssh's own failures.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace convene::launcher {

struct SshOptions {
  std::string command = "ssh";       // words; called as: WORDS HOST COMMAND
  std::vector<std::string> options;  // the user's; they win over ours
  std::optional<int> port;
  // A link on which nothing is heard for so long is lost. Both ends of a link send a heartbeat four
  // times in that time (task.h), and ssh itself asks three times.
  absl::Duration link_timeout = absl::Seconds(60);
};

// `text` as one word for any shell of Unix (sh, bash, zsh, csh, fish).
std::string ShellQuote(const std::string& text);

// Runs `program` (a path, or a name for the host's PATH) as `convene launched` there. Options that
// only OpenSSH has are left out where the command is another program.
std::vector<std::string> SshArguments(const SshOptions& options, const std::string& host,
                                      const std::string& program);

struct SshFailure {
  std::string text;   // one paragraph: what, where, what to do
  int exit_code = 0;  // of tools/base/exit_code.h
};

// Why no agent started on `host`: the link ended with `exit_code` (128 + n: by signal n) and these
// last lines on stderr.
SshFailure ExplainNoStart(const SshOptions& options, const std::string& host,
                          const std::string& program, int exit_code,
                          const std::vector<std::string>& last_lines);

// The same for a link that was given up: nothing came from `convene launched` for `patience`.
SshFailure ExplainSilence(const SshOptions& options, const std::string& host,
                          absl::Duration patience, const std::vector<std::string>& last_lines);

}  // namespace convene::launcher
