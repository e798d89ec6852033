// Whether an error is a full disk.
#pragma once

#include "absl/status/status.h"

namespace convene {

// Whether a status of ErrnoStatus, also with words around it, tells of a full disk or of a quota
// that is used up. ResourceExhausted alone may mean descriptors or memory, too.
bool TellsFullDisk(const absl::Status& status);

}  // namespace convene
