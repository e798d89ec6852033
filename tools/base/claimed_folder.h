// Folders of processes that may be killed: the next process of the same kind removes what they
// left.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/unique_fd.h"

namespace convene {

// The file that is locked (flock) as long as the folder's process lives.
inline constexpr char kClaimName[] = "/lock";

// Claims `folder`, which this process has just made, as long as the descriptor is open. Without
// kClaimName no sweep removes a folder that has anything in it. Errors as ErrnoStatus gives them:
// a sweep may take the folder away before it is claimed, so make it again and try once more.
absl::StatusOr<UniqueFd> ClaimFolder(const std::string& folder);

// Calls `remove` for each folder of this user in `parent` whose name begins with `prefix` and whose
// process was killed, 64 of them at most. The folder is locked meanwhile.
void SweepFolders(const std::string& parent, absl::string_view prefix,
                  const std::function<void(const std::string& folder)>& remove);

}  // namespace convene
