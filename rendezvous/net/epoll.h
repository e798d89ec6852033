// One descriptor of an epoll set.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace convene::rendezvous {

// epoll_ctl(2): `operation` EPOLL_CTL_ADD or EPOLL_CTL_MOD; events of `fd` come with `id` as
// data.u64. Errors are the system's own; `whose` names the set in their text.
absl::Status WatchInEpoll(int epoll, int operation, int fd, uint32_t events, uint64_t id,
                          absl::string_view whose);

}  // namespace convene::rendezvous
