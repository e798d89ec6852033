#include "agent/process/session_server.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/contract/names.h"

namespace convene::agent {
namespace {

constexpr size_t kLongestHello = 128;  // bytes

}  // namespace

absl::StatusOr<std::unique_ptr<SessionServer>> SessionServer::Start(
    EventLoop& loop, const std::string& parent, std::function<void(int)> on_open) {
  std::unique_ptr<SessionServer> server(new SessionServer(loop, std::move(on_open)));
  const bool fits =
      parent.size() + sizeof("/convene.XXXXXX/session") < sizeof(sockaddr_un::sun_path);
  absl::Status status = parent.empty() || !fits ? absl::NotFoundError("") : server->Listen(parent);
  if (!status.ok()) status = server->Listen("/tmp");
  CONVENE_RETURN_IF_ERROR(status);
  return server;
}

absl::Status SessionServer::Listen(const std::string& parent) {
  std::string directory = absl::StrCat(parent, "/convene.XXXXXX");
  if (mkdtemp(directory.data()) == nullptr) {
    return ErrnoStatus(errno, absl::StrCat("create a directory in ", parent));
  }
  directory_ = directory;
  path_ = absl::StrCat(directory, "/session");
  listener_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  if (!listener_.valid() ||
      bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener_.get(), SOMAXCONN) != 0) {
    const absl::Status status = ErrnoStatus(errno, absl::StrCat("listen on ", path_));
    listener_.Reset();
    RemoveTree(directory_).IgnoreError();
    directory_.clear();
    return status;
  }
  loop_.Watch(listener_.get(), [this] { OnConnection(); });
  return absl::OkStatus();
}

SessionServer::~SessionServer() {
  BeginEpoch(Epoch(), 0);
  if (listener_.valid()) Drop(listener_);
  if (!directory_.empty()) {
    unlink(path_.c_str());
    rmdir(directory_.c_str());
  }
}

void SessionServer::Drop(UniqueFd& socket) {
  loop_.Forget(socket.get());
  socket.Reset();
}

void SessionServer::BeginEpoch(Epoch epoch, int local_world_size) {
  for (auto& [fd, guest] : guests_) Drop(guest.socket);
  guests_.clear();
  for (auto& [rank, socket] : sessions_) Drop(socket);
  sessions_.clear();
  epoch_ = epoch;
  local_world_size_ = local_world_size;
}

void SessionServer::OnConnection() {
  UniqueFd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) return;
  // One connection a worker is the rule; more guests than that are somebody's mistake.
  if (guests_.size() >= static_cast<size_t>(local_world_size_)) return;
  const int fd = socket.get();
  loop_.Watch(fd, [this, fd] { OnGuest(fd); });
  guests_[fd] = Guest{std::move(socket), ""};
}

void SessionServer::OnGuest(int fd) {
  Guest& guest = guests_.at(fd);
  char buffer[kLongestHello];
  const ssize_t n = recv(fd, buffer, sizeof(buffer), 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n > 0) guest.received.append(buffer, n);
  const size_t end = guest.received.find('\n');
  if (n > 0 && end == std::string::npos && guest.received.size() < kLongestHello) return;
  const int local_rank =
      end == std::string::npos ? -1 : ReadHello(absl::string_view(guest.received).substr(0, end));
  if (local_rank < 0) {
    Drop(guest.socket);
    guests_.erase(fd);
    return;
  }
  loop_.Forget(fd);
  UniqueFd socket = std::move(guest.socket);
  guests_.erase(fd);
  // A worker that connects again (it was replaced by exec) takes its own place.
  UniqueFd& place = sessions_[local_rank];
  if (place.valid()) Drop(place);
  place = std::move(socket);
  loop_.Watch(fd, [this, local_rank] { OnSession(local_rank); });
  on_open_(local_rank);
}

int SessionServer::ReadHello(absl::string_view line) const {
  const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
  int local_rank = -1;
  int64_t epoch = -1;
  if (words.size() != 3 || words[0] != contract::kSessionHello ||
      !absl::SimpleAtoi(words[1], &local_rank) || !absl::SimpleAtoi(words[2], &epoch)) {
    return -1;
  }
  if (Epoch(epoch) != epoch_ || local_rank < 0 || local_rank >= local_world_size_) return -1;
  return local_rank;
}

void SessionServer::OnSession(int local_rank) {
  char ignored[4096];
  UniqueFd& socket = sessions_.at(local_rank);
  const ssize_t n = recv(socket.get(), ignored, sizeof(ignored), 0);
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
  Drop(socket);
  sessions_.erase(local_rank);
}

void SessionServer::SendToAll(absl::string_view word, absl::string_view why) {
  std::string line = absl::StrCat(word, " ", why.substr(0, 1000));
  std::replace(line.begin(), line.end(), '\n', ' ');
  line.push_back('\n');
  for (auto it = sessions_.begin(); it != sessions_.end();) {
    const ssize_t n = send(it->second.get(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n == static_cast<ssize_t>(line.size())) {
      ++it;
      continue;
    }
    Drop(it->second);
    it = sessions_.erase(it);
  }
}

}  // namespace convene::agent
