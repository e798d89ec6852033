#include "worker_runtime/comm/nccl/transport_summary.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace convene::worker {
namespace {

// Numbered network devices of this machine, as NCCL found them.
using Devices = std::map<int, std::string>;

struct Seen {
  std::vector<std::string> order;             // transports, as they came up
  std::map<std::string, int> channels;        // by transport
  std::map<std::string, Devices> found;       // by network: "IB", "Socket"
  std::map<std::string, std::set<int>> used;  // device numbers, by transport
  bool nvls = false;
  bool has_no_infiniband = false;  // NCCL looked, and found none
};

// "[0]mlx5_0:1/RoCE [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>" -> {0: mlx5_0, 1: mlx5_1}.
Devices ParseDevices(absl::string_view text) {
  Devices devices;
  for (const absl::string_view word :
       absl::StrSplit(text.substr(0, text.find(';')), ' ', absl::SkipEmpty())) {
    const size_t close = word.find(']');
    int number = 0;
    if (word[0] != '[' || close == absl::string_view::npos ||
        !absl::SimpleAtoi(word.substr(1, close - 1), &number)) {
      continue;
    }
    const absl::string_view name = word.substr(close + 1);
    devices[number] = std::string(name.substr(0, name.find(':')));
  }
  return devices;
}

// "NET/IB/0/GDRDMA", "P2P/CUMEM/read", "P2P/direct pointer", "SHM/direct/direct".
void CountChannel(absl::string_view via, Seen& seen) {
  const std::vector<absl::string_view> parts = absl::StrSplit(via, '/');
  if (parts[0].empty()) return;
  std::string transport(parts[0]);
  const bool network = parts[0] == "NET";
  if (parts.size() > 1 && (network || parts[0] == "P2P"))
    absl::StrAppend(&transport, "/", parts[1]);
  if (network && absl::StrContains(via, "/GDRDMA")) absl::StrAppend(&transport, "/GDRDMA");
  int device = 0;
  // "0(3)": by way of the GPU of another rank.
  if (network && parts.size() > 2 &&
      absl::SimpleAtoi(parts[2].substr(0, parts[2].find('(')), &device)) {
    seen.used[transport].insert(device);
  }
  if (seen.channels[transport]++ == 0) seen.order.push_back(transport);
}

constexpr absl::string_view kInfo = "NCCL INFO ";

// The line's text behind these words; "" where it has them not.
absl::string_view TextBehind(absl::string_view words, absl::string_view line) {
  const size_t start = line.find(words);
  return start == absl::string_view::npos ? "" : line.substr(start + words.size());
}

// Formats as in NCCL 2.28.9's own strings, and in its older logs.
void ReadLine(absl::string_view line, Seen& seen) {
  const absl::string_view text = TextBehind(kInfo, line);
  if (absl::StartsWith(text, "NET/IB : No device found")) seen.has_no_infiniband = true;
  constexpr absl::string_view kUsing = " : Using";
  const size_t list = text.find(kUsing);
  if (absl::StartsWith(text, "NET/") && list != absl::string_view::npos) {
    const std::string network(text.substr(4, list - 4));
    seen.found[network] = ParseDevices(text.substr(list + kUsing.size()));
    return;
  }
  constexpr absl::string_view kVia = " via ";
  const size_t via = text.find(kVia);
  if (absl::StartsWith(text, "Channel ") && via != absl::string_view::npos) {
    // A network connection is logged at both ends.
    if (absl::StrContains(text, "[receive]")) return;
    CountChannel(text.substr(via + kVia.size()), seen);
    return;
  }
  // "NVLS multicast support is available" says only that the devices could use it, not that they
  // do.
  if (absl::StartsWith(text, "Connected NVLS tree") || absl::StartsWith(text, "NVLS comm ")) {
    seen.nvls = true;
  }
}

std::string NamesOf(const Devices& devices) {
  std::set<std::string> names;
  for (const auto& device : devices) names.insert(device.second);
  return absl::StrJoin(names, ", ");
}

// " over mlx5_0, mlx5_1"; empty when their names are not known.
std::string Over(const Seen& seen, const std::string& transport) {
  const std::vector<std::string> parts = absl::StrSplit(transport, '/');
  const auto found = parts.size() > 1 ? seen.found.find(parts[1]) : seen.found.end();
  const auto used = seen.used.find(transport);
  if (found == seen.found.end() || used == seen.used.end()) return "";
  Devices devices;
  for (const int number : used->second) {
    // Ports that NCCL joined have numbers beyond the list.
    const auto device = found->second.find(number);
    if (device != found->second.end()) devices.insert(*device);
  }
  return devices.empty() ? "" : absl::StrCat(" over ", NamesOf(devices));
}

std::string WarningOf(const Seen& seen) {
  if (seen.channels.count("NET/Socket") == 0) return "";
  const std::string sockets =
      absl::StrCat("GPU traffic goes through TCP sockets", Over(seen, "NET/Socket"),
                   ", by way of the host's memory");
  const auto infiniband = seen.found.find("IB");
  if (infiniband != seen.found.end() && !infiniband->second.empty()) {
    return absl::StrCat(sockets, ", although there is ", NamesOf(infiniband->second),
                        ": see NCCL_NET, NCCL_IB_DISABLE, and that all nodes see such devices");
  }
  if (!seen.has_no_infiniband) {
    return absl::StrCat(sockets,
                        ": NCCL did not look for InfiniBand or RoCE; see NCCL_NET, "
                        "NCCL_IB_DISABLE, and that libibverbs is there");
  }
  return absl::StrCat(sockets,
                      ": no InfiniBand or RoCE device was found; see NCCL_IB_HCA, and in a "
                      "container that /dev/infiniband is there");
}

}  // namespace

