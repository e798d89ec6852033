#include "rendezvous/net/epoll.h"

#include <sys/epoll.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {

absl::Status WatchInEpoll(int epoll, int operation, int fd, uint32_t events, uint64_t id,
                          absl::string_view whose) {
  epoll_event event = {};
  event.events = events;
  event.data.u64 = id;
  if (epoll_ctl(epoll, operation, fd, &event) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("epoll_ctl of ", whose));
}

}  // namespace convene::rendezvous
