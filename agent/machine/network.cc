#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "agent/machine/read_facts.h"
#include "tools/base/files.h"
#include "tools/base/source_address.h"

namespace convene::agent {
namespace {

constexpr int kMostGids = 256;

std::string Word(const std::string& path) {
  return std::string(absl::StripAsciiWhitespace(ReadFile(path).value_or("")));
}

int64_t Number(const std::string& path, int64_t otherwise) {
  int64_t number = 0;
  return absl::SimpleAtoi(Word(path), &number) ? number : otherwise;
}

std::vector<std::string> Names(const std::string& folder) {
  return ListDirectory(folder).value_or(std::vector<std::string>());
}

// Numeric addresses of each interface that has any.
std::map<std::string, std::vector<std::string>> Addresses() {
  std::map<std::string, std::vector<std::string>> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  const absl::Cleanup free_list = [list] { freeifaddrs(list); };
  for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const std::string text = AddressText(each->ifa_addr);
    if (!text.empty() && !absl::StartsWith(text, "fe80")) addresses[each->ifa_name].push_back(text);
  }
  return addresses;
}

std::vector<Gid> ReadGids(const std::string& port) {
  constexpr char kUnset[] = "0000:0000:0000:0000:0000:0000:0000:0000";
  std::vector<Gid> gids;
  for (int index = 0; index < kMostGids; ++index) {
    const std::string value = Word(absl::StrCat(port, "/gids/", index));
    if (value.empty()) break;
    if (value == kUnset) continue;
    gids.push_back({.index = index,
                    .type = Word(absl::StrCat(port, "/gid_attrs/types/", index)),
                    .is_ipv4 = absl::StartsWith(value, "0000:0000:0000:0000:0000:ffff:"),
                    .interface = Word(absl::StrCat(port, "/gid_attrs/ndevs/", index))});
  }
  return gids;
}

}  // namespace

std::vector<Interface> ReadInterfaces(const std::string& root) {
  const std::string folder = root + "/sys/class/net";
  const auto addresses = Addresses();
  std::vector<Interface> interfaces;
  for (const std::string& name : Names(folder)) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (!IsDirectory(path)) continue;  // bonding_masters is a file
    // Loopback and tunnels have no carrier to tell of: "unknown".
    const std::string state = Word(path + "/operstate");
    Interface interface = {.name = name,
                           .is_up = state == "up" || state == "unknown",
                           .is_virtual = !IsDirectory(path + "/device"),
                           .mtu = static_cast<int>(Number(path + "/mtu", 0)),
                           .megabits = std::max<int64_t>(0, Number(path + "/speed", 0)),
                           .numa_node = static_cast<int>(Number(path + "/device/numa_node", -1))};
    const auto found = addresses.find(name);
    if (found != addresses.end()) interface.addresses = found->second;
    interfaces.push_back(std::move(interface));
  }
  return interfaces;
}

std::vector<RdmaPort> ReadRdmaPorts(const std::string& root) {
  const std::string folder = root + "/sys/class/infiniband";
  std::vector<RdmaPort> ports;
  for (const std::string& device : Names(folder)) {
    const std::string path = absl::StrCat(folder, "/", device);
    for (const std::string& number : Names(path + "/ports")) {
      const std::string port = absl::StrCat(path, "/ports/", number);
      // "4: ACTIVE"
      const std::string state = Word(port + "/state");
      RdmaPort found = {.device = device,
                        .state = state.substr(std::min(state.size(), state.find(' ') + 1)),
                        .rate = Word(port + "/rate"),
                        .is_ethernet = Word(port + "/link_layer") == "Ethernet",
                        .numa_node = static_cast<int>(Number(path + "/device/numa_node", -1)),
                        .gids = ReadGids(port)};
      if (absl::SimpleAtoi(number, &found.port)) ports.push_back(std::move(found));
    }
  }
  return ports;
}

}  // namespace convene::agent
