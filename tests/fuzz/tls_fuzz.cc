// libFuzzer on a locked door: a daemon's and an agent's end of one connection (TlsPipe), with
// a middle that carries the bytes in pieces and may change, drop, repeat or forge them; or a
// stranger alone, whose bytes are the input.
//
// Checked besides the sanitizers: each end hears a beginning of what the other one said, and
// nothing else; an end that is open is open to a member, or the daemon's to a reader where the
// other end has the read token; a middle that only carries is not noticed; no stranger's bytes open
// a door.
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "rendezvous/lock/credentials.h"
#include "rendezvous/lock/tls_context.h"
#include "rendezvous/lock/tls_pipe.h"
#include "rendezvous/lock/token.h"
#include "tools/base/check.h"
#include "tools/base/unique_fd.h"

namespace convene::rendezvous {
namespace {

constexpr char kToken[] = "Xz3Vq0k7sT1mN8bYw5Jr2aPf";
constexpr size_t kSaidBytes = 3000;
constexpr int kMostRounds = 200;

enum class Who { kDaemon, kMember, kReader };

TlsContext::Side SideOf(Who who) {
  return who == Who::kDaemon ? TlsContext::Side::kServer : TlsContext::Side::kClient;
}

const TlsContext& Context(Who who) {
  const auto make = [](Who one, const std::string& token) {
    return new TlsContext(*TlsContext::Make({.join_token = token}, SideOf(one)));
  };
  static const auto* const daemon = make(Who::kDaemon, kToken);
  static const auto* const member = make(Who::kMember, kToken);
  static const auto* const reader = make(Who::kReader, ReadToken(kToken));
  return who == Who::kDaemon ? *daemon : who == Who::kMember ? *member : *reader;
}

std::pair<UniqueFd, UniqueFd> Sockets() {
  int ends[2];
  CONVENE_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// The bytes that lie ready at `fd`.
std::string Take(int fd, size_t most = 1 << 16) {
  std::string bytes(most, '\0');
  const ssize_t count = recv(fd, bytes.data(), bytes.size(), 0);
  bytes.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return bytes;
}

// One end, with the reader behind it.
class End {
 public:
  explicit End(Who who) : End(who, Sockets()) {}

  // The other end of its socket: what somebody on the network has in hand.
  int wire() const { return wire_.get(); }
  bool is_over() const { return is_over_; }
  const TlsPipe& pipe() const { return pipe_; }
  const std::string& said() const { return said_; }
  const std::string& heard() const { return heard_; }

  void Move() {
    if (is_over_) return;
    // Nothing here tells of events.
    pipe_.MarkReady(pipe_.socket());
    pipe_.MarkReady(pipe_.plain());
    is_over_ = !pipe_.Move().ok();
    if (pipe_.is_open() && !plain_.valid()) {
      plain_ = pipe_.TakePlain();
      send(plain_.get(), said_.data(), said_.size(), MSG_NOSIGNAL);
    }
    if (plain_.valid()) heard_ += Take(plain_.get());
  }

 private:
  End(Who who, std::pair<UniqueFd, UniqueFd> sockets)
      : said_(kSaidBytes, who == Who::kDaemon ? 's' : 'c'),
        wire_(std::move(sockets.first)),
        pipe_(Context(who), SideOf(who), std::move(sockets.second), "") {}

  const std::string said_;
  UniqueFd wire_;
  TlsPipe pipe_;
  UniqueFd plain_;
  std::string heard_;
  bool is_over_ = false;
};

class Script {
 public:
  Script(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  bool empty() const { return rest_.empty(); }
  absl::string_view Take(size_t most) {
    const absl::string_view piece = rest_.substr(0, most);
    rest_.remove_prefix(piece.size());
    return piece;
  }
  uint8_t Byte() {
    const absl::string_view byte = Take(1);
    return byte.empty() ? uint8_t{0} : static_cast<uint8_t>(byte[0]);
  }

 private:
  absl::string_view rest_;
};

// Bytes of a stranger, in pieces, to an end of either side.
void MeetStranger(Script script) {
  const bool at_server = script.Byte() % 2 == 0;
  End end(at_server ? Who::kDaemon : Who::kMember);
  const size_t piece = script.Byte() + size_t{1};
  while (!script.empty() && !end.is_over()) {
    const absl::string_view bytes = script.Take(piece);
    send(end.wire(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    end.Move();
    Take(end.wire());
  }
  CONVENE_CHECK(!end.pipe().is_open());  // a handshake takes more than a script can know
}

// The middle's deed with the piece in its hands.
enum class Deed { kCarry, kChange, kDrop, kTwice, kForge, kCarryBytewise, kCount };

// Moves what `from` has sent to `to`. Returns whether it was carried as it was.
bool Carry(Script* script, const End& from, End* to) {
  const auto deed = static_cast<Deed>(script->Byte() % static_cast<int>(Deed::kCount));
  std::string bytes = Take(from.wire());
  const std::string before = bytes;
  if (deed == Deed::kChange && !bytes.empty()) {
    const size_t place = (size_t{script->Byte()} << 8 | script->Byte()) % bytes.size();
    bytes[place] = static_cast<char>(bytes[place] ^ (script->Byte() | 1));
  } else if (deed == Deed::kDrop) {
    const size_t count = script->Byte();
    bytes.erase(bytes.size() - std::min(count, bytes.size()));
  } else if (deed == Deed::kTwice) {
    bytes += bytes;
  } else if (deed == Deed::kForge) {
    absl::StrAppend(&bytes, script->Take(script->Byte()));
  }
  const size_t step = deed == Deed::kCarryBytewise ? 7 : std::max<size_t>(bytes.size(), 1);
  for (size_t at = 0; at < bytes.size(); at += step) {
    send(to->wire(), bytes.data() + at, std::min(step, bytes.size() - at), MSG_NOSIGNAL);
    to->Move();
  }
  to->Move();
  return bytes == before;
}

void MeetMiddle(Who who, Script script) {
  End server(Who::kDaemon), client(who);
  bool is_honest = true;
  for (int round = 0; round < kMostRounds && !(server.is_over() && client.is_over()); ++round) {
    client.Move();
    is_honest = Carry(&script, client, &server) && is_honest;
    server.Move();
    is_honest = Carry(&script, server, &client) && is_honest;
    const bool all_heard = server.heard() == client.said() && client.heard() == server.said();
    if (all_heard && script.empty()) break;
  }
  CONVENE_CHECK(absl::StartsWith(client.said(), server.heard()));
  CONVENE_CHECK(absl::StartsWith(server.said(), client.heard()));
  const TlsPeer known = who == Who::kMember ? TlsPeer::kMember : TlsPeer::kReader;
  if (server.pipe().is_open()) CONVENE_CHECK(server.pipe().peer() == known);
  if (client.pipe().is_open()) CONVENE_CHECK(client.pipe().peer() == TlsPeer::kMember);
  // A middle that only carries is not noticed.
  if (is_honest) CONVENE_CHECK(server.heard() == client.said() && client.heard() == server.said());
}

void Meet(Script script) {
  const int kind = script.Byte() % 4;
  if (kind % 2 != 0) return MeetStranger(script);
  MeetMiddle(kind == 0 ? Who::kMember : Who::kReader, script);
}

}  // namespace
}  // namespace convene::rendezvous

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  convene::rendezvous::Meet(convene::rendezvous::Script(data, size));
  return 0;
}
