// Where work is queued. Every op and collective takes one, so that CPU and GPU share one signature.
#pragma once

namespace convene::worker {

enum class DeviceKind { kCpu, kCuda };

// The number of a GPU's multiprocessors that a collective beside products may take: tensor-parallel
// communicators are held to it, and products beside them leave as many free. A product whose blocks
// count on all multiprocessors would need a second round for the few blocks that find no room.
// Transformer Engine's number, not measured here.
inline constexpr int kCollectiveMultiprocessors = 16;

class HostQueue;
class OpProfile;

namespace cuda {
class Queue;
}  // namespace cuda

// On the CPU a stream is the calling thread, where an op is done when it returns, or a thread with
// a queue (device/host_queue.h). On a GPU it is a CUDA stream with what the libraries need beside
// it (device/cuda/queue.h), which reports launches that failed through Device::status(). With a
// queue an op is queued when it returns and runs after all earlier work of the same stream; the
// memory that its arguments point to lives until then, the arguments themselves need not. A cheap
// value; not thread-safe.
class Stream {
 public:
  static Stream Cpu() { return Stream(nullptr, nullptr); }
  // Borrow the queue.
  static Stream Cpu(HostQueue& queue) { return Stream(&queue, nullptr); }
  static Stream Cuda(cuda::Queue& queue) { return Stream(nullptr, &queue); }

  DeviceKind kind() const { return queue_ == nullptr ? DeviceKind::kCpu : DeviceKind::kCuda; }
  // REQUIRES: kind() == kCuda.
  cuda::Queue& queue() const { return *queue_; }
  // Null where ops run on the calling thread, and on a GPU.
  HostQueue* host_queue() const { return host_queue_; }

  // The watcher of the ops queued here (op_profile.h), or null. Borrowed.
  OpProfile* profile() const { return profile_; }
  void set_profile(OpProfile* profile) { profile_ = profile; }

  // How many multiprocessors products queued here leave to other streams; 0 where none needs them.
  int left_free() const { return left_free_; }
  void set_left_free(int multiprocessors) { left_free_ = multiprocessors; }

 private:
  Stream(HostQueue* host_queue, cuda::Queue* queue) : host_queue_(host_queue), queue_(queue) {}
  HostQueue* host_queue_;
  cuda::Queue* queue_;
  OpProfile* profile_ = nullptr;
  int left_free_ = 0;
};

}  // namespace convene::worker
