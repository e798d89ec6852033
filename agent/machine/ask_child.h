// A question whose answer may never come: a driver that is broken, or a dead file server, holds
// whoever asks it.
#pragma once

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace convene::agent {

// The answer of `ask`, called in a child process: 1 MiB of it at most, "" where the call has ended
// the child. Nullopt where the child has not answered after `timeout`, when it is killed, and where
// there is no room for a child.
std::optional<std::string> AskInChild(absl::FunctionRef<std::string()> ask, absl::Duration timeout);

}  // namespace convene::agent
