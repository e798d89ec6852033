#include "launcher/launch/ssh.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tools/base/exit_code.h"

namespace convene::launcher {
namespace {

constexpr int kSshFailed = 255;
constexpr int kNotExecutable = 126;  // a shell's
constexpr int kNotFound = 127;       // a shell's
constexpr int kAliveCount = 3;
constexpr int kConnectSeconds = 15;

int64_t WholeSeconds(absl::Duration duration) {
  return std::max<int64_t>(1, absl::ToInt64Seconds(duration));
}

std::vector<std::string> CommandWords(const SshOptions& options) {
  return absl::StrSplit(options.command, ' ', absl::SkipWhitespace());
}

bool IsSsh(const SshOptions& options) {
  const std::string program = CommandWords(options).front();
  return program.substr(program.rfind('/') + 1) == "ssh";
}

// One kind of failure, by a word of ssh's own line. OpenSSH speaks English only.
struct KnownFailure {
  absl::string_view sign;
  absl::string_view text;
  ExitCode code;
};

constexpr KnownFailure kKnownFailures[] = {
    {"Host key verification failed",
     "the host's key is not the known one, or no key of it is known yet. Connect once by hand "
     "(`ssh $H`) and compare the key, or collect the keys of all hosts with ssh-keyscan into "
     "~/.ssh/known_hosts",
     ExitCode::kUsage},
    {"Permission denied",
     "the host refused your key. `ssh -o BatchMode=yes $H true` must work without a password: put "
     "your public key there (`ssh-copy-id $H`), load it into an agent (`ssh-add`), or name it with "
     "--ssh-options='-i FILE'",
     ExitCode::kUsage},
    {"Too many authentication failures",
     "the host refused your keys, because too many were offered. Name the right one with "
     "--ssh-options='-i FILE -o IdentitiesOnly=yes'",
     ExitCode::kUsage},
    {"Could not resolve hostname",
     "nothing here knows that name. Correct it in the list of hosts, or name its address in "
     "~/.ssh/config or /etc/hosts",
     ExitCode::kUsage},
    {"Connection refused",
     "the machine is there, but no sshd listens at that port. Start sshd there, or give --ssh-port",
     ExitCode::kUnavailable},
    {"", "it does not answer. See whether it is up and reachable from here (`ssh $H true`)",
     ExitCode::kUnavailable},
};

}  // namespace

std::string ShellQuote(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::vector<std::string> SshArguments(const SshOptions& options, const std::string& host,
                                      const std::string& program) {
  std::vector<std::string> words = CommandWords(options);
  if (options.port.has_value()) words.insert(words.end(), {"-p", absl::StrCat(*options.port)});
  // ssh takes the first value that it finds.
  words.insert(words.end(), options.options.begin(), options.options.end());
  if (IsSsh(options)) {
    // BatchMode: a thousand hosts cannot ask for a password. -T: with a terminal on the other side
    // stdout and stderr would be one. ControlPath: a shared connection of the user's would heed
    // none of these limits.
    for (const std::string& option :
         {std::string("BatchMode=yes"), std::string("ControlPath=none"),
          absl::StrCat("ConnectTimeout=", kConnectSeconds),
          absl::StrCat("ServerAliveInterval=", WholeSeconds(options.link_timeout / kAliveCount)),
          absl::StrCat("ServerAliveCountMax=", kAliveCount)}) {
      words.insert(words.end(), {"-o", option});
    }
    words.emplace_back("-T");
  }
  words.push_back(host);
  words.push_back(absl::StrCat("exec ", ShellQuote(program), " launched"));
  return words;
}

SshFailure ExplainNoStart(const SshOptions& options, const std::string& host,
                          const std::string& program, int exit_code,
                          const std::vector<std::string>& last_lines) {
  const std::string last = last_lines.empty() ? "nothing" : last_lines.back();
  if (exit_code == kNotFound || exit_code == kNotExecutable) {
    return {absl::StrCat(host, " was reached, but has no Convene at ", program,
                         " (its shell said: ", last,
                         "). Install Convene there at the same path, or give --convene PATH"),
            static_cast<int>(ExitCode::kUsage)};
  }
  if (exit_code != kSshFailed || !IsSsh(options)) {
    return {absl::StrCat("no agent started on ", host, ": ", CommandWords(options).front(),
                         " ended with code ", exit_code, " (it said: ", last, ")"),
            exit_code == 0 || exit_code == kSshFailed ? static_cast<int>(ExitCode::kUnavailable)
                                                      : exit_code};
  }
  for (const KnownFailure& known : kKnownFailures) {
    const auto tells = [&](const std::string& line) { return absl::StrContains(line, known.sign); };
    // The last kind is any other failure, and needs no line.
    if (!known.sign.empty() && std::none_of(last_lines.begin(), last_lines.end(), tells)) continue;
    return {absl::StrCat("ssh did not reach ", host, " (it said: ", last,
                         "): ", absl::StrReplaceAll(known.text, {{"$H", host}})),
            static_cast<int>(known.code)};
  }
  return {};  // not reached: the last kind fits all
}

SshFailure ExplainSilence(const SshOptions& options, const std::string& host,
                          absl::Duration patience, const std::vector<std::string>& last_lines) {
  const std::string program = CommandWords(options).front();
  const std::string by_hand =
      absl::StrCat(program, IsSsh(options) ? " -o BatchMode=yes " : " ", host, " true");
  return {absl::StrCat("no agent started on ", host, ": ", program, " still runs, but for ",
                       absl::FormatDuration(patience),
                       " nothing came from Convene there (its last words: ",
                       last_lines.empty() ? "nothing" : last_lines.back(),
                       "). The host may be hung, or a login there may wait for something: see "
                       "whether `",
                       by_hand, "` ends. Where a start takes longer, raise --link-timeout"),
          static_cast<int>(ExitCode::kUnavailable)};
}

}  // namespace convene::launcher
