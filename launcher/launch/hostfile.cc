#include "launcher/launch/hostfile.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "rendezvous/quorum/messages.h"
#include "tools/base/status_macros.h"
#include "tools/base/text.h"

namespace convene::launcher {
namespace {

constexpr size_t kLongestShown = 60;
constexpr size_t kMostNamed = 5;

bool IsHostCharacter(char c) { return absl::ascii_isalnum(c) || absl::StrContains("._-:@%", c); }

// ssh takes a name that begins with a dash for an option, and its configuration may hand a name to
// a shell.
absl::Status CheckHostName(const std::string& name) {
  if (!name.empty() && name[0] != '-' && std::all_of(name.begin(), name.end(), IsHostCharacter)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", absl::CHexEscape(name.substr(0, kLongestShown)),
      "\" is no host name: write letters, digits, dots and dashes, perhaps USER@HOST"));
}

absl::StatusOr<int> ParseSlots(absl::string_view text) {
  int slots = 0;
  if (absl::SimpleAtoi(text, &slots) && slots >= 1 && slots <= rendezvous::kMostWorkersPerNode) {
    return slots;
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", text.substr(0, kLongestShown),
                                                 "\" is no count of slots: write 1 to ",
                                                 rendezvous::kMostWorkersPerNode));
}

// "n1:8" becomes n1 with 8 slots. An IPv6 address has more than one colon.
absl::Status TakeName(const std::string& word, LaunchHost* host) {
  host->name = word;
  if (std::count(word.begin(), word.end(), ':') == 1) {
    const size_t colon = word.find(':');
    host->name = word.substr(0, colon);
    CONVENE_ASSIGN_OR_RETURN(host->slots, ParseSlots(word.substr(colon + 1)));
  }
  return CheckHostName(host->name);
}

absl::StatusOr<LaunchHost> ParseLine(const std::vector<std::string>& words) {
  LaunchHost host;
  CONVENE_RETURN_IF_ERROR(TakeName(words[0], &host));
  for (size_t i = 1; i < words.size(); ++i) {
    absl::string_view value = words[i];
    if (absl::ConsumePrefix(&value, "slots=") && !host.slots.has_value()) {
      CONVENE_ASSIGN_OR_RETURN(host.slots, ParseSlots(value));
    } else if (absl::ConsumePrefix(&value, "max_slots=") ||
               absl::ConsumePrefix(&value, "max-slots=")) {
      // MPI's limit of oversubscription says nothing about how many workers are wanted.
      CONVENE_RETURN_IF_ERROR(ParseSlots(value).status());
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", absl::CHexEscape(words[i].substr(0, kLongestShown)),
                       "\" is not understood: write HOST slots=N, HOST:N or HOST"));
    }
  }
  return host;
}

std::vector<int> Slots(int count) {
  std::vector<int> slots(static_cast<size_t>(count));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

absl::Status NotInList(const std::string& name, const std::vector<LaunchHost>& hosts) {
  std::vector<std::string> known;
  for (const LaunchHost& host : hosts) known.push_back(host.name);
  return absl::InvalidArgumentError(absl::StrCat("there is no host ", name,
                                                 " in the list of hosts, which has ",
                                                 JoinCapped(known, kMostNamed)));
}

// The slots that a part of --include or --exclude names; empty: all of the host.
using Named = std::map<std::string, std::set<int>>;

absl::Status TakeSlots(absl::string_view list, const LaunchHost& host, std::set<int>* slots) {
  for (const absl::string_view word : absl::StrSplit(list, ',')) {
    int slot = 0;
    if (!absl::SimpleAtoi(word, &slot) || slot < 0 ||
        slot >= host.slots.value_or(rendezvous::kMostWorkersPerNode)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", word, "\" is no slot of ", host.name,
          host.slots.has_value() ? absl::StrCat(", whose slots are 0 to ", *host.slots - 1)
                                 : ": write numbers that count from 0"));
    }
    slots->insert(slot);
  }
  return absl::OkStatus();
}

absl::StatusOr<Named> ParseNamed(const std::string& text, const std::vector<LaunchHost>& hosts) {
  const auto find = [&](const std::string& name) {
    return std::find_if(hosts.begin(), hosts.end(),
                        [&](const LaunchHost& host) { return host.name == name; });
  };
  Named named;
  // '@' also stands in USER@HOST, so a part that names no host is the user of the next one.
  std::string user;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, '@'))) {
    const std::string whole = user + part;
    const size_t colon = whole.rfind(':');
    const bool has_slots = find(whole) == hosts.end() && colon != std::string::npos;
    const auto host = find(has_slots ? whole.substr(0, colon) : whole);
    if (host == hosts.end()) {
      const bool may_be_user =
          user.empty() && std::any_of(hosts.begin(), hosts.end(), [&](auto& h) {
            return absl::StartsWith(h.name, part + "@");
          });
      if (!may_be_user) return NotInList(has_slots ? whole.substr(0, colon) : whole, hosts);
      user = part + "@";
      continue;
    }
    user.clear();
    if (named.count(host->name) > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(host->name, " is named twice: write its slots together, HOST:0,1"));
    }
    std::set<int>& slots = named[host->name];
    if (has_slots) {
      CONVENE_RETURN_IF_ERROR(TakeSlots(whole.substr(colon + 1), *host, &slots));
    }
  }
  if (!user.empty()) return NotInList(user, hosts);
  return named;
}

