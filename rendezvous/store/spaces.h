// PURE. Finds the keys that no client will ask for any more.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rendezvous/store/table.h"
#include "tools/base/clock.h"

namespace convene::rendezvous {

// A space is the part of a key before its first inner slash: "/torch.rendezvous.run7.0" for
// "/torch.rendezvous.run7.0/torchelastic/agent/0"; a key without one is a space of its own. A
// connection uses each space that it names a key of, until it ends. A store that outlives the jobs
// it serves may drop a space that no client has used for long: PyTorch's client never connects
// again, so a client that comes later is of another job. Not thread-safe.
class Spaces {
 public:
  // `forget_after`: how long a space outlives its last user. Infinite: nothing is ever forgotten,
  // and nothing is kept here.
  explicit Spaces(absl::Duration forget_after) : forget_after_(forget_after) {}

  static absl::string_view SpaceOf(absl::string_view key);
  // The run that pays for a key's bytes: the key's space. Keys that are spaces of their own count
  // together, as the run "".
  static absl::string_view RunOf(absl::string_view key);

  void Use(ConnectionId id, const std::vector<std::string>& keys);
  // `holds`: whether the table has anything of a space; a space without anything is not remembered.
  void Leave(ConnectionId id, MonotonicTime now,
             const std::function<bool(const std::string& space)>& holds);
  // True when the time of some space is over: the caller drops each key that IsForgotten().
  bool Forget(MonotonicTime now);
  bool IsForgotten(absl::string_view key) const { return !spaces_.contains(SpaceOf(key)); }
  // Spaces that are remembered.
  size_t size() const { return spaces_.size(); }

 private:
  // A connection that uses more spaces than this, or spaces with names of more bytes together,
  // counts as a user of all, which bounds the memory.
  static constexpr size_t kSpacesPerConnectionMax = 64;
  static constexpr size_t kNameBytesPerConnectionMax = 16 << 10;

  struct Space {
    size_t users = 0;
    MonotonicTime unused_since;  // when there are none
    bool in_line = false;        // in unused_
  };
  struct Used {  // by one connection
    absl::flat_hash_set<std::string> spaces;
    size_t name_bytes = 0;
  };

  const absl::Duration forget_after_;
  absl::flat_hash_map<std::string, Space> spaces_;
  absl::flat_hash_map<ConnectionId, Used> used_;
  absl::flat_hash_set<ConnectionId> users_of_all_;
  MonotonicTime last_user_of_all_left_;
  bool all_were_used_ = false;      // by connections that left: spaces_ does not know all of theirs
  std::deque<std::string> unused_;  // about in order of time; some may be in use again
};

}  // namespace convene::rendezvous
