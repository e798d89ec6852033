#include "rendezvous/net/resolve.h"

#include <netdb.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {
namespace {

// Everything that getaddrinfo_a() reads and writes. It must outlive a look-up that cannot be
// cancelled.
struct Lookup {
  std::string host;
  std::string service;
  addrinfo hints = {};
  gaicb request = {};

  ~Lookup() {
    if (request.ar_result != nullptr) freeaddrinfo(request.ar_result);
  }
};

std::vector<ResolvedAddress> Collect(const addrinfo* list) {
  std::vector<ResolvedAddress> addresses;
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    ResolvedAddress address;
    std::memcpy(&address.storage, item->ai_addr, item->ai_addrlen);
    address.length = item->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

absl::Status LookupError(const std::string& host, int code) {
  const std::string text = absl::StrCat("cannot resolve host \"", host, "\": ", gai_strerror(code));
  switch (code) {
    case EAI_NONAME:
    case EAI_FAIL:
    case EAI_NODATA:
    case EAI_ADDRFAMILY:
      return absl::InvalidArgumentError(text);
    default:
      return absl::UnavailableError(text);
  }
}

// 0 when the look-up ended, EAI_AGAIN when the time was over.
int WaitFor(const gaicb* request, absl::Duration timeout) {
  const MonotonicTime deadline = Clock::Real().Now() + timeout;
  const gaicb* const requests[] = {request};
  while (gai_error(const_cast<gaicb*>(request)) == EAI_INPROGRESS) {
    const absl::Duration left = deadline - Clock::Real().Now();
    if (left <= absl::ZeroDuration()) return EAI_AGAIN;
    const timespec wait = absl::ToTimespec(std::min(left, absl::Hours(1)));
    gai_suspend(requests, 1, &wait);
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::vector<ResolvedAddress>> ResolveHost(const std::string& host,
                                                         absl::Duration timeout, int port) {
  auto lookup = std::make_unique<Lookup>();
  lookup->host = host;
  lookup->service = absl::StrCat(port);
  lookup->hints.ai_family = AF_UNSPEC;
  lookup->hints.ai_socktype = SOCK_STREAM;
  lookup->hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* numeric = nullptr;
  if (getaddrinfo(host.c_str(), lookup->service.c_str(), &lookup->hints, &numeric) == 0) {
    lookup->request.ar_result = numeric;
    return Collect(numeric);
  }
  lookup->hints.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG;
  lookup->request.ar_name = lookup->host.c_str();
  lookup->request.ar_service = lookup->service.c_str();
  lookup->request.ar_request = &lookup->hints;
  gaicb* requests[] = {&lookup->request};
  if (const int code = getaddrinfo_a(GAI_NOWAIT, requests, 1, nullptr); code != 0) {
    return LookupError(host, code);
  }
  if (WaitFor(&lookup->request, timeout) != 0) {
    if (gai_cancel(&lookup->request) == EAI_NOTCANCELED) {
      (void)lookup.release();  // a thread of the C library still writes to it, and says no more
                               // when it has done
    }
    return absl::DeadlineExceededError(absl::StrCat("cannot resolve host \"", host, "\" within ",
                                                    absl::FormatDuration(timeout),
                                                    ": the name service does not answer"));
  }
  if (const int code = gai_error(&lookup->request); code != 0) return LookupError(host, code);
  return Collect(lookup->request.ar_result);
}

std::vector<ResolvedAddress> InTurn(std::vector<ResolvedAddress> addresses, int turn) {
  if (turn == 0) return addresses;
  std::sort(addresses.begin(), addresses.end(),
            [](const ResolvedAddress& a, const ResolvedAddress& b) {
              return std::memcmp(&a.storage, &b.storage, sizeof(a.storage)) < 0;
            });
  const size_t first = static_cast<size_t>(turn) % addresses.size();
  std::rotate(addresses.begin(), addresses.begin() + static_cast<std::ptrdiff_t>(first),
              addresses.end());
  return addresses;
}

}  // namespace convene::rendezvous
