#include "tools/base/full_disk.h"

#include <cerrno>

#include "tools/base/status_macros.h"
#include "tools/base/testing/status_testing.h"

namespace convene {
namespace {

TEST_CASE("a full disk is told from other shortages, with words around it too") {
  const auto tells = [](int error_number) {
    return TellsFullDisk(Annotate(ErrnoStatus(error_number, "write a.bin"), "rank 2"));
  };
  CHECK(tells(ENOSPC));
  CHECK(tells(EDQUOT));
  CHECK_FALSE(tells(EMFILE));
  CHECK_FALSE(tells(ENOMEM));
  CHECK_FALSE(tells(EACCES));
  CHECK_FALSE(TellsFullDisk(absl::OkStatus()));
}

}  // namespace
}  // namespace convene
