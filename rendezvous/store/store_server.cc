#include "rendezvous/store/store_server.h"

#include <sys/resource.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/net/listen.h"
#include "rendezvous/store/store_thread.h"
#include "tools/base/cgroup_limits.h"
#include "tools/base/mutex.h"
#include "tools/base/status_macros.h"

namespace convene::rendezvous {
namespace {

constexpr unsigned kThreadsMax = 4;
// One takes some kilobytes of the kernel's memory. Eight workers each of 1,000 nodes may all dial
// before the node that serves them knows that its epoch begins.
constexpr size_t kStrangersMax = 16384;

size_t ThreadsFor(const StoreServer::Options& options) {
  if (options.threads > 0) return static_cast<size_t>(options.threads);
  return std::clamp(std::thread::hardware_concurrency() / 4, 1u, kThreadsMax);
}

size_t BytesMaxFor(const StoreServer::Options& options) {
  if (options.bytes_max > 0) return options.bytes_max;
  return std::min(StoreServer::kBytesMaxByDefault, static_cast<size_t>(UsableMemoryBytes()) / 4);
}

// Of each thread.
size_t MostStrangersFor(const StoreServer::Options& options) {
  size_t all = options.most_strangers;
  if (all == 0) {
    rlimit files = {};
    (void)getrlimit(RLIMIT_NOFILE, &files);
    all = std::min(kStrangersMax, static_cast<size_t>(files.rlim_cur / 2));
  }
  return std::max<size_t>(all / ThreadsFor(options), 1);
}

class StoreServerImpl : public StoreServer {
 public:
  explicit StoreServerImpl(const Options& options)
      : shared_(BytesMaxFor(options), options.forget_after, options.is_shut,
                MostStrangersFor(options)) {}

  ~StoreServerImpl() override {
    {
      MutexLock lock(&shared_.mutex);
      for (ThreadMail& mail : shared_.mail) {
        mail.stop = true;
        mail.doorbell->Ring();
      }
    }
    threads_.clear();
  }

  absl::Status Begin(const Options& options) {
    UniqueFd listener;
    if (options.listen) {
      absl::StatusOr<Listener> bound = ListenOn(options.host, options.port);
      CONVENE_RETURN_IF_ERROR(Annotate(bound.status(), "the job's store"));
      listener = std::move(bound->fd);
      port_ = bound->port;
    }
    const size_t count = ThreadsFor(options);
    {
      MutexLock lock(&shared_.mutex);
      shared_.mail.resize(count);
    }
    for (size_t i = 0; i < count; ++i) {
      // The listener goes to the first.
      auto thread = StoreThread::Start(i, std::exchange(listener, UniqueFd()), &shared_);
      CONVENE_RETURN_IF_ERROR(Annotate(thread.status(), "the job's store"));
      threads_.push_back(*std::move(thread));
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }

  void Adopt(UniqueFd socket) override {
    MutexLock lock(&shared_.mutex);
    ThreadMail& mail = shared_.mail[next_host_];
    next_host_ = (next_host_ + 1) % shared_.mail.size();
    mail.fresh.push_back(std::move(socket));
    mail.doorbell->Ring();
  }

  void Admit(const std::vector<std::string>& addresses) override {
    MutexLock lock(&shared_.mutex);
    shared_.is_shut = false;
    shared_.clients = {addresses.begin(), addresses.end()};
    for (ThreadMail& mail : shared_.mail) mail.doorbell->Ring();
  }

  Counts counts() const override {
    MutexLock lock(&shared_.mutex);
    return {shared_.connections, shared_.table.waiting(), shared_.table.reserved(),
            shared_.table.size(), shared_.table.budget().counts(kRunsCounted)};
  }

 private:
  int port_ = 0;                                         // constant after Begin
  mutable SharedTable shared_;                           // outlives the threads
  size_t next_host_ ABSL_GUARDED_BY(shared_.mutex) = 0;  // of the next adopted connection
  std::vector<std::unique_ptr<StoreThread>> threads_;    // constant after Begin
};

}  // namespace

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(const Options& options) {
  auto server = std::make_unique<StoreServerImpl>(options);
  CONVENE_RETURN_IF_ERROR(server->Begin(options));
  return server;
}

}  // namespace convene::rendezvous
