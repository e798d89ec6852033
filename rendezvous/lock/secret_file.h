// Files that hold a secret.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::rendezvous {

// At most `most` bytes of the file, or of a pipe up to its end. NotFound and the system's other
// errors; PermissionDenied where the file's group or others may read it: the text names the file
// and what to do. `what`: the secret, for the text ("the join token").
absl::StatusOr<std::string> ReadSecretFile(const std::string& path, absl::string_view what,
                                           size_t most);

}  // namespace convene::rendezvous
