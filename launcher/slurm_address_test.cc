#include "launcher/slurm_address.h"

#include <sys/stat.h>

#include <cstdlib>

#include "tools/base/files.h"
#include "tools/base/logging.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene::launcher {
namespace {

using testing::TempDir;
using Addresses = std::vector<std::string>;

// As scontrol 22.05 prints one node with -o.
constexpr char kNode[] =
    "NodeName=n2 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=4 CPUTot=4 CPULoad=0.52 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:h200:2 NodeAddr=10.7.0.12 "
    "NodeHostName=vm12 Port=17002 Version=22.05.8 OS=Linux RealMemory=4000 State=IDLE";

// A folder that is all of PATH, with a scontrol that runs `script`, while it lives.
class FakeScontrol {
 public:
  explicit FakeScontrol(const std::string& script) : before_(getenv("PATH")) {
    const std::string path = folder_.path() + "/scontrol";
    CHECK_OK(WriteFileAtomic(path, "#!/bin/sh\n" + script + "\n"));
    CHECK(chmod(path.c_str(), 0755) == 0);
    setenv("PATH", folder_.path().c_str(), 1);
  }
  ~FakeScontrol() { setenv("PATH", before_.c_str(), 1); }
  FakeScontrol(const FakeScontrol&) = delete;
  FakeScontrol& operator=(const FakeScontrol&) = delete;

 private:
  TempDir folder_;
  const std::string before_;
};

absl::StatusOr<std::string> Ask(const std::string& name, bool is_this_node = false) {
  return ResolvableSlurmHost(name, is_this_node, absl::ZeroDuration());
}

TEST_CASE("scontrol's line tells the address first, then the host name") {
  CHECK(AddressesOfNode(kNode) == Addresses{"10.7.0.12", "vm12"});
  CHECK(AddressesOfNode("NodeName=n2 NodeHostName=vm12\n") == Addresses{"vm12"});
  CHECK(AddressesOfNode("Node n9 not found").empty());
  CHECK(AddressesOfNode("").empty());
}

TEST_CASE("a name that resolves is taken as it is, and nobody is asked") {
  FakeScontrol scontrol("echo NodeAddr=192.0.2.1");
  CHECK(Ask("127.0.0.1").value() == "127.0.0.1");
}

TEST_CASE("a name that only Slurm knows becomes the address that Slurm tells") {
  FakeScontrol scontrol("[ \"$*\" = '-o show node no such node' ] && echo '" + std::string(kNode) +
                        "'");
  CHECK(Ask("no such node").value() == "10.7.0.12");
}

TEST_CASE("where Slurm does not help either, the error says what was tried and what to do") {
  {
    FakeScontrol scontrol("echo 'Node no such node not found'; exit 1");
    CHECK_STATUS(Ask("no such node"), absl::StatusCode::kInvalidArgument, "it tells no NodeAddr");
    CHECK_STATUS(Ask("no such node"), absl::StatusCode::kInvalidArgument,
                 "--rdzv-endpoint ADDRESS:PORT");
  }
  {
    FakeScontrol scontrol("echo 'NodeAddr=another..node'");
    CHECK_STATUS(Ask("no such node"), absl::StatusCode::kInvalidArgument, "it tells another..node");
  }
}

TEST_CASE("the node itself goes by its own name, and asks only where that has no address") {
  FakeScontrol scontrol("echo NodeAddr=192.0.2.1");
  const std::string host = Ask("no such node", true).value();
  CHECK((host == HostName() || host == "192.0.2.1"));  // a sandbox may not resolve its own name
}

}  // namespace
}  // namespace convene::launcher
