// A question whose answer may never come: a driver that is broken, or a dead file server, holds
// whoever asks it.
#pragma once

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"

namespace convene::agent {

// What `ask` says in a child process, 1 MiB of it at most; "" where it has ended the child. Nullopt
// where it has not ended after `timeout`, when the child is killed, and where there is no room for
// a child.
std::optional<std::string> AskInChild(absl::FunctionRef<std::string()> ask, absl::Duration timeout);

}  // namespace convene::agent
