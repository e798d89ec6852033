#include "tools/base/cgroup_limits.h"

#include <algorithm>
#include <map>
#include <string>

#include "tools/base/cpu_count.h"
#include "tools/base/files.h"
#include "tools/base/testing/status_testing.h"
#include "tools/base/testing/temp_dir.h"

namespace convene {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// A machine's /proc and /sys, as far as cgroups go.
class FakeMachine {
 public:
  explicit FakeMachine(const std::string& memberships) { Write("/proc/self/cgroup", memberships); }
  void Write(const std::string& path, const std::string& text) {
    const std::string whole = directory_.path() + path;
    REQUIRE_OK(MakeDirectories(whole.substr(0, whole.rfind('/'))));
    REQUIRE_OK(WriteFileAtomic(whole, text));
  }
  CgroupLimits Read() const { return ReadCgroupLimits(directory_.path()); }
  int64_t AvailableMemory() const { return AvailableMemoryBytes(directory_.path()); }
  int CountCpus() const { return CountUsableCpus(directory_.path()); }

 private:
  testing::TempDir directory_;
};

TEST_CASE("a container with a cgroup namespace: its limits are at the mount") {
  FakeMachine machine("0::/\n");
  machine.Write("/sys/fs/cgroup/cpu.max", "250000 100000\n");
  machine.Write("/sys/fs/cgroup/memory.max", "2147483648\n");
  CHECK(machine.Read().cpus == 2.5);
  CHECK(machine.Read().memory_bytes == 2 * kGiB);
}

TEST_CASE("nested cgroups, as Slurm's: the least limit of all holds, wherever it is") {
  FakeMachine machine("0::/system.slice/slurmstepd.scope/job_7/step_0\n");
  const std::string slice = "/sys/fs/cgroup/system.slice/slurmstepd.scope";
  machine.Write("/sys/fs/cgroup/system.slice/memory.max", "max\n");
  machine.Write(slice + "/job_7/memory.max", std::to_string(8 * kGiB) + "\n");
  machine.Write(slice + "/job_7/cpu.max", "400000 100000\n");
  machine.Write(slice + "/job_7/step_0/memory.max", std::to_string(16 * kGiB) + "\n");
  machine.Write(slice + "/job_7/step_0/cpu.max", "max 100000\n");
  CHECK(machine.Read().memory_bytes == 8 * kGiB);
  CHECK(machine.Read().cpus == 4.0);
  machine.Write(slice + "/job_7/step_0/memory.max", std::to_string(kGiB) + "\n");
  CHECK(machine.Read().memory_bytes == kGiB);
  // Another job's limit is not ours.
  machine.Write(slice + "/job_8/memory.max", "1\n");
  CHECK(machine.Read().memory_bytes == kGiB);
}

TEST_CASE("v1: each controller has a hierarchy of its own") {
  FakeMachine machine("4:memory:/docker/abc\n3:cpu,cpuacct:/kube/pod1\n2:cpuset:/other\n0::/\n");
  CHECK_FALSE(machine.Read().cpus.has_value());
  CHECK_FALSE(machine.Read().memory_bytes.has_value());
  machine.Write("/sys/fs/cgroup/cpu/kube/cpu.cfs_quota_us", "150000\n");
  machine.Write("/sys/fs/cgroup/cpu/kube/cpu.cfs_period_us", "100000\n");
  machine.Write("/sys/fs/cgroup/cpu/kube/pod1/cpu.cfs_quota_us", "-1\n");
  machine.Write("/sys/fs/cgroup/cpu/kube/pod1/cpu.cfs_period_us", "100000\n");
  CHECK(machine.Read().cpus == 1.5);
  // Without a cgroup namespace the path is the host's, and the container sees its own at the mount.
  machine.Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(3 * kGiB) + "\n");
  CHECK(machine.Read().memory_bytes == 3 * kGiB);
}

TEST_CASE("v2 beside v1 hierarchies is mounted elsewhere") {
  FakeMachine machine("5:memory:/\n0::/a\n");
  machine.Write("/sys/fs/cgroup/unified/a/cpu.max", "50000 100000\n");
  CHECK(machine.Read().cpus == 0.5);
}

TEST_CASE("no limit: no files, words instead of numbers, a malformed membership") {
  CHECK_FALSE(FakeMachine("").Read().cpus.has_value());
  FakeMachine machine("0::/\nrubbish\n1:cpu\n2:memory:relative\n");
  machine.Write("/sys/fs/cgroup/cpu.max", "max\n");
  machine.Write("/sys/fs/cgroup/memory.max", "max\n");
  CHECK_FALSE(machine.Read().cpus.has_value());
  CHECK_FALSE(machine.Read().memory_bytes.has_value());
  machine.Write("/sys/fs/cgroup/cpu.max", "100000 0\n");
  CHECK_FALSE(machine.Read().cpus.has_value());
}

TEST_CASE("memory that a cgroup has taken is not available, but for what its files can give back") {
  FakeMachine machine("0::/pod/a\n");
  const std::string pod = "/sys/fs/cgroup/pod";
  machine.Write("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:       7 kB\n");
  CHECK(machine.AvailableMemory() == 7 << 10);
  machine.Write(pod + "/memory.max", "100\n");
  CHECK(machine.AvailableMemory() == 100);  // Where the kernel does not tell what is taken.
  machine.Write(pod + "/memory.current", "90\n");
  machine.Write(pod + "/memory.stat", "file 9\ninactive_file 3\nactive_file 2\nshmem 7\n");
  CHECK(machine.AvailableMemory() == 15);
  machine.Write(pod + "/a/memory.max", "50\n");
  machine.Write(pod + "/a/memory.current", "40\n");
  CHECK(machine.AvailableMemory() == 10);
  machine.Write(pod + "/a/memory.current", "60\n");  // The limit was lowered.
  CHECK(machine.AvailableMemory() == 0);
  CHECK(machine.Read().memory_bytes == 50);
}

TEST_CASE("v1: memory that a cgroup and those below it have taken") {
  FakeMachine machine("4:memory:/pod\n");
  const std::string pod = "/sys/fs/cgroup/memory/pod";
  machine.Write("/proc/meminfo", "MemAvailable: 7 kB\n");
  machine.Write(pod + "/memory.limit_in_bytes", "100\n");
  machine.Write(pod + "/memory.usage_in_bytes", "90\n");
  machine.Write(pod + "/memory.stat",
                "inactive_file 1\ntotal_inactive_file 3\ntotal_active_file 2\n");
  CHECK(machine.AvailableMemory() == 15);
}

TEST_CASE("a quota leaves whole CPUs, at least one and at most those of the affinity") {
  FakeMachine machine("0::/\n");
  CHECK(machine.CountCpus() == CountBoundCpus());
  for (const auto& [quota, cpus] : std::map<std::string, int>{
           {"20000", 1}, {"100000", 1}, {"150000", 2}, {"99900000000", CountBoundCpus()}}) {
    machine.Write("/sys/fs/cgroup/cpu.max", quota + " 100000\n");
    CHECK(machine.CountCpus() == std::min(cpus, CountBoundCpus()));
  }
}

}  // namespace
}  // namespace convene
