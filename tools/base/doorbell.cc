#include "tools/base/doorbell.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>

#include "tools/base/check.h"

namespace convene {

Doorbell::Doorbell() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

absl::Status Doorbell::Attach(EventLoop& loop, std::function<void()> on_ring) const {
  if (!event_.valid()) return absl::ResourceExhaustedError("no descriptor is left for an eventfd");
  return loop.Add(event_.get(), EPOLLIN,
                  [fd = event_.get(), on_ring = std::move(on_ring)](uint32_t) {
                    uint64_t rings = 0;
                    if (read(fd, &rings, sizeof(rings)) == sizeof(rings)) on_ring();
                  });
}

void Doorbell::Ring() const {
  if (!event_.valid()) return;  // nobody is attached
  const uint64_t one = 1;
  CONVENE_CHECK(write(event_.get(), &one, sizeof(one)) == sizeof(one));
}

}  // namespace convene
