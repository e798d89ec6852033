// The processors and connections of a test's ranks. In an ordinary program ranks have this CPU,
// with loopback or Gloo between them. In a program that is linked with :gpu_places they have a GPU
// each, with NCCL between them. So a test that asks here runs on both (device_test of
// //tools/bazel:gpu.bzl). Device memory is no memory of the host: see device_array.h.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "rendezvous/store/store_client.h"
#include "worker_runtime/comm/bootstrap.h"
#include "worker_runtime/comm/testing/test_worlds.h"
#include "worker_runtime/device/device.h"
#include "worker_runtime/mesh/mesh.h"

namespace convene::worker::testing {

// Whether this program's ranks have GPUs.
bool OnGpus();

// Whether there is a GPU for each of so many ranks, or none is needed. Else prints the line
// `SKIPPED: ...`, by which tools/check counts the test case as skipped; the case then returns. Of a
// case's own thread.
bool HasPlacesOrSkips(int ranks);

// Over which a test of every transport goes: loopback and Gloo, or NCCL.
absl::Span<const Transport> TestedTransports();

// Of a test with one rank and no communicators. From here on products give the same bits in every
// run (SetDeterministicMatMul), until an engine is made, which says so itself. REQUIRES:
// HasPlacesOrSkips(1).
std::unique_ptr<Device> MakeTestDevice();

// A rank's processor and connections. A later member ends before the earlier ones.
struct Place {
  std::unique_ptr<Device> device;
  CommunicatorSet communicators;
  std::unique_ptr<Memory> collective_memory;  // null: the device's own
};

struct PlaceOptions {
  Transport transport = TestedTransports().front();
  // Of each call of a collective. Zero: half a minute; on GPUs five, for on emulated GPUs a whole
  // step of all ranks runs while one rank waits for one operation.
  absl::Duration timeout;
  // BootstrapOptions::pp_links. Empty: each place of a pp group and the next one, in a circle.
  std::vector<std::pair<int, int>> pp_links;
};

// The places of all ranks of a layout. Products give the same bits as with MakeTestDevice.
class Places {
 public:
  // Errors: the devices', the bootstrap's. REQUIRES: with Transport::kNccl
  // HasPlacesOrSkips(layout.world_size()).
  static absl::StatusOr<std::unique_ptr<Places>> Make(const Layout& layout,
                                                      const PlaceOptions& options = {});
  // At the same time, because connections end together.
  ~Places();

  int size() const { return static_cast<int>(places_.size()); }
  Place& operator[](int rank) { return places_[rank]; }

  // Calls `body` for every rank, each in a thread of its own whose GPU is the rank's, and returns
  // when all are back, with what each has returned. Catch2's macros are not thread-safe: bodies
  // store what they saw, and the test checks it afterwards.
  std::vector<absl::Status> OnEveryRank(const std::function<absl::Status(int rank)>& body);

 private:
  Places(int size, bool on_gpus) : places_(size), on_gpus_(on_gpus) {}

  std::vector<Place> places_;
  const bool on_gpus_;
};

// The functions for GPUs: gpu_places.cc sets them before main() in a program that is linked with
// it; null in any other program.
struct GpuPlaces {
  absl::StatusOr<Place> (*make)(const Layout& layout, int rank, rendezvous::StoreClient& store,
                                const PlaceOptions& options) = nullptr;
  // The thread's GPU becomes the rank's.
  void (*enter)(int rank) = nullptr;
};
inline constinit GpuPlaces linked_gpu_places;

}  // namespace convene::worker::testing
