#include "launcher/launch/ssh.h"

#include <cstdio>

#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace convene::launcher {
namespace {

// The output of `command`, by a real shell.
std::string Shell(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  REQUIRE(pclose(pipe) == 0);
  return output;
}

TEST_CASE("a real sh reads a quoted word as it was") {
  for (const std::string word :
       {"plain", "", "a b", "it's", "''", "\"$HOME\" `id` $(id) \\ \\n", "a\nb\n",
        "*?[a]{x,y}~;&|<>()#!", "\xc3\xa9\xe2\x82\xac \xff", "-n", "\t tab", "'\\''"}) {
    INFO(word);
    CHECK(Shell("printf %s. " + ShellQuote(word)) == word + ".");
  }
}

TEST_CASE("ssh asks nobody, notices a dead link in time, and runs the quoted program") {
  SshOptions options;
  options.port = 2222;
  options.options = {"-i", "key"};
  options.link_timeout = absl::Seconds(30);
  CHECK(absl::StrJoin(SshArguments(options, "u@n1", "/opt/my convene/convene"), "|") ==
        "ssh|-p|2222|-i|key|-o|BatchMode=yes|-o|ControlPath=none|-o|ConnectTimeout=15|-o|"
        "ServerAliveInterval=10|-o|ServerAliveCountMax=3|-T|u@n1|exec '/opt/my convene/convene' "
        "launched");
}

TEST_CASE("another program than ssh gets no options of ssh") {
  SshOptions options;
  options.command = "/lsf/bin/blaunch  -z";
  CHECK(absl::StrJoin(SshArguments(options, "n1", "convene"), "|") ==
        "/lsf/bin/blaunch|-z|n1|exec 'convene' launched");
}

void Fails(int code, const std::vector<std::string>& lines, const std::string& part, int expected) {
  const SshFailure failure = ExplainNoStart({}, "n7", "/opt/convene", code, lines);
  INFO(failure.text);
  CHECK_THAT(failure.text, Catch::Contains("n7"));
  CHECK_THAT(failure.text, Catch::Contains(part));
  CHECK(failure.exit_code == expected);
}

TEST_CASE("each failure of ssh is told apart") {
  Fails(255, {"u@n7: Permission denied (publickey)."}, "ssh-copy-id n7", 64);
  Fails(255,
        {"No ED25519 host key is known for n7 and you have requested strict checking.",
         "Host key verification failed."},
        "ssh-keyscan", 64);
  Fails(255, {"ssh: Could not resolve hostname n7: Name or service not known"}, "knows that name",
        64);
  Fails(255, {"ssh: connect to host n7 port 22: Connection refused"}, "no sshd listens", 69);
  Fails(255, {"ssh: connect to host n7 port 22: Connection timed out"}, "does not answer", 69);
  Fails(255, {}, "does not answer", 69);
  Fails(127, {"sh: 1: exec: /opt/convene: not found"}, "--convene PATH", 64);
  Fails(64, {"convene: no flag --x"}, "ended with code 64 (it said: convene: no flag --x)", 64);
  Fails(0, {}, "ended with code 0", 69);
}

}  // namespace
}  // namespace convene::launcher
