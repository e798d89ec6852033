#include "agent/workers/session_server.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
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
#include "tools/base/claimed_folder.h"
#include "tools/base/files.h"
#include "tools/base/status_macros.h"
#include "worker_runtime/contract/names.h"

namespace convene::agent {
namespace {

constexpr size_t kLongestHello = 128;  // bytes
constexpr char kDirectoryPrefix[] = "convene.";
constexpr char kSocketName[] = "/session";
constexpr char kTimersName[] = "/timers";
constexpr char kWarmName[] = "/warm";
// Another agent's sweep may take a directory away before it is locked.
constexpr int kTries = 3;

UniqueFd OpenDevNull() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

// Removes what a server leaves in `directory`, and nothing else.
void RemoveServerFiles(const std::string& directory) {
  unlink(absl::StrCat(directory, kSocketName).c_str());
  unlink(absl::StrCat(directory, kTimersName).c_str());
  (void)RemoveTree(absl::StrCat(directory, kWarmName));
  unlink(absl::StrCat(directory, kClaimName).c_str());
  rmdir(directory.c_str());
}

void SweepDeadServers(const std::string& parent) {
  SweepFolders(parent, kDirectoryPrefix, RemoveServerFiles);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SessionServer>> SessionServer::Start(EventLoop& loop,
                                                                    const std::string& parent,
                                                                    Listener listener) {
  std::unique_ptr<SessionServer> server(new SessionServer(loop, std::move(listener)));
  const bool fits =
      parent.size() + sizeof("/convene.XXXXXX/session") < sizeof(sockaddr_un::sun_path);
  absl::Status status = parent.empty() || !fits ? absl::NotFoundError("") : server->Listen(parent);
  if (!status.ok()) status = server->Listen("/tmp");
  CONVENE_RETURN_IF_ERROR(status);
  return server;
}

absl::Status SessionServer::Listen(const std::string& parent) {
  SweepDeadServers(parent);
  absl::Status status;
  for (int i = 0; i < kTries; ++i) {
    status = Bind(parent);
    if (status.ok()) break;
    RemoveDirectory();
  }
  CONVENE_RETURN_IF_ERROR(status);
  spare_ = OpenDevNull();
  BeginEpoch(Epoch(), 0);
  return absl::OkStatus();
}

absl::Status SessionServer::Bind(const std::string& parent) {
  directory_ = absl::StrCat(parent, "/", kDirectoryPrefix, "XXXXXX");
  if (mkdtemp(directory_.data()) == nullptr) {
    directory_.clear();
    return ErrnoStatus(errno, absl::StrCat("create a directory in ", parent));
  }
  CONVENE_ASSIGN_OR_RETURN(lock_, ClaimFolder(directory_));
  path_ = absl::StrCat(directory_, kSocketName);
  door_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
  if (!door_.valid() ||
      bind(door_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(door_.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listen on ", path_));
  }
  return absl::OkStatus();
}

bool SessionServer::IsInPlace() const {
  struct stat info;
  return lstat(path_.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

std::string SessionServer::timers_path() const { return absl::StrCat(directory_, kTimersName); }

std::string SessionServer::warm_path() const { return absl::StrCat(directory_, kWarmName); }

void SessionServer::RemoveDirectory() {
  door_.Reset();
  if (!directory_.empty()) RemoveServerFiles(directory_);
  lock_.Reset();  // Last: until then nobody else may sweep it.
  directory_.clear();
}

SessionServer::~SessionServer() {
  BeginEpoch(Epoch(), 0);
  if (is_listening_) loop_.Forget(door_.get());
  const std::string parent = directory_.substr(0, directory_.rfind('/'));
  RemoveDirectory();
  // Sweeps again: the processes of an agent that was killed during its start hold its lock a little
  // longer than it lived, perhaps past the start of the last agent here.
  SweepDeadServers(parent);
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
  if (door_.valid() && !is_listening_) {
    is_listening_ = true;
    loop_.Watch(door_.get(), [this] { Accept(); });
  }
}

bool SessionServer::Accept() {
  UniqueFd socket(accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    // The connection stays in the queue, and the loop would ask about it again and again.
    const bool may_pass = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    if (!may_pass) TurnAway();
    return false;
  }
  // Each worker makes one connection; more guests than workers are a mistake.
  if (guests_.size() >= static_cast<size_t>(local_world_size_)) return true;
  const int fd = socket.get();
  loop_.Watch(fd, [this, fd] { OnGuest(fd); });
  guests_[fd] = Guest{std::move(socket), ""};
  return true;
}

void SessionServer::HearAll() {
  // The loop has a bound: no worker can keep us here by connecting again and again.
  for (int i = 0; is_listening_ && i < local_world_size_ && Accept(); ++i) {
  }
  std::vector<int> fds;
  for (const auto& [fd, guest] : guests_) fds.push_back(fd);
  for (const int fd : fds) OnGuest(fd);
  std::vector<int> ranks;
  for (const auto& [rank, socket] : sessions_) ranks.push_back(rank);
  for (const int rank : ranks) OnSession(rank);
}

void SessionServer::TurnAway() {
  spare_.Reset();
  const bool is_gone =
      UniqueFd(accept4(door_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)).valid();
  spare_ = OpenDevNull();
  if (is_gone && spare_.valid()) return;
  // The whole machine is out of descriptors: there are no sessions until the next epoch.
  loop_.Forget(door_.get());
  is_listening_ = false;
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
  loop_.Forget(fd);
  UniqueFd socket = std::move(guest.socket);
  const std::string received = std::move(guest.received);
  guests_.erase(fd);
  if (local_rank < 0) return;
  // A worker that connects again (it was replaced by exec) takes its own place.
  UniqueFd& place = sessions_[local_rank];
  if (place.valid()) Drop(place);
  place = std::move(socket);
  loop_.Watch(fd, [this, local_rank] { OnSession(local_rank); });
  listener_.on_open(local_rank);
  OnWords(local_rank, absl::string_view(received).substr(end + 1));
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
  char buffer[4096];
  UniqueFd& socket = sessions_.at(local_rank);
  const ssize_t n = recv(socket.get(), buffer, sizeof(buffer), 0);
  if (n > 0) return OnWords(local_rank, absl::string_view(buffer, n));
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  Drop(socket);
  sessions_.erase(local_rank);
}

void SessionServer::OnWords(int local_rank, absl::string_view words) {
  if (words != absl::StrCat(contract::kSessionLeave, "\n")) return;  // It knows no other.
  Drop(sessions_.at(local_rank));
  sessions_.erase(local_rank);
  listener_.on_leave(local_rank);
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
