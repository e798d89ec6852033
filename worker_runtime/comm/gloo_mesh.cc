#include "worker_runtime/comm/gloo_mesh.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gloo/transport/address.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/pair.h"
#include "gloo/transport/tcp/address.h"
#include "gloo/transport/tcp/attr.h"
#include "gloo/transport/tcp/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "tools/base/check.h"
#include "tools/base/clock.h"
#include "tools/base/resource_limits.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/comm/gloo_wire.h"

namespace convene::worker {
namespace {

using gloo::transport::Context;
using gloo::transport::Device;

// Gloo waits five times its timeout for a connection.
constexpr int kGlooConnectFactor = 5;
// The descriptors of a rank beside a socket for each other rank: at least, and with what CUDA and
// NCCL open.
constexpr int64_t kOtherFiles = 64;
constexpr int64_t kOtherFilesOnGpu = 512;

std::string AddressKey(const std::string& key_prefix, int rank) {
  return absl::StrCat(key_prefix, "/address/", rank);
}

absl::StatusOr<std::shared_ptr<Device>> MakeDevice(const std::string& listen_host) {
  gloo::transport::tcp::attr attributes;
  attributes.hostname = listen_host;
  try {
    return gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen for other workers on \"", listen_host, "\": ", error.what()));
  }
}

// The address without the bytes behind the socket's own, which nobody has set.
std::vector<char> Clean(const gloo::transport::tcp::Address& address) {
  const sockaddr_storage& socket = address.getSockaddr();
  sockaddr_storage clean = {};
  std::memcpy(&clean, &socket,
              socket.ss_family == AF_INET ? offsetof(sockaddr_in, sin_zero) : sizeof(sockaddr_in6));
  return gloo::transport::tcp::Address(clean, address.getSeq()).bytes();
}

// All ranks read what each one publishes, and its addresses differ in their ports: so that the
// ranks of a large job do not read gigabytes, the first address stands there whole, and of each the
// bytes that differ between them.
//
//   u8 n, n x u8 the places of these bytes in an address, the first address, n bytes an address
std::string PackAddresses(const std::vector<std::vector<char>>& addresses) {
  const std::vector<char>& first = addresses.front();
  std::string places;
  for (size_t i = 0; i < first.size(); ++i) {
    const auto differs = [&](const std::vector<char>& address) { return address[i] != first[i]; };
    if (absl::c_any_of(addresses, differs)) places.push_back(static_cast<char>(i));
  }
  std::string packed(1, static_cast<char>(places.size()));
  absl::StrAppend(&packed, places, absl::string_view(first.data(), first.size()));
  for (const std::vector<char>& address : addresses) {
    for (const char place : places) packed.push_back(address[static_cast<unsigned char>(place)]);
  }
  return packed;
}

// One listening address per peer, in rank order (gloo makes a socket per pair); this rank's own
// place is left out.
std::string Listen(Context& context) {
  std::vector<std::vector<char>> addresses;
  for (int peer = 0; peer < context.size; ++peer) {
    if (peer == context.rank) continue;
    addresses.push_back(
        Clean(gloo::transport::tcp::Address(context.createPair(peer)->address().bytes())));
  }
  return PackAddresses(addresses);
}

// The address where `peer` listens for `rank`, out of all that it published.
absl::StatusOr<std::vector<char>> AddressFor(const std::string& packed, int peer, int rank,
                                             int world_size) {
  const int peers = world_size - 1;
  const absl::Status refused = absl::UnavailableError(
      absl::StrCat("rank ", peer, " published ", packed.size(), " bytes of addresses for ", peers,
                   " peers: does it run another version or world size?"));
  const size_t places = packed.empty() ? 0 : static_cast<unsigned char>(packed[0]);
  if (packed.size() <= 1 + places + peers * places) return refused;
  const auto differing = packed.end() - static_cast<ptrdiff_t>(peers * places);
  std::vector<char> address(packed.begin() + 1 + static_cast<ptrdiff_t>(places), differing);
  const size_t own = (rank < peer ? rank : rank - 1) * places;
  for (size_t i = 0; i < places; ++i) {
    const size_t place = static_cast<unsigned char>(packed[1 + i]);
    if (place >= address.size()) return refused;
    address[place] = differing[static_cast<ptrdiff_t>(own + i)];
  }
  if (address.size() != gloo::transport::tcp::Address().bytes().size()) return refused;
  return address;
}

