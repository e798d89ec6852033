// A note, on this machine and for this user, that a port belongs to a daemon with a memory. It
// outlives a daemon that is killed: until that daemon is back, no other process of this user should
// serve the rendezvous there, because jobs would be told two truths.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace convene::rendezvous {

class PortMark {
 public:
  // A folder in memory where there is one (/dev/shm), so that no note outlives the machine; else
  // /tmp.
  static std::string DefaultFolder();
  // Replaces an earlier note of the port. `memory`: a state directory, or the URL of a journal.
  // Errors: the system's, when the note cannot be written.
  static absl::StatusOr<std::unique_ptr<PortMark>> Leave(
      int port, const std::string& memory, const std::string& folder = DefaultFolder());
  // The memory of the daemon that `port` belongs to; none when there is no note by this user, or
  // the directory has no journal any more.
  static std::optional<std::string> Find(int port, const std::string& folder = DefaultFolder());
  // The note's path, for its removal by hand.
  static std::string PathOf(int port, const std::string& folder = DefaultFolder());

  // Removes the note, since the daemon ends in order and will not be back.
  ~PortMark();
  PortMark(const PortMark&) = delete;
  PortMark& operator=(const PortMark&) = delete;

 private:
  explicit PortMark(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

}  // namespace convene::rendezvous
