#include "agent/core/kernel_lines.h"

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

TEST_CASE("a record's text is what stands between its numbers and its details") {
  CHECK(KernelText("3,1250,94318,-;Out of memory: Killed process 77 (python3)\n SUBSYSTEM=mm\n") ==
        "Out of memory: Killed process 77 (python3)");
  CHECK(KernelText("6,1,2,-;a\tb") == "a b");
  CHECK(KernelText("no record").empty());
}

TEST_CASE("lines about this process are found, and those about others are not") {
  const std::vector<std::string> texts = {
      "eth0: link up",
      "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python3,pid=77,uid=0",
      "Memory cgroup out of memory: Killed process 77 (python3) total-vm:1kB",
      "Memory cgroup out of memory: Killed process 770 (python3) total-vm:1kB",
      "python3[77]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so",
      "python3[177]: segfault at 0 ip 00007f sp 00007f error 4 in libc.so",
      "traps: worker[77] trap divide error ip:1 sp:2 error:0",
  };
  CHECK(KernelLinesAbout(texts, 77) ==
        std::vector<std::string>{texts[1], texts[2], texts[4], texts[6]});
  CHECK(KernelLinesAbout(texts, 770) == std::vector<std::string>{texts[3]});
  CHECK(KernelLinesAbout(texts, 7).empty());
}

TEST_CASE("hardware's errors are told whatever process they hit, the last four") {
  std::vector<std::string> texts(6, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.");
  texts.push_back("mce: [Hardware Error]: Machine check events logged");
  const auto lines = KernelLinesAbout(texts, 1);
  REQUIRE(lines.size() == kMostKernelLines);
  CHECK(lines.back() == texts.back());
}

}  // namespace
}  // namespace convene::agent
