// The flags of `convene run`, for flags.cc: how each is spelled, where it lands, what help says.
#pragma once

#include "launcher/flag_reader.h"
#include "launcher/flags.h"

namespace convene::launcher {

// All of torchrun's (its meaning: shared/reference/torchrun.md, section 2.1).
void AddTorchrunFlags(FlagReader* reader, RunFlags* flags);
// Those that torchrun does not have.
void AddOwnFlags(FlagReader* reader, RunFlags* flags);

}  // namespace convene::launcher
