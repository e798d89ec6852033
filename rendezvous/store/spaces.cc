#include "rendezvous/store/spaces.h"

#include <utility>

namespace convene::rendezvous {

absl::string_view Spaces::SpaceOf(absl::string_view key) {
  return key.substr(0, key.find('/', 1));  // the first slash is PyTorch's client's own
}

absl::string_view Spaces::RunOf(absl::string_view key) {
  const absl::string_view space = SpaceOf(key);
  return space.size() == key.size() ? "" : space;
}

void Spaces::Use(ConnectionId id, const std::vector<std::string>& keys) {
  if (forget_after_ == absl::InfiniteDuration() || users_of_all_.contains(id)) return;
  Used& used = used_[id];
  for (const std::string& key : keys) {
    const absl::string_view space = SpaceOf(key);
    if (used.spaces.contains(space)) continue;
    if (used.spaces.size() == kSpacesPerConnectionMax ||
        used.name_bytes + space.size() > kNameBytesPerConnectionMax) {
      users_of_all_.insert(id);
      return;
    }
    used.spaces.emplace(space);
    used.name_bytes += space.size();
    ++spaces_.try_emplace(space).first->second.users;
  }
}

void Spaces::Leave(ConnectionId id, MonotonicTime now,
                   const std::function<bool(const std::string& space)>& holds) {
  if (users_of_all_.erase(id) > 0) {
    all_were_used_ = true;
    last_user_of_all_left_ = now;
  }
  const auto used = used_.find(id);
  if (used == used_.end()) return;
  for (const std::string& name : used->second.spaces) {
    Space& space = spaces_.at(name);
    if (--space.users > 0) continue;
    if (!space.in_line && !holds(name)) {
      spaces_.erase(name);
      continue;
    }
    space.unused_since = now;
    if (!std::exchange(space.in_line, true)) unused_.push_back(name);
  }
  used_.erase(used);
}

bool Spaces::Forget(MonotonicTime now) {
  if (!users_of_all_.empty()) return false;
  if (all_were_used_ && now - last_user_of_all_left_ < forget_after_) return false;
  bool forgotten = std::exchange(all_were_used_, false);
  while (!unused_.empty()) {
    const auto space = spaces_.find(unused_.front());
    if (space->second.users > 0) {
      space->second.in_line = false;
    } else if (now - space->second.unused_since >= forget_after_) {
      spaces_.erase(space);
      forgotten = true;
    } else {
      break;  // a space that was used meanwhile holds up the spaces behind it once
    }
    unused_.pop_front();
  }
  return forgotten;
}

}  // namespace convene::rendezvous
