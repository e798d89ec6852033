// Bytes on their way to one connection.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace convene::rendezvous {

// A first-in-first-out of bytes. Large texts are shared with their owner, not copied: a thousand
// readers of one 8 MiB text cost a thousand pointers. Not thread-safe.
class SendQueue {
 public:
  using Text = std::shared_ptr<const std::string>;

  void Append(absl::string_view bytes);
  void Append(const Text& text);

  bool empty() const { return bytes_ == 0; }
  size_t bytes() const { return bytes_; }
  // The memory of its own: texts that are not shared, and a place for each one that is.
  size_t held_bytes() const { return copied_bytes_ + segments_.size() * sizeof(Segment); }

  // Fills up to `capacity` vectors with the first bytes; returns how many. Valid until the next
  // Append or Consume.
  int Peek(iovec* vectors, int capacity) const;
  // Drops the first `count` bytes. REQUIRES: count <= bytes().
  void Consume(size_t count);
  // Sends and drops what the non-blocking socket takes. False when the connection is broken.
  bool SendTo(int fd);

 private:
  // Either `copied` or `shared` holds the bytes.
  struct Segment {
    std::string copied;
    Text shared;
    absl::string_view text() const { return shared != nullptr ? *shared : copied; }
  };
  std::deque<Segment> segments_;  // none empty
  size_t front_offset_ = 0;       // bytes of the first segment that were consumed
  size_t bytes_ = 0;
  size_t copied_bytes_ = 0;
};

}  // namespace convene::rendezvous