absl::StatusOr<std::vector<LaunchHost>> Include(const std::vector<LaunchHost>& hosts,
                                                const std::string& text) {
  CONVENE_ASSIGN_OR_RETURN(const Named named, ParseNamed(text, hosts));
  std::vector<LaunchHost> left;
  for (LaunchHost host : hosts) {
    const auto found = named.find(host.name);
    if (found == named.end()) continue;
    host.chosen.assign(found->second.begin(), found->second.end());
    left.push_back(std::move(host));
  }
  return left;
}

absl::StatusOr<std::vector<LaunchHost>> Exclude(const std::vector<LaunchHost>& hosts,
                                                const std::string& text) {
  CONVENE_ASSIGN_OR_RETURN(const Named named, ParseNamed(text, hosts));
  std::vector<LaunchHost> left;
  for (LaunchHost host : hosts) {
    const auto found = named.find(host.name);
    if (found == named.end()) {
      left.push_back(std::move(host));
      continue;
    }
    const std::set<int>& out = found->second;
    if (out.empty()) continue;
    if (!host.slots.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the list does not say how many slots ", host.name,
                       " has, so some of them cannot be left out; write ", host.name, " slots=N"));
    }
    for (const int slot : Slots(*host.slots)) {
      if (out.count(slot) == 0) host.chosen.push_back(slot);
    }
    if (!host.chosen.empty()) left.push_back(std::move(host));
  }
  return left;
}

absl::StatusOr<std::vector<LaunchHost>> TakeFirst(std::vector<LaunchHost> hosts,
                                                  const HostChoice& choice) {
  if (choice.num_nodes.has_value()) {
    if (*choice.num_nodes > static_cast<int>(hosts.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--num-nodes ", *choice.num_nodes, ": the list has only ", hosts.size(), " host(s)"));
    }
    hosts.resize(static_cast<size_t>(*choice.num_nodes));
  }
  if (!choice.num_gpus.has_value()) return hosts;
  for (LaunchHost& host : hosts) {
    if (host.slots.has_value() && *host.slots < *choice.num_gpus) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--num-gpus ", *choice.num_gpus, ": ", host.name, " has only ", *host.slots, " slot(s)"));
    }
    host.chosen = Slots(*choice.num_gpus);
  }
  return hosts;
}

}  // namespace

std::string HostOf(const LaunchHost& host) { return host.name.substr(host.name.rfind('@') + 1); }

absl::StatusOr<std::vector<LaunchHost>> ParseHostfile(const std::string& text,
                                                      const std::string& path) {
  std::vector<LaunchHost> hosts;
  std::vector<int> lines;  // of each host
  std::map<std::string, size_t> places;
  int number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    const std::vector<std::string> words = absl::StrSplit(
        line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r\v\f"), absl::SkipEmpty());
    if (words.empty()) continue;
    const std::string where = absl::StrCat(path, ", line ", number);
    absl::StatusOr<LaunchHost> host = ParseLine(words);
    CONVENE_RETURN_IF_ERROR(Annotate(host.status(), where));
    const auto [place, is_new] = places.emplace(host->name, hosts.size());
    if (is_new) {
      hosts.push_back(*std::move(host));
      lines.push_back(1);
      if (hosts.size() > rendezvous::kMostNodesPerJob) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": more than ", rendezvous::kMostNodesPerJob, " hosts"));
      }
      continue;
    }
    if (host->slots.has_value() || hosts[place->second].slots.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": the host ", host->name, " is there twice; write it once, with all its slots"));
    }
    ++lines[place->second];
  }
  const bool repeats = std::any_of(lines.begin(), lines.end(), [](int count) { return count > 1; });
  for (size_t i = 0; repeats && i < hosts.size(); ++i) {
    if (!hosts[i].slots.has_value()) hosts[i].slots = lines[i];
  }
  if (hosts.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": no host is in it"));
  return hosts;
}

absl::StatusOr<std::vector<LaunchHost>> ParseLsfHosts(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipWhitespace());
  std::string lines;
  for (size_t i = 0; i + 1 < words.size(); i += 2) {
    absl::StrAppend(&lines, words[i], " slots=", words[i + 1], "\n");
  }
  if (words.size() % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("LSB_MCPU_HOSTS=", text, ": not a list of hosts with a count each"));
  }
  return ParseHostfile(lines, "LSB_MCPU_HOSTS");
}

absl::StatusOr<std::vector<LaunchHost>> ChooseHosts(std::vector<LaunchHost> hosts,
                                                    const HostChoice& choice) {
  const bool names = !choice.include.empty() || !choice.exclude.empty();
  if (!choice.include.empty() && !choice.exclude.empty()) {
    return absl::InvalidArgumentError(
        "--include says which hosts take part, --exclude which do not: leave one out");
  }
  if (names && (choice.num_nodes.has_value() || choice.num_gpus.has_value())) {
    return absl::InvalidArgumentError(
        "--include and --exclude name hosts and slots, --num-nodes and --num-gpus count them: use "
        "one of the two");
  }
  if (!names) return TakeFirst(std::move(hosts), choice);
  const bool includes = !choice.include.empty();
  const std::string& text = includes ? choice.include : choice.exclude;
  auto left = includes ? Include(hosts, text) : Exclude(hosts, text);
  CONVENE_RETURN_IF_ERROR(Annotate(left.status(), includes ? "--include" : "--exclude"));
  if (left->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--exclude ", text, " leaves no host of the list"));
  }
  return left;
}

}  // namespace convene::launcher
