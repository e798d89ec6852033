#include "agent/process/session_server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <vector>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::agent {
namespace {

class Worker {
 public:
  explicit Worker(const std::string& path)
      : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    REQUIRE(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  void Say(const std::string& text) {
    REQUIRE(send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(text.size()));
  }
  // "" when the agent has closed the session.
  std::string Hear() {
    char buffer[256];
    const ssize_t n = recv(socket_.get(), buffer, sizeof(buffer), 0);
    return std::string(buffer, n > 0 ? n : 0);
  }

 private:
  UniqueFd socket_;
};

struct Fixture {
  Fixture() {
    auto started =
        SessionServer::Start(loop, directory.path(), [this](int rank) { opened.push_back(rank); });
    REQUIRE_OK(started);
    server = *std::move(started);
    server->BeginEpoch(Epoch(7), 2);
  }
  void Turn() { loop.RunOnce(Clock::Real().Now() + absl::Seconds(5)); }

  testing::TempDir directory;
  EventLoop loop;
  std::vector<int> opened;
  std::unique_ptr<SessionServer> server;
};

TEST_CASE_METHOD(Fixture, "a worker says hello, then hears what the agent has to say") {
  Worker worker(server->path());
  worker.Say("hello 1");
  Turn();
  Turn();
  CHECK(opened.empty());
  worker.Say(" 7\n");
  Turn();
  CHECK(opened == std::vector<int>{1});
  CHECK(server->IsOpen(1));
  CHECK_FALSE(server->IsOpen(0));
  server->SendToAll("abort", "node b\nwas lost");
  CHECK(worker.Hear() == "abort node b was lost\n");
}

TEST_CASE_METHOD(Fixture,
                 "a stranger, a worker of another epoch and one with another rank are shown out") {
  for (const std::string hello :
       {"GET / HTTP/1.1\n", "hello 0 6\n", "hello 2 7\n", "hello -1 7\n"}) {
    INFO(hello);
    Worker worker(server->path());
    worker.Say(hello);
    Turn();
    Turn();
    CHECK(worker.Hear() == "");
  }
  CHECK(opened.empty());
}

TEST_CASE_METHOD(Fixture, "the next epoch ends the sessions of the last one") {
  Worker worker(server->path());
  worker.Say("hello 0 7\n");
  Turn();
  Turn();
  REQUIRE(server->IsOpen(0));
  server->BeginEpoch(Epoch(8), 2);
  CHECK_FALSE(server->IsOpen(0));
  CHECK(worker.Hear() == "");
}

TEST_CASE_METHOD(Fixture, "only this user may enter, and nothing is left behind") {
  const std::string parent = ParentDirectory(server->path());
  struct stat info;
  REQUIRE(stat(parent.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  server.reset();
  CHECK(stat(parent.c_str(), &info) != 0);
}

TEST_CASE("a runtime directory that is too deep or missing is replaced by /tmp") {
  EventLoop loop;
  for (const std::string& parent :
       {"/tmp/" + std::string(100, 'x'), std::string("/no/such"), std::string()}) {
    const auto server = SessionServer::Start(loop, parent, [](int) {});
    REQUIRE_OK(server);
    CHECK((*server)->path().substr(0, 13) == "/tmp/convene.");
    CHECK((*server)->path().size() < 108);
  }
}

}  // namespace
}  // namespace convene::agent
