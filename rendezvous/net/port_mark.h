// A note, on this machine and for this user, that a port belongs to a daemon with a memory. It
// outlives a daemon that is killed: until that one is back, nobody else of this user should begin
// to serve the rendezvous there, because jobs would be told two truths.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace convene::rendezvous {

class PortMark {
 public:
  // In memory where that is (/dev/shm), so that no note outlives the machine; else /tmp.
  static std::string DefaultFolder();
  // Takes the place of an earlier note of the port. The system's error when it cannot be written.
  static absl::StatusOr<std::unique_ptr<PortMark>> Leave(
      int port, const std::string& state_dir, const std::string& folder = DefaultFolder());
  // The state directory of the daemon that `port` belongs to; none when there is no note by this
  // user, or the directory has no journal any more.
  static std::optional<std::string> Find(int port, const std::string& folder = DefaultFolder());
  // To remove by hand.
  static std::string PathOf(int port, const std::string& folder = DefaultFolder());

  // The daemon ends in order, and will not be back: removes the note.
  ~PortMark();
  PortMark(const PortMark&) = delete;
  PortMark& operator=(const PortMark&) = delete;

 private:
  explicit PortMark(std::string path) : path_(std::move(path)) {}

  const std::string path_;
};

}  // namespace convene::rendezvous
