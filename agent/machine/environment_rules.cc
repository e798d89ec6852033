#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/machine/diagnose.h"
#include "tools/base/text.h"

namespace convene::agent {
namespace {

using Findings = std::vector<Finding>;

// Names that do nothing today, and what took their place.
struct Obsolete {
  const char* name;
  const char* instead;
};
constexpr Obsolete kObsolete[] = {
    {"NCCL_ASYNC_ERROR_HANDLING", "PyTorch reads TORCH_NCCL_ASYNC_ERROR_HANDLING"},
    {"NCCL_BLOCKING_WAIT", "PyTorch reads TORCH_NCCL_BLOCKING_WAIT"},
    {"NCCL_DESYNC_DEBUG", "PyTorch reads TORCH_NCCL_DESYNC_DEBUG"},
    {"NCCL_IBEXT_DISABLE", "NCCL's own plugin is left out by NCCL_NET_PLUGIN=none"},
    {"NCCL_IB_CUDA_SUPPORT", "NCCL reads NCCL_NET_GDR_LEVEL"},
    {"NCCL_LL_THRESHOLD", "NCCL chooses by itself; NCCL_PROTO forces a protocol"},
    {"NCCL_MAX_NRINGS", "NCCL reads NCCL_MAX_NCHANNELS"},
    {"NCCL_MIN_NRINGS", "NCCL reads NCCL_MIN_NCHANNELS"},
    {"NCCL_TREE_THRESHOLD", "NCCL chooses by itself; NCCL_ALGO forces an algorithm"},
};

// The documented names that people set, for slips of the pen.
constexpr const char* kKnown[] = {"NCCL_ALGO",
                                  "NCCL_BUFFSIZE",
                                  "NCCL_CHECKS_DISABLE",
                                  "NCCL_COLLNET_ENABLE",
                                  "NCCL_COMM_BLOCKING",
                                  "NCCL_CROSS_NIC",
                                  "NCCL_CUMEM_ENABLE",
                                  "NCCL_DEBUG",
                                  "NCCL_DEBUG_FILE",
                                  "NCCL_DEBUG_SUBSYS",
                                  "NCCL_DMABUF_ENABLE",
                                  "NCCL_GRAPH_REGISTER",
                                  "NCCL_HOSTID",
                                  "NCCL_IB_ADAPTIVE_ROUTING",
                                  "NCCL_IB_DISABLE",
                                  "NCCL_IB_GID_INDEX",
                                  "NCCL_IB_HCA",
                                  "NCCL_IB_MERGE_NICS",
                                  "NCCL_IB_PCI_RELAXED_ORDERING",
                                  "NCCL_IB_PKEY",
                                  "NCCL_IB_QPS_PER_CONNECTION",
                                  "NCCL_IB_RETRY_CNT",
                                  "NCCL_IB_ROCE_VERSION_NUM",
                                  "NCCL_IB_SL",
                                  "NCCL_IB_TC",
                                  "NCCL_IB_TIMEOUT",
                                  "NCCL_IGNORE_CPU_AFFINITY",
                                  "NCCL_LAUNCH_MODE",
                                  "NCCL_MAX_CTAS",
                                  "NCCL_MAX_NCHANNELS",
                                  "NCCL_MIN_CTAS",
                                  "NCCL_MIN_NCHANNELS",
                                  "NCCL_MNNVL_ENABLE",
                                  "NCCL_NET",
                                  "NCCL_NET_GDR_LEVEL",
                                  "NCCL_NET_GDR_READ",
                                  "NCCL_NET_PLUGIN",
                                  "NCCL_NSOCKS_PERTHREAD",
                                  "NCCL_NTHREADS",
                                  "NCCL_NVB_DISABLE",
                                  "NCCL_NVLS_ENABLE",
                                  "NCCL_P2P_DISABLE",
                                  "NCCL_P2P_LEVEL",
                                  "NCCL_PROTO",
                                  "NCCL_PXN_DISABLE",
                                  "NCCL_RAS_ENABLE",
                                  "NCCL_RUNTIME_CONNECT",
                                  "NCCL_SHM_DISABLE",
                                  "NCCL_SOCKET_FAMILY",
                                  "NCCL_SOCKET_IFNAME",
                                  "NCCL_SOCKET_NTHREADS",
                                  "NCCL_TOPO_DUMP_FILE",
                                  "NCCL_TOPO_FILE",
                                  "NCCL_TUNER_PLUGIN"};

// Names whose values are words.
struct Choice {
  const char* name;
  const char* words;  // with '|' between them; ALGO and PROTO take lists of them
};
constexpr Choice kChoices[] = {
    {"NCCL_ALGO", "Tree|Ring|Collnet|CollnetDirect|CollnetChain|NVLS|NVLSTree|PAT"},
    {"NCCL_DEBUG", "VERSION|WARN|INFO|TRACE|ABORT|ATTN"},
    {"NCCL_NET_GDR_LEVEL", "LOC|PIX|PXB|PHB|SYS|0|1|2|3|4|5"},
    {"NCCL_P2P_LEVEL", "LOC|NVL|PIX|PXB|PHB|SYS|0|1|2|3|4|5"},
    {"NCCL_PROTO", "LL|LL128|Simple"},
};

// Switches that make training slow or blind where they stand at this value.
struct Costly {
  const char* name;
  const char* value;
  const char* why;
};
constexpr Costly kCostly[] = {
    {"CUDA_LAUNCH_BLOCKING", "1", "each kernel waits for the one before: for finding errors alone"},
    {"NCCL_P2P_DISABLE", "1", "data between the GPUs of a node go through the host's memory"},
    {"NCCL_SHM_DISABLE", "1", "the ranks of a node talk over the network"},
    {"TORCH_DISTRIBUTED_DEBUG", "DETAIL", "each collective is checked by another one"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", "a rank that waits for a dead one waits for ever"},
};

std::optional<std::string> Get(const MachineFacts& facts, const std::string& name) {
  const auto found = facts.environment.find(name);
  if (found == facts.environment.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

void Add(Severity severity, const std::string& name, const std::string& value,
         const std::string& why, const std::string& advice, Findings* findings) {
  findings->push_back(
      {severity, "environment", Utf8(absl::StrCat(name, "=", value), 200), why, advice});
}

void CheckNames(const MachineFacts& facts, Findings* findings) {
  const std::vector<std::string> known(std::begin(kKnown), std::end(kKnown));
  for (const auto& [name, value] : facts.environment) {
    const auto* const obsolete =
        std::find_if(std::begin(kObsolete), std::end(kObsolete),
                     [&name = name](const Obsolete& each) { return name == each.name; });
    if (obsolete != std::end(kObsolete)) {
      Add(Severity::kWarning, name, value, "no library reads it today",
          absl::StrCat("take it out; ", obsolete->instead), findings);
      continue;
    }
    if (!absl::StartsWith(name, "NCCL_") ||
        std::find(known.begin(), known.end(), name) != known.end()) {
      continue;
    }
    const std::string near = ClosestMatch(name, known);
    // Many names are real and not in the list: only one whose letters are nearly another's is told.
    if (near.empty() || near.size() != name.size()) continue;
    const auto differences = std::inner_product(near.begin(), near.end(), name.begin(), 0,
                                                std::plus<>(), std::not_equal_to<>());
    if (differences > 2) continue;
    Add(Severity::kNote, name, value, "it is no documented variable of NCCL",
        absl::StrCat("did you mean ", near, "?"), findings);
  }
}

void CheckValues(const MachineFacts& facts, Findings* findings) {
  for (const Choice& choice : kChoices) {
    const std::optional<std::string> value = Get(facts, choice.name);
    // A list of words, or rules a collective ("allreduce:ring"), which only NCCL can judge.
    if (!value.has_value() || absl::StrContains(*value, ':')) continue;
    const std::vector<std::string> words = absl::StrSplit(choice.words, '|');
    for (absl::string_view given :
         absl::StrSplit(absl::StripPrefix(*value, "^"), absl::ByAnyChar(",;"))) {
      const bool is_known = std::any_of(words.begin(), words.end(), [&](const std::string& word) {
        return absl::EqualsIgnoreCase(word, given);
      });
      if (is_known) continue;
      Add(Severity::kWarning, choice.name, *value, "NCCL ignores it or stops at it",
          absl::StrCat("it takes ", absl::StrReplaceAll(choice.words, {{"|", ", "}})), findings);
      break;
    }
  }
  for (const Costly& costly : kCostly) {
    if (Get(facts, costly.name) != std::string(costly.value)) continue;
    Add(Severity::kWarning, costly.name, costly.value, costly.why,
        "take it out for a run that counts", findings);
  }
}

// NCCL's lists: "^a,b" all but these, "=a" these names whole, else their beginnings
// (NCCL_SOCKET_IFNAME, NCCL_IB_HCA).
bool IsChosen(absl::string_view rule, const std::string& name) {
  const bool is_left_out = absl::ConsumePrefix(&rule, "^");
  const bool is_whole = absl::ConsumePrefix(&rule, "=");
  for (absl::string_view item : absl::StrSplit(rule, ',', absl::SkipEmpty())) {
    item = item.substr(0, item.find(':'));
    if (is_whole ? name == item : absl::StartsWith(name, item)) return !is_left_out;
  }
  return is_left_out;
}

void CheckInterfaceNames(const MachineFacts& facts, Findings* findings) {
  if (facts.interfaces.empty()) return;  // They could not be read: each machine has a loopback.
  const auto is_there = [&](const auto& takes) {
    return std::any_of(facts.interfaces.begin(), facts.interfaces.end(),
                       [&](const Interface& each) { return each.is_up && takes(each.name); });
  };
  if (const auto rule = Get(facts, "NCCL_SOCKET_IFNAME");
      rule.has_value() &&
      !is_there([&](const std::string& name) { return IsChosen(*rule, name); })) {
    Add(Severity::kError, "NCCL_SOCKET_IFNAME", *rule, "no interface that is up has such a name",
        "ip -brief address lists them", findings);
  }
  const auto rule = Get(facts, "GLOO_SOCKET_IFNAME");
  if (!rule.has_value()) return;
  for (const absl::string_view item : absl::StrSplit(*rule, ',')) {
    if (is_there([&](const std::string& name) { return name == item; })) continue;
    Add(Severity::kError, "GLOO_SOCKET_IFNAME", *rule,
        absl::StrCat("no interface that is up is called ", item), "ip -brief address lists them",
        findings);
    return;
  }
}

void CheckRdmaChoice(const MachineFacts& facts, Findings* findings) {
  std::vector<const RdmaPort*> active;
  for (const RdmaPort& port : facts.rdma_ports) {
    if (port.state == "ACTIVE") active.push_back(&port);
  }
  if (active.empty()) return;
  const std::string example = active.front()->device;
  if (Get(facts, "NCCL_IB_DISABLE") == "1") {
    Add(Severity::kWarning, "NCCL_IB_DISABLE", "1",
        absl::StrCat("NCCL leaves ", example, " and the like unused and takes plain sockets"),
        "take it out", findings);
  }
  if (Get(facts, "NCCL_NET") == "Socket") {
    Add(Severity::kWarning, "NCCL_NET", "Socket",
        absl::StrCat("NCCL leaves ", example, " and the like unused"), "take it out", findings);
  }
  if (const auto rule = Get(facts, "NCCL_IB_HCA");
      rule.has_value() && std::none_of(active.begin(), active.end(), [&](const RdmaPort* port) {
        return IsChosen(*rule, port->device);
      })) {
    Add(Severity::kError, "NCCL_IB_HCA", *rule, "no active card has such a name",
        absl::StrCat("ls /sys/class/infiniband lists them, for example ", example), findings);
  }
  const auto index = Get(facts, "NCCL_IB_GID_INDEX");
  int number = 0;
  if (!index.has_value() || !absl::SimpleAtoi(*index, &number) || number < 0) return;
  for (const RdmaPort* const port : active) {
    const auto gid = std::find_if(port->gids.begin(), port->gids.end(),
                                  [&](const Gid& each) { return each.index == number; });
    const bool fits = gid != port->gids.end() && (!port->is_ethernet || gid->type == "RoCE v2");
    if (fits) continue;
    Add(Severity::kError, "NCCL_IB_GID_INDEX", *index,
        absl::StrCat(port->device, ":", port->port, " has ",
                     gid == port->gids.end() ? "no address" : gid->type, " at this index"),
        "take it out: NCCL finds the right one by itself since 2.21", findings);
    return;
  }
}

}  // namespace

std::vector<Finding> DiagnoseEnvironment(const MachineFacts& facts) {
  Findings findings;
  CheckNames(facts, &findings);
  CheckValues(facts, &findings);
  CheckInterfaceNames(facts, &findings);
  CheckRdmaChoice(facts, &findings);
  if (findings.empty()) {
    findings.push_back({Severity::kGood, "environment", "nothing in it stands in the way"});
  }
  return findings;
}

}  // namespace convene::agent
