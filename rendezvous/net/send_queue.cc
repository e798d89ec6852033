#include "rendezvous/net/send_queue.h"

#include <sys/socket.h>

#include <cerrno>

#include "tools/base/check.h"

namespace convene::rendezvous {
namespace {

// Below this a copy is cheaper than a segment of its own.
constexpr size_t kSharedBytesMin = 512;
// A segment that is sent gives its memory back, so one does not grow without end.
constexpr size_t kCopiedSegmentBytes = 64 << 10;

}  // namespace

void SendQueue::Append(absl::string_view bytes) {
  if (bytes.empty()) return;
  if (segments_.empty() || segments_.back().shared != nullptr ||
      segments_.back().copied.size() >= kCopiedSegmentBytes) {
    segments_.emplace_back();
  }
  segments_.back().copied.append(bytes.data(), bytes.size());
  bytes_ += bytes.size();
  copied_bytes_ += bytes.size();
}

void SendQueue::Append(const Text& text) {
  if (text->size() < kSharedBytesMin) return Append(absl::string_view(*text));
  segments_.push_back({"", text});
  bytes_ += text->size();
}

int SendQueue::Peek(iovec* vectors, int capacity) const {
  int count = 0;
  size_t skip = front_offset_;
  for (const Segment& segment : segments_) {
    if (count == capacity) break;
    const absl::string_view text = segment.text().substr(skip);
    skip = 0;
    vectors[count++] = {const_cast<char*>(text.data()), text.size()};
  }
  return count;
}

void SendQueue::Consume(size_t count) {
  CONVENE_CHECK(count <= bytes_);
  bytes_ -= count;
  front_offset_ += count;
  while (!segments_.empty() && front_offset_ >= segments_.front().text().size()) {
    front_offset_ -= segments_.front().text().size();
    copied_bytes_ -= segments_.front().copied.size();
    segments_.pop_front();
  }
}

bool SendQueue::SendTo(int fd) {
  while (!empty()) {
    iovec vectors[64];
    msghdr message = {};
    message.msg_iov = vectors;
    message.msg_iovlen = static_cast<size_t>(Peek(vectors, 64));
    // Nearly always one: for that, send() is the kernel's shorter way.
    const ssize_t sent = message.msg_iovlen == 1
                             ? send(fd, vectors[0].iov_base, vectors[0].iov_len, MSG_NOSIGNAL)
                             : sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent >= 0) {
      Consume(static_cast<size_t>(sent));
    } else if (errno != EINTR) {
      return errno == EAGAIN;
    }
  }
  return true;
}

}  // namespace convene::rendezvous
