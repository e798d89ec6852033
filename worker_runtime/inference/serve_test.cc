// Each server is a process of its own, as signals end it.
#include "worker_runtime/inference/serve.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/inference/testing/weights_source.h"
#include "worker_runtime/tokenizer/load_tokenizer.h"

namespace convene::worker {
namespace {

ModelConfig Small() {
  return {.layers = 1,
          .hidden_size = 8,
          .ffn_size = 8,
          .heads = 2,
          .kv_heads = 2,
          .head_size = 4,
          .vocabulary_size = 256};
}

// A signal comes while its weights are read.
class Interrupted final : public StateSource {
 public:
  const std::string& name() const override { return name_; }
  const CheckpointInfo& info() const override { return info_; }
  absl::Status Read(const std::vector<PieceToRead>&) const override {
    kill(getpid(), SIGTERM);
    return absl::InternalError("the signal has ended nothing");
  }

 private:
  const std::string name_ = "a model";
  const CheckpointInfo info_;
};

// Serves a model; what the process says on stderr comes from `said`.
class Server {
 public:
  Server(const std::string& path, const std::string& host, std::unique_ptr<StateSource> source) {
    std::array<int, 2> ends;
    REQUIRE(pipe(ends.data()) == 0);
    said_ = fdopen(ends[0], "r");
    pid_ = fork();
    if (pid_ > 0) {
      close(ends[1]);
      return;
    }
    dup2(ends[1], STDERR_FILENO);
    GenerateFlags flags = {.host = host};
    flags.model = {.model = path, .context = 8};
    flags.serve = 0;
    OpenedModel opened;
    opened.weights.config = Small();
    opened.weights.source = std::move(source);
    opened.tokenizer = *LoadTokenizer("byte");
    opened.ranks = *Ranks::Join({});
    opened.device = Device::Cpu();
    opened.communicators = SoloCommunicators();
    _exit(Serve(flags, opened).value_or(1));
  }
  ~Server() { fclose(said_); }

  std::string Line() {
    std::array<char, 1000> line = {};
    return fgets(line.data(), line.size(), said_) == nullptr ? "" : line.data();
  }
  void Signal(int signal) const { kill(pid_, signal); }
  int Status() const {
    int status = 0;
    CHECK(waitpid(pid_, &status, 0) == pid_);
    return status;
  }

 private:
  FILE* said_ = nullptr;
  pid_t pid_ = 0;
};

TEST_CASE("a signal ends a server at once while it loads its model") {
  Server server("model", "127.0.0.1", std::make_unique<Interrupted>());
  const int status = server.Status();
  CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM));
  CHECK(server.Line().empty());
}

TEST_CASE("a server tells the model's name and where it serves, and ends in order at a signal") {
  const bool has_ipv6 = IsFile("/proc/net/if_inet6") && !ReadFile("/proc/net/if_inet6")->empty();
  for (const std::string path : {"folder/model", "folder/model/", "folder/model/.", "model//"}) {
    INFO(path);
    Server server(path, has_ipv6 ? "::1" : "127.0.0.1",
                  std::make_unique<testing::MemorySource>(testing::InitialWeights(Small())));
    CHECK_THAT(server.Line(), Catch::StartsWith("convene generate: model is served at http://" +
                                                std::string(has_ipv6 ? "[::1]:" : "127.0.0.1:")));
    server.Signal(SIGTERM);
    const int status = server.Status();
    CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM));
  }
}

}  // namespace
}  // namespace convene::worker
