// `convene plan`: which layout, will it fit, how long will it take.
#pragma once

#include "launcher/command_table.h"

namespace convene::launcher {

Command PlanRow();

}  // namespace convene::launcher