TransportSummary SummarizeTransports(absl::string_view log, const std::string& nccl_version) {
  Seen seen;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) ReadLine(line, seen);
  // Networks go last.
  std::stable_partition(seen.order.begin(), seen.order.end(), [](const std::string& transport) {
    return !absl::StartsWith(transport, "NET/");
  });
  std::vector<std::string> parts;
  bool nvls_said = !seen.nvls;
  for (const std::string& transport : seen.order) {
    if (absl::StartsWith(transport, "NET/") && !nvls_said) {
      parts.push_back("NVLS");
      nvls_said = true;
    }
    parts.push_back(
        absl::StrCat(seen.channels[transport], " x ", transport, Over(seen, transport)));
  }
  if (!nvls_said) parts.push_back("NVLS");
  if (parts.empty()) parts.push_back("no channels in its log");
  return {.line = absl::StrCat("NCCL ", nccl_version, ": ", absl::StrJoin(parts, ", ")),
          .warning = WarningOf(seen)};
}

std::string ExplainFailure(absl::string_view log) {
  constexpr size_t kWarningsMax = 3;
  constexpr size_t kWarningBytesMax = 200;
  std::string interface;
  std::vector<std::string> warnings;  // the newest last
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    const absl::string_view info = TextBehind(kInfo, line);
    if (absl::StartsWith(info, "Bootstrap")) {
      const absl::string_view chosen = absl::StripAsciiWhitespace(TextBehind(": Using", info));
      if (!chosen.empty()) interface = std::string(chosen);
    }
    // A connection that fails is told as information for as long as NCCL tries again.
    const absl::string_view said =
        absl::StrContains(info, ", retrying") ? info : TextBehind("NCCL WARN ", line);
    if (said.empty()) continue;
    std::string warning(said.substr(0, kWarningBytesMax));
    warnings.erase(std::remove(warnings.begin(), warnings.end(), warning), warnings.end());
    warnings.push_back(std::move(warning));
    if (warnings.size() > kWarningsMax) warnings.erase(warnings.begin());
  }
  std::vector<std::string> parts;
  if (!interface.empty()) {
    parts.push_back(absl::StrCat("NCCL chose the network interface ", interface,
                                 " (NCCL_SOCKET_IFNAME is how to choose)"));
  }
  if (!warnings.empty()) {
    parts.push_back(absl::StrCat("its last warnings: ", absl::StrJoin(warnings, "; ")));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace convene::worker