absl::Status ConnectPairs(Context& context, rendezvous::StoreClient& store,
                          const std::string& key_prefix, MonotonicTime deadline) {
  CONVENE_RETURN_IF_ERROR(store.Set(AddressKey(key_prefix, context.rank), Listen(context)));
  for (int peer = 0; peer < context.size; ++peer) {
    if (peer == context.rank) continue;
    const absl::Duration left = std::max(deadline - Clock::Real().Now(), absl::ZeroDuration());
    const auto addresses = store.Get(AddressKey(key_prefix, peer), left);
    if (!addresses.ok()) {
      return Annotate(addresses.status(), absl::StrCat("waiting for the address of rank ", peer));
    }
    CONVENE_ASSIGN_OR_RETURN(const std::vector<char> address,
                             AddressFor(*addresses, peer, context.rank, context.size));
    try {
      context.getPair(peer)->connect(address);
    } catch (const std::exception& error) {
      if (Clock::Real().Now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("rank ", peer, " did not connect in time: ", error.what()));
      }
      return absl::UnavailableError(
          absl::StrCat("cannot connect to rank ", peer, ": ", error.what()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<GlooMesh>> GlooMesh::Connect(int rank, int world_size,
                                                            const std::string& listen_host,
                                                            rendezvous::StoreClient& store,
                                                            const std::string& key_prefix,
                                                            absl::Duration timeout) {
  CONVENE_CHECK(world_size > 1 && rank >= 0 && rank < world_size);
  CONVENE_RETURN_IF_ERROR(
      EnsureOpenFiles(world_size + kOtherFiles, 2 * world_size + kOtherFilesOnGpu));
  const MonotonicTime deadline = Clock::Real().Now() + timeout;
  CONVENE_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, MakeDevice(listen_host));
  std::shared_ptr<Context> context;
  try {
    context = device->createContext(rank, world_size);
    context->setTimeout(std::chrono::milliseconds(
        std::max<int64_t>(1, absl::ToInt64Milliseconds(timeout) / kGlooConnectFactor)));
    CONVENE_RETURN_IF_ERROR(ConnectPairs(*context, store, key_prefix, deadline));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("cannot open connections: ", error.what()));
  }
  return std::shared_ptr<GlooMesh>(new GlooMesh(rank, std::move(device), std::move(context)));
}

GlooMesh::GlooMesh(int rank, std::shared_ptr<Device> device, std::shared_ptr<Context> context)
    : rank_(rank), device_(std::move(device)), context_(std::move(context)) {}

GlooMesh::~GlooMesh() = default;

std::unique_ptr<Wire> GlooMesh::MakeWire(const std::vector<int>& members, int group_id) {
  return std::make_unique<GlooWire>(shared_from_this(), members, group_id);
}

void GlooMesh::HangUp(const absl::Status& reason) {
  {
    MutexLock lock(&mutex_);
    if (hang_up_reason_.ok()) hang_up_reason_ = reason;
  }
  try {
    // When a wait runs out, gloo closes every connection and wakes every waiting thread.
    char nothing = 0;
    context_->createUnboundBuffer(&nothing, 1)->waitRecv(std::chrono::milliseconds(1));
  } catch (const std::exception&) {
  }
}

absl::Status GlooMesh::hang_up_reason() {
  MutexLock lock(&mutex_);
  return hang_up_reason_;
}

}  // namespace convene::worker
