// The agent's end of its workers' sessions (worker_runtime/contract/names.h tells the words).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/base/event_loop.h"
#include "tools/base/strong_int.h"
#include "tools/base/unique_fd.h"

namespace convene::agent {

// A Unix stream socket in a directory that only this user can enter. A file in it is locked (flock)
// as long as the server lives: a directory whose lock is free belongs to an agent that was killed,
// and the next agent of this user removes it. Lives on the thread of its loop.
//
// Without descriptors to spare a worker is turned away at once: it then goes without a session.
class SessionServer {
 public:
  // Both are called with the local rank of a worker of the present epoch.
  struct Listener {
    std::function<void(int)> on_open;   // it opened its session
    std::function<void(int)> on_leave;  // it left: its program goes on without a session
  };

  // The directory stands in `parent` ($XDG_RUNTIME_DIR), or in /tmp when that is "" or not
  // usable; it is removed with the server.
  static absl::StatusOr<std::unique_ptr<SessionServer>> Start(EventLoop& loop,
                                                              const std::string& parent,
                                                              Listener listener);
  ~SessionServer();
  SessionServer(const SessionServer&) = delete;
  SessionServer& operator=(const SessionServer&) = delete;

  const std::string& path() const { return path_; }  // CONVENE_SESSION; shorter than 108 bytes

  // False: somebody has removed the socket, as a logout removes $XDG_RUNTIME_DIR.
  bool IsInPlace() const;

  // The path for the FIFO of timer_file.h, beside the socket and swept with it.
  std::string timers_path() const;

  // The path for the folder of warm workers (agent/warm), beside the socket and swept with it.
  std::string warm_path() const;

  // Ends all sessions; from now on only workers of `epoch` with a local rank below
  // `local_world_size` are let in.
  void BeginEpoch(Epoch epoch, int local_world_size);
  bool IsOpen(int local_rank) const { return sessions_.count(local_rank) > 0; }
  // Takes in all messages of workers so far, without waiting. Called at a worker's end: its words
  // may still be unread.
  void HearAll();
  // Sends "`word` `why`" to every open session. A worker that does not read loses its session.
  void SendToAll(absl::string_view word, absl::string_view why);

 private:
  struct Guest {  // connected, has not said hello yet
    UniqueFd socket;
    std::string received;
  };

  SessionServer(EventLoop& loop, Listener listener) : loop_(loop), listener_(std::move(listener)) {}

  absl::Status Listen(const std::string& parent);
  absl::Status Bind(const std::string& parent);
  void RemoveDirectory();
  // Accepts one connection only to close it, with the descriptor that was kept for that.
  void TurnAway();
  // Returns false when no connection was waiting, or none could be taken in.
  bool Accept();
  void OnGuest(int fd);
  void OnSession(int local_rank);
  void OnWords(int local_rank, absl::string_view words);
  // The local rank that `line` announces, -1 when it is no hello of this epoch.
  int ReadHello(absl::string_view line) const;
  void Drop(UniqueFd& socket);

  EventLoop& loop_;
  const Listener listener_;
  std::string directory_;
  std::string path_;
  UniqueFd lock_;
  UniqueFd door_;              // the socket that workers connect to
  bool is_listening_ = false;  // the loop watches the door
  UniqueFd spare_;             // given up to turn a worker away when there is no other
  Epoch epoch_;
  int local_world_size_ = 0;
  std::map<int, Guest> guests_;       // by descriptor
  std::map<int, UniqueFd> sessions_;  // by local rank
};

}  // namespace convene::agent
