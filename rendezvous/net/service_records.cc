#include "rendezvous/net/service_records.h"

#include <arpa/nameser.h>
#include <netdb.h>
#include <resolv.h>

#include <algorithm>
#include <tuple>
#include <type_traits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr int kPatienceS = 2;  // with one server, in one of kRounds
constexpr int kRounds = 2;
constexpr int kFixedBytes = 3 * NS_INT16SZ;  // of a record, before its host
constexpr size_t kLongestAnswer = 65535;

struct Record {
  int priority = 0;
  int weight = 0;
  HostPort place;
};

// A name of DNS may have any bytes; of a host these are enough, and harmless in a log.
bool IsHostName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
  });
}

absl::Status NoAnswer(const std::string& endpoint, int error) {
  const std::string text = absl::StrCat(
      "the name service has no SRV records for ", endpoint, ": ", hstrerror(error),
      ". Look at them with `host -t SRV NAME`, or write the daemons as HOST:PORT,HOST:PORT");
  return error == TRY_AGAIN ? absl::UnavailableError(text) : absl::InvalidArgumentError(text);
}

}  // namespace

bool IsService(absl::string_view endpoint) { return absl::StartsWith(endpoint, kServicePrefix); }

absl::StatusOr<std::vector<HostPort>> ParseServiceAnswer(absl::string_view message) {
  const auto* const bytes = reinterpret_cast<const unsigned char*>(message.data());
  ns_msg answer = {};
  if (message.size() > kLongestAnswer ||
      ns_initparse(bytes, static_cast<int>(message.size()), &answer) != 0) {
    return absl::InvalidArgumentError("the name service's answer makes no sense");
  }
  std::vector<Record> records;
  for (int i = 0; i < ns_msg_count(answer, ns_s_an); ++i) {
    ns_rr found = {};
    if (ns_parserr(&answer, ns_s_an, i, &found) != 0) {
      return absl::InvalidArgumentError("the name service's answer is cut off");
    }
    if (ns_rr_type(found) != ns_t_srv) continue;  // a CNAME on the way
    char host[NS_MAXDNAME] = {};
    const unsigned char* const data = ns_rr_rdata(found);
    if (ns_rr_rdlen(found) <= kFixedBytes ||
        dn_expand(ns_msg_base(answer), ns_msg_end(answer), data + kFixedBytes, host, sizeof(host)) <
            0) {
      return absl::InvalidArgumentError("an SRV record of the name service has no host");
    }
    const int port = static_cast<int>(ns_get16(data + 2 * NS_INT16SZ));
    // The host "." says that there is no such service.
    if (!IsHostName(host) || port == 0) continue;
    records.push_back({static_cast<int>(ns_get16(data)),
                       static_cast<int>(ns_get16(data + NS_INT16SZ)),
                       {host, port}});
  }
  // Every agent is to have the same order, whatever the order of the answer.
  std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) {
    return std::tie(a.priority, b.weight, a.place.host, a.place.port) <
           std::tie(b.priority, a.weight, b.place.host, b.place.port);
  });
  std::vector<HostPort> places;
  for (const Record& record : records) {
    const bool is_new = std::find(places.begin(), places.end(), record.place) == places.end();
    if (is_new && places.size() < kMostServiceRecords) places.push_back(record.place);
  }
  if (places.empty()) return absl::NotFoundError("no SRV record names a host");
  return places;
}

absl::StatusOr<std::string> ResolveService(const std::string& endpoint) {
  if (!IsService(endpoint)) return endpoint;
  const std::string name = endpoint.substr(kServicePrefix.size() - 1);
  if (!IsHostName(name)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", endpoint, "\" names no service: write srv:_convene._tcp.DOMAIN"));
  }
  std::remove_pointer_t<res_state> state = {};
  if (res_ninit(&state) != 0) {
    return absl::UnavailableError("the resolver of the C library does not start");
  }
  state.retrans = kPatienceS;
  state.retry = kRounds;
  std::string message(kLongestAnswer, '\0');
  const int length = res_nquery(&state, name.c_str(), ns_c_in, ns_t_srv,
                                reinterpret_cast<unsigned char*>(message.data()),
                                static_cast<int>(message.size()));
  const int error = state.res_h_errno;
  res_nclose(&state);
  if (length < 0) return NoAnswer(endpoint, error);
  message.resize(std::min(static_cast<size_t>(length), message.size()));
  const auto places = ParseServiceAnswer(message);
  if (!places.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(endpoint, ": ", std::string(places.status().message())));
  }
  return absl::StrJoin(*places, ",", [](std::string* out, const HostPort& place) {
    absl::StrAppend(out, FormatHostPort(place.host, place.port));
  });
}

}  // namespace convene::rendezvous
