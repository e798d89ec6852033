#include "agent/machine/read_facts.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "agent/machine/ask_child.h"
#include "rendezvous/net/resolve.h"
#include "tools/base/cgroup_limits.h"
#include "tools/base/clock.h"
#include "tools/base/cpu_count.h"
#include "tools/base/files.h"
#include "tools/base/source_address.h"
#include "tools/base/status_macros.h"

namespace convene::agent {
namespace {

constexpr size_t kMostGpuErrors = 5;
constexpr absl::Duration kFolderTimeout = absl::Seconds(5);

std::string Content(const std::string& path) { return ReadFile(path).value_or(""); }

int64_t SoftLimit(int resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return static_cast<int64_t>(limit.rlim_cur);
}

// The limit of locked memory does not apply to a process with CAP_IPC_LOCK, which counts only in
// the first user namespace: the one with all user ids.
bool MayLockAnyMemory(const std::string& root) {
  const std::string status = Content(root + "/proc/self/status");
  const std::vector<std::string> parts = absl::StrSplit(status, "CapEff:\t");
  uint64_t capabilities = 0;
  return parts.size() == 2 && absl::SimpleHexAtoi(parts[1].substr(0, 16), &capabilities) &&
         (capabilities >> CAP_IPC_LOCK & 1) != 0 &&
         absl::StrContains(Content(root + "/proc/self/uid_map"), " 4294967295\n");
}

// "MemAvailable:   123 kB", in bytes; "HugePages_Free:  12", a count.
int64_t MemoryField(const std::string& meminfo, absl::string_view field) {
  for (const absl::string_view line : absl::StrSplit(meminfo, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int64_t number = 0;
    if (words.size() >= 2 && words[0] == field && absl::SimpleAtoi(words[1], &number)) {
      return words.size() == 2 ? number : number * 1024;
    }
  }
  return 0;
}

// "always [madvise] never"
std::string HugePages(const std::string& text) {
  const size_t begin = text.find('[');
  const size_t end = text.find(']');
  return begin < end && end != text.npos ? text.substr(begin + 1, end - begin - 1) : "";
}

std::vector<std::string> Modules(const std::string& text) {
  std::vector<std::string> modules;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    modules.emplace_back(line.substr(0, line.find(' ')));
  }
  return modules;
}

// The last lines of the kernel's log that tell of a GPU. Only root may read it, as a rule.
std::vector<std::string> GpuErrors() {
  std::vector<std::string> lines;
  const int fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return lines;
  char record[8192];
  for (;;) {
    const ssize_t count = read(fd, record, sizeof(record));
    if (count <= 0 && errno == EPIPE) continue;  // older records were written over meanwhile
    if (count <= 0) break;
    const absl::string_view text(record, count);
    if (absl::StrContains(text, "NVRM: Xid")) {
      lines.emplace_back(text.substr(text.find(';') + 1, text.find('\n') - text.find(';') - 1));
    }
  }
  close(fd);
  if (lines.size() > kMostGpuErrors) lines.erase(lines.begin(), lines.end() - kMostGpuErrors);
  return lines;
}

void ReadName(absl::Duration timeout, MachineFacts* facts) {
  const MonotonicTime begin = Clock::Real().Now();
  const auto addresses = rendezvous::ResolveHost(facts->host, timeout);
  facts->name_seconds = absl::ToDoubleSeconds(Clock::Real().Now() - begin);
  if (!addresses.ok()) {
    facts->name_error = std::string(addresses.status().message());
    return;
  }
  for (const rendezvous::ResolvedAddress& address : *addresses) {
    const std::string text = AddressText(address.get());
    if (std::find(facts->name_addresses.begin(), facts->name_addresses.end(), text) ==
        facts->name_addresses.end()) {
      facts->name_addresses.push_back(text);
    }
  }
}

Folder UseFolder(const std::string& path) {
  Folder folder = {.path = path};
  struct statvfs space = {};
  if (statvfs(path.c_str(), &space) != 0) {
    folder.error = std::string(ErrnoStatus(errno, absl::StrCat(path, ": statvfs")).message());
    return folder;
  }
  folder.total_bytes = static_cast<int64_t>(space.f_blocks * space.f_frsize);
  folder.free_bytes = static_cast<int64_t>(space.f_bavail * space.f_frsize);
  const std::string file = absl::StrCat(path, "/.convene-doctor.", getpid());
  absl::Status status = WriteFileAtomic(file, "convene doctor");
  if (status.ok() && Content(file) != "convene doctor") {
    status = absl::DataLossError(absl::StrCat(file, " does not hold what was written"));
  }
  status.Update(RemoveTree(file));
  if (!status.ok()) folder.error = std::string(status.message());
  return folder;
}

// From the child that uses a folder to the one that waits for it.
std::string Text(const Folder& folder) {
  return absl::StrCat(folder.total_bytes, " ", folder.free_bytes, " ", folder.error);
}

Folder ParseFolder(const std::string& path, const std::string& text) {
  Folder folder = {.path = path};
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  if (parts.size() == 3 && absl::SimpleAtoi(parts[0], &folder.total_bytes) &&
      absl::SimpleAtoi(parts[1], &folder.free_bytes)) {
    folder.error = parts[2];
  } else {
    folder.error = absl::StrCat(path, ": the process that tried it has died");
  }
  return folder;
}

}  // namespace

Folder TryFolder(const std::string& path) {
  const auto answer = AskInChild([&] { return Text(UseFolder(path)); }, kFolderTimeout);
  if (!answer.has_value()) {
    return {.path = path,
            .error = absl::StrCat(path, " does not answer within ",
                                  absl::FormatDuration(kFolderTimeout))};
  }
  return ParseFolder(path, *answer);
}

MachineFacts ReadFacts(const FactsOptions& options) {
  MachineFacts facts;
  const std::string& root = options.root;
  utsname system = {};
  uname(&system);
  facts.host = system.nodename;
  facts.cpus = CountUsableCpus();
  const std::string meminfo = Content(root + "/proc/meminfo");
  facts.memory_bytes = MemoryField(meminfo, "MemTotal:");
  facts.available_bytes = MemoryField(meminfo, "MemAvailable:");
  const CgroupLimits limits = ReadCgroupLimits(root);
  facts.memory_bytes =
      std::min(facts.memory_bytes, limits.memory_bytes.value_or(facts.memory_bytes));
  facts.available_bytes =
      std::min(facts.available_bytes, limits.memory_left_bytes.value_or(facts.available_bytes));
  facts.limits = {.locked_bytes = MayLockAnyMemory(root) ? kUnlimited : SoftLimit(RLIMIT_MEMLOCK),
                  .open_files = SoftLimit(RLIMIT_NOFILE),
                  .processes = SoftLimit(RLIMIT_NPROC)};
  facts.folders.push_back(TryFolder(kCurrentFolder));
  for (const std::string& path : options.folders) facts.folders.push_back(TryFolder(path));
  facts.shared_memory = TryFolder("/dev/shm");
  facts.huge_pages = HugePages(Content(root + "/sys/kernel/mm/transparent_hugepage/enabled"));
  facts.free_huge_bytes =
      MemoryField(meminfo, "HugePages_Free:") * MemoryField(meminfo, "Hugepagesize:");
  timex clock = {};
  if (const int state = adjtimex(&clock); state >= 0) {
    facts.clock_is_synchronised = state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
  }
  ReadName(options.name_timeout, &facts);
  facts.interfaces = ReadInterfaces(root);
  facts.rdma_ports = ReadRdmaPorts(root);
  facts.modules = Modules(Content(root + "/proc/modules"));
  facts.gpu_driver = ReadGpuDriver(root, options.gpu_library);
  if (facts.gpu_driver.device_files > 0) {
    facts.gpu_errors = GpuErrors();
    facts.nccl = ReadNcclVersion(options.nccl_library);
  }
  facts.environment = options.environment;
  return facts;
}

}  // namespace convene::agent
