#include "agent/core/kernel_lines.h"

#include <catch2/catch.hpp>

namespace convene::agent {
namespace {

constexpr absl::Duration kUp = absl::Hours(50);

MonotonicTime Now() { return MonotonicTime::FromEpoch(kUp); }

std::vector<std::string> LinesOf(const std::vector<std::string>& texts, int64_t pid,
                                 absl::Duration age = absl::ZeroDuration()) {
  std::vector<KernelRecord> records;
  for (const std::string& text : texts) records.push_back({Now() - age, text});
  return KernelLinesAbout(records, pid, Now());
}

TEST_CASE("a record's text is what stands between its numbers and its details") {
  const KernelRecord record = ReadKernelRecord(
      "3,1250,94318,-;Out of memory: Killed process 77 (python3)\n SUBSYSTEM=mm\n");
  CHECK(record.text == "Out of memory: Killed process 77 (python3)");
  CHECK(record.at == MonotonicTime::FromEpoch(absl::Microseconds(94318)));
  CHECK(ReadKernelRecord("6,1,2,-;a\tb").text == "a b");
  CHECK(ReadKernelRecord("no record").text.empty());
  CHECK(ReadKernelRecord("6,1,x,-;a").text.empty());
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
  CHECK(LinesOf(texts, 77) == std::vector<std::string>{texts[1], texts[2], texts[4], texts[6]});
  CHECK(LinesOf(texts, 770) == std::vector<std::string>{texts[3]});
  CHECK(LinesOf(texts, 7).empty());
}

TEST_CASE("hardware's errors are told whatever process they hit, the last four") {
  std::vector<std::string> texts(6, "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.");
  texts.push_back("{1}[Hardware Error]: event severity: fatal");
  const auto lines = LinesOf(texts, 1);
  REQUIRE(lines.size() == kMostKernelLines);
  CHECK(lines.back() == texts.back());
  // An old one is of another failure. A line about the process has its number.
  CHECK(LinesOf(texts, 1, absl::Minutes(2)).empty());
  CHECK(LinesOf({"python3[77]: segfault at 0"}, 77, absl::Hours(2)).size() == 1);
}

TEST_CASE("a line that tells how bad an error was stays, and a drive without a medium is no news") {
  std::vector<std::string> texts = {"{1}[Hardware Error]: event severity: recoverable",
                                    "{1}[Hardware Error]:  section: memory",
                                    "{1}[Hardware Error]:  physical_address: 0x1",
                                    "{1}[Hardware Error]:  node: 0",
                                    "{1}[Hardware Error]:  card: 0",
                                    "{1}[Hardware Error]:  row: 1"};
  CHECK(LinesOf(texts, 1).front() == texts.front());
  CHECK(LinesOf({"Buffer I/O error on dev sr0, logical block 0"}, 1).empty());
  CHECK(LinesOf({"blk_update_request: I/O error, dev sda, sector 5"}, 1).size() == 1);
}

TEST_CASE("the driver's cleanup behind an error pushes out no other line") {
  const std::string error = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.";
  const std::string cleanup = "NVRM: Xid (PCI:0000:3b:00): 45, pid=77, Ch 00000008";
  const std::vector<std::string> kept = {error, cleanup, cleanup, cleanup};
  CHECK(LinesOf({error, cleanup, cleanup, cleanup, cleanup}, 77) == kept);
  CHECK(LinesOf({cleanup, cleanup, cleanup, cleanup, cleanup}, 77).size() == kMostKernelLines);
}

}  // namespace
}  // namespace convene::agent
