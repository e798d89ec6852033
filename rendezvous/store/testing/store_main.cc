// A store by itself, for tests and measurements with clients of another kind.
//
// usage: store_main [THREADS]
// Prints its port on one line, then serves until its standard input ends: it cannot outlive its
// starter.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "rendezvous/store/store_server.h"

int main(int argc, char** argv) {
  convene::rendezvous::StoreServer::Options options;
  if (argc > 1) options.threads = std::atoi(argv[1]);
  const auto server = convene::rendezvous::StoreServer::Start(options);
  if (!server.ok()) {
    std::fprintf(stderr, "store_main: %s\n", server.status().ToString().c_str());
    return 1;
  }
  std::printf("%d\n", (*server)->port());
  std::fflush(stdout);
  char ignored[256];
  ssize_t count = 0;
  do {
    count = read(STDIN_FILENO, ignored, sizeof(ignored));
  } while (count > 0 || (count < 0 && errno == EINTR));
  return 0;
}
