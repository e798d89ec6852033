#include "agent/workers/session_server.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
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
    auto started = SessionServer::Start(
        loop, directory.path(),
        {[this](int rank) { opened.push_back(rank); }, [this](int rank) { left.push_back(rank); }});
    REQUIRE_OK(started);
    server = *std::move(started);
    server->BeginEpoch(Epoch(7), 2);
  }
  void Turn() { loop.RunOnce(Clock::Real().Now() + absl::Seconds(5)); }

  testing::TempDir directory;
  EventLoop loop;
  std::vector<int> opened;
  std::vector<int> left;
  std::unique_ptr<SessionServer> server;
};

TEST_CASE_METHOD(Fixture, "the hello of a worker that has already gone is heard") {
  {
    Worker worker(server->path());
    worker.Say("hello 1 7\n");
  }
  Worker silent(server->path());
  server->HearAll();
  CHECK(opened == std::vector<int>{1});
  server->HearAll();  // Nothing new, and no waiting.
  CHECK(opened.size() == 1);
}

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

TEST_CASE_METHOD(Fixture, "a worker that leaves has no session; one that ends has not left") {
  Worker leaver(server->path());
  leaver.Say("hello 0 7\n");
  Turn();
  Turn();
  leaver.Say("leave\n");
  {
    Worker at_once(server->path());
    at_once.Say("hello 1 7\nleave\n");
  }
  server->HearAll();
  CHECK(opened == std::vector<int>{0, 1});
  CHECK(left == std::vector<int>{1, 0});
  CHECK_FALSE(server->IsOpen(0));
  CHECK(leaver.Hear() == "");
  {
    Worker again(server->path());  // The program behind it may speak the session, too.
    again.Say("hello 0 7\n");
    server->HearAll();
    CHECK(server->IsOpen(0));
  }
  server->HearAll();
  CHECK_FALSE(server->IsOpen(0));
  CHECK(left.size() == 2);
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
    const auto server = SessionServer::Start(loop, parent, {});
    REQUIRE_OK(server);
    CHECK((*server)->path().substr(0, 13) == "/tmp/convene.");
    CHECK((*server)->path().size() < 108);
  }
}

class ShortTempDir {
 public:
  ShortTempDir() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~ShortTempDir() { RemoveTree(path_).IgnoreError(); }
  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_ = "/tmp/convene_test.XXXXXX";
};

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

TEST_CASE("what killed agents left behind is swept, what living ones use is not") {
  // Bazel's own folder is too deep for a socket.
  const ShortTempDir parent;
  for (const std::string name : {"convene.killed", "convene.living", "convene.strange"}) {
    REQUIRE_OK(MakeDirectories(parent.File(name)));
    REQUIRE_OK(WriteFileAtomic(parent.File(name + "/session"), ""));
  }
  for (const std::string name : {"convene.killed", "convene.living"}) {
    REQUIRE_OK(WriteFileAtomic(parent.File(name + "/lock"), ""));
  }
  REQUIRE_OK(MakeDirectories(parent.File("convene.killed_at_once")));
  UniqueFd living(open(parent.File("convene.living/lock").c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(flock(living.get(), LOCK_EX | LOCK_NB) == 0);
  EventLoop loop;
  auto first = SessionServer::Start(loop, parent.path(), {});
  const auto second = SessionServer::Start(loop, parent.path(), {});
  REQUIRE_OK(first);
  REQUIRE_OK(second);
  CHECK_FALSE(Exists(parent.File("convene.killed")));
  CHECK_FALSE(Exists(parent.File("convene.killed_at_once")));
  CHECK(Exists(parent.File("convene.living/session")));
  CHECK(Exists(parent.File("convene.strange/session")));
  CHECK(Exists((*first)->path()));
  // The last start on a node is not the last that sweeps.
  living.Reset();
  first->reset();
  CHECK_FALSE(Exists(parent.File("convene.living")));
  CHECK(Exists((*second)->path()));
}

// No descriptor above those in use can be opened while it lives.
class NoDescriptors {
 public:
  NoDescriptors() {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0);
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(UniqueFd(dup(STDIN_FILENO)).get());
    REQUIRE(setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

TEST_CASE_METHOD(Fixture, "without descriptors a worker is turned away, and nothing spins") {
  Worker worker(server->path());
  std::string heard = "nothing yet";
  absl::Duration idle;
  {
    // Checked afterwards: UBSan's look at an assertion's objects needs descriptors itself.
    const NoDescriptors none;
    Turn();
    heard = worker.Hear();
    const MonotonicTime start = Clock::Real().Now();
    loop.RunOnce(start + absl::Milliseconds(20));
    idle = Clock::Real().Now() - start;
  }
  CHECK(heard.empty());
  CHECK(idle >= absl::Milliseconds(20));
  Worker later(server->path());
  later.Say("hello 0 7\n");
  Turn();
  Turn();
  CHECK(server->IsOpen(0));
}

}  // namespace
}  // namespace convene::agent
