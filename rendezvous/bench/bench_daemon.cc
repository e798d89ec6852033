#include "rendezvous/bench/bench_daemon.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "rendezvous/server/server.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

absl::StatusOr<std::unique_ptr<BenchDaemon>> BenchDaemon::Start(std::vector<std::string> under,
                                                                const Credentials& credentials) {
  under.push_back(std::filesystem::read_symlink("/proc/self/exe"));
  for (const std::string& word : {std::string(kBenchDaemonFlag), credentials.join_token,
                                  credentials.tls_cert, credentials.tls_key, credentials.tls_ca}) {
    under.push_back(word);
  }
  std::vector<char*> words;
  for (std::string& word : under) words.push_back(word.data());
  words.push_back(nullptr);
  int to_daemon[2];
  int from_daemon[2];
  if (pipe2(to_daemon, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd daemon_in(to_daemon[0]);
  std::unique_ptr<BenchDaemon> daemon(new BenchDaemon);
  daemon->leash_.Reset(to_daemon[1]);
  if (pipe2(from_daemon, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd answer(from_daemon[0]);
  UniqueFd daemon_out(from_daemon[1]);
  daemon->pid_ = fork();
  if (daemon->pid_ == 0) {
    dup2(daemon_in.get(), STDIN_FILENO);
    dup2(daemon_out.get(), STDOUT_FILENO);
    execvp(words[0], words.data());
    _exit(127);
  }
  daemon_out.Reset();
  FILE* const reader = fdopen(answer.Release(), "r");
  int port = 0;
  const int found = std::fscanf(reader, "%d", &port);
  std::fclose(reader);
  if (found != 1) return absl::InternalError("the daemon did not start");
  daemon->endpoint_ = Endpoint(absl::StrCat("127.0.0.1:", port), credentials);
  return daemon;
}

BenchDaemon::~BenchDaemon() {
  if (pid_ < 0) return;
  leash_.Reset();
  waitpid(pid_, nullptr, 0);
}

BenchDaemon::Usage BenchDaemon::usage() const {
  Usage usage;
  clockid_t clock;
  timespec time = {};
  if (clock_getcpuclockid(pid_, &clock) == 0 && clock_gettime(clock, &time) == 0) {
    usage.cpu = absl::DurationFromTimespec(time);
  }
  int64_t pages = 0;
  int64_t resident_pages = 0;
  std::ifstream(absl::StrCat("/proc/", pid_, "/statm")) >> pages >> resident_pages;
  usage.resident_bytes = resident_pages * sysconf(_SC_PAGESIZE);
  return usage;
}

int BenchDaemon::Serve(char** words) {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  Server::Options options;
  options.host = "127.0.0.1";
  options.quiet = true;
  options.credentials = {
      .join_token = words[2], .tls_cert = words[3], .tls_key = words[4], .tls_ca = words[5]};
  const auto server = Server::Start(options);
  if (!server.ok()) {
    std::fprintf(stderr, "%s\n", server.status().ToString().c_str());
    return 1;
  }
  std::printf("%d\n", (*server)->port());
  std::fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  _exit(0);  // thousands of streams: nobody waits for their farewell
}

}  // namespace convene::rendezvous
