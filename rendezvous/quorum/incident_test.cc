#include "rendezvous/quorum/incident.h"

#include <csignal>

#include <catch2/catch.hpp>

namespace convene::rendezvous {
namespace {

using Catch::Contains;

WorkerFailure Exit(int code, std::vector<std::string> lines = {}) {
  return {.global_rank = 3,
          .host = "b",
          .pid = 77,
          .exit_code = code,
          .why = "exit code " + std::to_string(code),
          .last_log_lines = std::move(lines)};
}

WorkerFailure Killed(int signal, const std::string& why) {
  WorkerFailure failure = Exit(0);
  failure.signal = signal;
  failure.why = why;
  return failure;
}

// "word, certainty: the first line of evidence".
std::string Told(const Verdict& verdict) {
  REQUIRE_FALSE(verdict.evidence.empty());
  return verdict.word + ", " + verdict.certainty + ": " + verdict.evidence.front();
}
// Of the epoch that the first of these broke.
Verdict Judged(const std::vector<WorkerFailure>& failures) {
  return JudgeIncident("rank " + std::to_string(failures.front().global_rank) + " on b: it failed",
                       failures);
}
std::string Told(const std::vector<WorkerFailure>& failures) { return Told(Judged(failures)); }
std::string Told(const WorkerFailure& failure) { return Told(std::vector{failure}); }
std::string Told(const std::string& cause, const std::vector<WorkerFailure>& failures) {
  return Told(JudgeIncident(cause, failures));
}

TEST_CASE("a kill by hand, and one by the kernel for want of memory") {
  CHECK(Told(Killed(SIGKILL, "killed by SIGKILL (not by the kernel's OOM killer)")) ==
        "kill, sure: killed by SIGKILL (not by the kernel's OOM killer)");
  CHECK(Told(Killed(SIGKILL, "killed by SIGKILL (out of memory?)")).substr(0, 12) ==
        "kill, likely");
  CHECK(Told(Killed(SIGKILL,
                    "killed by SIGKILL (out of memory? The kernel counts 1 OOM kill on "
                    "this machine since the epoch began)"))
            .substr(0, 12) == "node, likely");
  WorkerFailure oom = Killed(SIGKILL, "killed by SIGKILL (out of memory?)");
  oom.kernel_lines = {"Memory cgroup out of memory: Killed process 77 (python3)"};
  CHECK(Told(oom) ==
        "node, sure: the kernel had no memory left: Memory cgroup out of memory: Killed process 77 "
        "(python3)");
  CHECK(Told(Killed(SIGTERM, "killed by SIGTERM")) ==
        "kill, likely: killed by SIGTERM, and no agent sent it");
  CHECK(Told(Exit(137)).substr(0, 12) == "kill, likely");  // a shell's word for SIGKILL
}

TEST_CASE("the kernel killed a process of the worker's for want of memory") {
  const std::string counted =
      "out of memory? The kernel counts 1 OOM kill on this machine since the epoch began)";
  WorkerFailure shell = Exit(137);
  shell.why = "exit code 137 (a shell's word for SIGKILL, " + counted;
  CHECK(Told(shell).substr(0, 12) == "node, likely");
  WorkerFailure loader =
      Exit(1, {"Traceback (most recent call last):",
               "RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed. "});
  CHECK(Told(loader).substr(0, 13) == "node, a guess");
  loader.why = "exit code 1 (a process of its was killed by SIGKILL, " + counted;
  CHECK(Told(loader).substr(0, 12) == "node, likely");
  loader.why =
      "exit code 1 (a process of its was killed by SIGKILL, not by the kernel's OOM killer)";
  CHECK(Told(loader).substr(0, 10) == "kill, sure");
  loader.last_log_lines.back() =
      "RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. ";
  loader.why = "exit code 1";
  CHECK(Told(loader).substr(0, 12) == "data, likely");
}

TEST_CASE("everyday lines before a traceback do not judge, and a part of a name is no word") {
  const std::string head = "Traceback (most recent call last):";
  CHECK(Told(Exit(1, {"wandb: WARNING upload failed: [Errno 111] Connection refused, will retry",
                      "NCCL WARN Missing \"iommu=pt\" from kernel command line", head,
                      "ValueError: x"}))
            .substr(0, 10) == "code, sure");
  CHECK(Told(Exit(1, {"NCCL WARN Call to ibv_modify_qp failed", head,
                      "torch.distributed.DistBackendError: NCCL error in: a.cpp:17"}))
            .substr(0, 15) == "network, likely");
  CHECK(Told(Exit(1, {"Connection refused", "the end"})).substr(0, 15) == "network, likely");
  CHECK(
      Told(Exit(1, {head, "TypeError: truncated_normal_() missing argument std"})).substr(0, 10) ==
      "code, sure");
  CHECK(Told(Exit(1, {head, "RuntimeError: the archive is corrupted"})).substr(0, 12) ==
        "data, likely");
}

TEST_CASE("what is left of a traceback is one, and a stack of a hang is none") {
  const std::vector<std::string> lines = {"  File \"/x/nn.py\", line 17, in forward",
                                          "    y = f(x)", "ValueError: bad shape"};
  CHECK(Told(Exit(1, lines)) == "code, sure: its words: ValueError: bad shape");
  WorkerFailure hang =
      Exit(1, {"Thread 0x7f (most recent call first):", "  File \"/x/nn.py\", line 17 in forward"});
  hang.why = "hang: no step for 31 s, phase step, step 17";
  CHECK(Told(hang).substr(0, 13) == "code, a guess");
  hang.why += "; it may wait for another rank; the others here: rank 1 at step 18 (step)";
  CHECK(Told(hang).substr(0, 16) == "network, a guess");
  hang.why += "; ended with 0: rank 1 (after step 30, 5 s ago): the others may wait for it";
  CHECK(Told(hang).substr(0, 12) == "code, likely");
  hang.why =
      "hang: no step for 31 s, phase step, step 17; its process has been stopped by a signal "
      "(state T) for 31 s; the others here: rank 1 at step 17 (step)";
  CHECK(Told(hang).substr(0, 12) == "kill, likely");
  hang.why += "; ranks 0,1: all_reduce #17 of dp waits for rank 2; rank 3: another";
  CHECK_THAT(
      Judged({hang}).evidence.back(),
      Catch::EndsWith(", in a collective: ranks 0,1: all_reduce #17 of dp waits for rank 2"));
}

TEST_CASE("a report keeps the innermost frames of a stack, and the end of all else") {
  std::vector<std::string> numbers;
  for (int i = 0; i < 20; ++i) numbers.push_back(std::to_string(i));
  const auto kept = [](const std::vector<std::string>& lines) {
    WorkerFailure failure = Exit(1, lines);
    ShortenFailure(&failure);
    REQUIRE(failure.last_log_lines.size() == 8);
    return failure.last_log_lines.front() + " to " + failure.last_log_lines.back();
  };
  CHECK(kept(numbers) == "12 to 19");
  std::vector<std::string> lines = numbers;
  lines[0] = "stacks of rank 1 by gdb:";
  CHECK(kept(lines) == lines[0] + " to 7");
  lines[0] = "stacks of rank 1 by gdb: none";
  CHECK(kept(lines) == "12 to 19");
  lines[5] = "Thread 0x7f (most recent call first):";
  CHECK(kept(lines) == lines[5] + " to 12");
  lines[9] = "Current thread 0x7f (most recent call first):";
  CHECK(kept(lines) == lines[9] + " to 16");
  lines[16] = "Thread 0x7f (most recent call first):";
  CHECK(kept(lines) == "12 to 19");
  lines[17] = "Traceback (most recent call last):";
  lines[0] = "stacks of rank 1 by gdb:";
  CHECK(kept(lines) == "12 to 19");
}

TEST_CASE("a traceback, a crash and a program that cannot start are the code's") {
  CHECK(Told(Exit(1, {"Traceback (most recent call last):", "  File \"a.py\", line 1",
                      "ValueError: bad shape"})) ==
        "code, sure: its words: Traceback (most recent call last):");
  CHECK(Told(Killed(SIGSEGV, "killed by SIGSEGV (core dumped)")) ==
        "code, likely: killed by SIGSEGV (core dumped)");
  CHECK(Told(Exit(127)) == "code, sure: exit code 127");
  CHECK(Told(Exit(3)) == "code, a guess: exit code 3");
  CHECK(Told(Killed(0, "hang: no step for 31 s, phase step, step 17")).substr(0, 13) ==
        "code, a guess");
}

TEST_CASE("a disk's words are the data's, though a traceback tells them") {
  CHECK(Told(Exit(1, {"Traceback (most recent call last):",
                      "OSError: [Errno 28] No space left on device"})) ==
        "data, likely: its words: OSError: [Errno 28] No space left on device");
  CHECK(Told(Killed(SIGBUS, "killed by SIGBUS")).substr(0, 12) == "data, likely");
  CHECK(
      Told(Exit(1, {"Traceback (most recent call last):", "ValueError: wrong checksum of shard 3"}))
          .substr(0, 12) == "data, likely");
  // Words of everyday lines.
  CHECK(Told(Exit(1, {"warning: No space left on device for the cache, going on without",
                      "Traceback (most recent call last):", "ValueError: bad lr"}))
            .substr(0, 10) == "code, sure");
  CHECK(Told(Exit(1, {"sequences longer than 512 will be truncated",
                      "Traceback (most recent call last):", "ValueError: bad shape"}))
            .substr(0, 10) == "code, sure");
  WorkerFailure disk = Exit(1);
  disk.kernel_lines = {"blk_update_request: I/O error, dev sda, sector 5"};
  CHECK(Told(disk).substr(0, 12) == "data, likely");
}

TEST_CASE("the GPU's driver says whether the card or the program is wrong") {
  WorkerFailure failure = Exit(1);
  failure.kernel_lines = {"NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus."};
  CHECK(Told(failure).substr(0, 10) == "node, sure");
  failure.kernel_lines = {"NVRM: Xid (PCI:0000:3b:00): 31, pid=77, MMU Fault"};
  CHECK(Told(failure).substr(0, 12) == "code, likely");
  // The card's error counts, and not the end of the program that the driver tells first.
  failure.kernel_lines = {"NVRM: Xid (PCI:0000:3b:00): 45, pid=77, Ch 00000008",
                          "NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus."};
  CHECK(Told(failure) == "node, sure: the GPU's driver: " + failure.kernel_lines[1]);
  failure.kernel_lines = {"{1}[Hardware Error]: event severity: recoverable"};
  CHECK(Told(failure).substr(0, 10) == "node, sure");
  CHECK(Told(Exit(1, {"uncorrectable ECC error encountered"})).substr(0, 10) == "node, sure");
}

TEST_CASE("hardware and disks judge where they are broken and the worker says nothing better") {
  WorkerFailure failure = Exit(1);
  for (const char* const line :
       {"mce: [Hardware Error]: Machine check events logged",
        "{1}[Hardware Error]: event severity: corrected",
        "{1}[Hardware Error]: It has been corrected by h/w and requires no "
        "further action"}) {
    failure.kernel_lines = {line};
    CHECK(Told(failure) == "code, a guess: exit code 1");
    CHECK_THAT(Judged({failure}).evidence.back(), Contains(line));
  }
  failure.last_log_lines = {"Traceback (most recent call last):", "ValueError: bad shape"};
  for (const char* const line : {"{1}[Hardware Error]: event severity: fatal",
                                 "blk_update_request: I/O error, dev sda, sector 5"}) {
    failure.kernel_lines = {line};
    CHECK(Told(failure).substr(0, 10) == "code, sure");
    CHECK_THAT(Judged({failure}).evidence.back(), Contains(line));
  }
  WorkerFailure killed = Killed(SIGKILL, "killed by SIGKILL (not by the kernel's OOM killer)");
  killed.kernel_lines = failure.kernel_lines;
  CHECK(Told(killed).substr(0, 10) == "kill, sure");
}

TEST_CASE("a broken connection is the network's, unless a peer failed by itself") {
  const WorkerFailure echo = Exit(1, {"Traceback (most recent call last):",
                                      "RuntimeError: Connection closed by peer [10.0.0.2]:4711"});
  CHECK(Told(echo).substr(0, 15) == "network, likely");
  WorkerFailure cause = Killed(SIGSEGV, "killed by SIGSEGV");
  cause.global_rank = 5;
  cause.host = "c";
  CHECK(Told({echo, cause}) == "code, likely: rank 5 on c: killed by SIGSEGV");
  CHECK(Told({echo, echo}).substr(0, 7) == "network");
  CHECK(Told({echo, Exit(1)}).substr(0, 7) == "network");  // a guess says less
  const Verdict verdict = Judged(
      {Exit(75, {"dp all_reduce #17 (4096 B): rank 2 (global rank 5) did not answer in time"})});
  CHECK(verdict.word == "network");
  CHECK_THAT(verdict.evidence.back(),
             Contains("in a collective: dp all_reduce #17 (4096 B): rank 2 (global rank 5)"));
}

TEST_CASE("a node that is lost, left or unfit") {
  CHECK(Told("b is lost: silent for its lease of 5s", {}) ==
        "network, a guess: b is lost: silent for its lease of 5s");
  CHECK(Told("b is lost: its connection closed", {}).substr(0, 12) == "node, likely");
  const WorkerFailure echo = Exit(1, {"Connection closed by peer"});
  CHECK(Told("b is lost: its connection closed", {echo}).substr(0, 12) == "node, likely");
  CHECK(Told("b left: Stopped by SIGTERM: the workers were ended in order.", {}).substr(0, 12) ==
        "kill, likely");
  const std::string unfit = "b left: b is unfit and leaves the job: the health check: exit code 3";
  CHECK(Told(JudgeIncident(unfit, {}, /*is_unfit=*/true)) == "node, sure: " + unfit);
  CHECK(Told("b left: The program ./prog.sh cannot be started: it does not exist", {})
            .substr(0, 12) == "code, likely");
}

TEST_CASE("evidence is bounded, whatever workers write") {
  WorkerFailure failure = Exit(1, {std::string(500, 'x') + "Traceback (most recent call last)"});
  failure.kernel_lines = std::vector<std::string>(20, std::string(500, 'k'));
  const Verdict verdict = Judged({failure, failure, failure});
  CHECK(verdict.evidence.size() == 6);
  for (const std::string& line : verdict.evidence) CHECK(line.size() <= 200);
}

}  // namespace
}  // namespace convene::rendezvous
