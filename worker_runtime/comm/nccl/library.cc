#include "worker_runtime/comm/nccl/library.h"

#include <dlfcn.h>

namespace convene::worker {
namespace {

template <typename Function>
void Find(bool& has, const char* name, Function& function) {
  if (has) function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  has = function != nullptr;
}

NcclLibrary Look() {
  int version = 0;
  if (ncclGetVersion(&version) != ncclSuccess) return {};
  NcclLibrary library = {.features = NcclFeaturesOf(version)};
  NcclFeatures& has = library.features;
  Find(has.all_to_all, "ncclAlltoAll", library.all_to_all);
  Find(has.revoke, "ncclCommRevoke", library.revoke);
  Find(has.shrink, "ncclCommShrink", library.shrink);
  Find(has.grow, "ncclCommGetUniqueId", library.grow_id);
  Find(has.grow, "ncclCommGrow", library.grow);
  return library;
}

}  // namespace

const NcclLibrary& NcclLibrary::OfProcess() {
  static const NcclLibrary library = Look();
  return library;
}

}  // namespace convene::worker
