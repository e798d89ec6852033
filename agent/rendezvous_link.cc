#include "agent/rendezvous_link.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rendezvous/net/listen.h"
#include "spdlog/spdlog.h"
#include "tools/base/check.h"

namespace convene::agent {
namespace {

using rendezvous::AgentStream;
using rendezvous::Server;

}  // namespace

RendezvousLink::RendezvousLink(EventLoop& loop, Options options, std::function<void(News)> on_news)
    : loop_(loop),
      options_(std::move(options)),
      on_news_(std::move(on_news)),
      locked_("", options_.credentials),
      turns_(options_.places.size()) {
  CONVENE_CHECK(posted_.Attach(loop_, [this] { OnPosted(); }).ok());
}

RendezvousLink::~RendezvousLink() {
  dialer_.Join();
  stream_.reset();
  left_.reset();
  // A stream that was opened but never handed over still calls its handlers, so it is destroyed
  // before the objects that they use.
  TakePosted().clear();
  posted_.Detach(loop_);
}

void RendezvousLink::Open(const rendezvous::Hello& hello, size_t place, absl::Duration timeout,
                          bool may_host, const rendezvous::Server::HandedOver& handed_over) {
  stream_.reset();
  Forget();
  dialer_.Join();
  place_ = place;
  const int64_t generation = generation_;
  const bool host_now = may_host && options_.may_host && server_ == nullptr;
  absl::StatusOr<Thread> dialer = Thread::Start("dial", [=, this, to = endpoint()] {
    Post(generation, Dial(hello, timeout, generation, host_now, handed_over, to));
  });
  if (dialer.ok()) {
    dialer_ = *std::move(dialer);
  } else {
    Post(generation, Opened{dialer.status(), nullptr});
  }
}

RendezvousLink::Opened RendezvousLink::Dial(const rendezvous::Hello& hello, absl::Duration timeout,
                                            int64_t generation, bool host_now,
                                            const rendezvous::Server::HandedOver& handed_over,
                                            rendezvous::Endpoint endpoint) {
  Opened opened;
  bool is_listened_to_here = false;
  if (host_now) {
    Server::Options options;
    options.host = rendezvous::AddressToBind(options_.places[0].host);
    options.port = options_.places[0].port;
    options.quiet = IsForThisNodeOnly();
    options.served_by = options_.served_by;
    options.only_run = options_.only_run;
    options.handed_over = handed_over;
    options.store_bytes_max = options_.store_bytes_max;
    options.credentials = options_.credentials;
    absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
    if (server.ok()) {
      opened.server = *std::move(server);
      endpoint = At(OwnPlace(*opened.server), /*is_own=*/true);
    } else if (!absl::IsAlreadyExists(server.status())) {
      opened.stream = server.status();
      return opened;
    } else {
      is_listened_to_here = true;
    }
  }
  AgentStream::Handlers handlers;
  handlers.on_event = [this, generation](rendezvous::DaemonEvent event) {
    Post(generation, News(std::move(event)));
  };
  handlers.on_end = [this, generation](absl::Status status) {
    Post(generation,
         News(absl::IsFailedPrecondition(status) ? WithAdvice(status) : std::move(status)));
  };
  opened.stream = AgentStream::Open(endpoint, options_.incarnation, hello, handlers, timeout,
                                    is_listened_to_here);
  const absl::Status& status = opened.stream.status();
  // After an epoch the port was a daemon's.
  const bool is_silent_here = is_listened_to_here && hello.last_epoch == Epoch() && !status.ok() &&
                              !AgentStream::RefusedAt(status).has_value();
  if (absl::IsFailedPrecondition(status) || is_silent_here) opened.stream = WithAdvice(status);
  return opened;
}

absl::Status RendezvousLink::WithAdvice(const absl::Status& status) const {
  if (options_.taken_port_advice.empty()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), absl::EndsWith(status.message(), "?") ? " " : ". ",
                   options_.taken_port_advice));
}

HostPort RendezvousLink::OwnPlace(const Server& server) const {
  const std::string bound = rendezvous::AddressToBind(options_.places[0].host);
  return {bound == rendezvous::kAllAddresses ? "127.0.0.1" : bound, server.port()};
}

void RendezvousLink::EndSoon() {
  ends_soon_ = true;
  if (server_ != nullptr) server_->EndSoon(options_.incarnation);
}

void RendezvousLink::Leave() {
  if (stream_ != nullptr) left_ = std::move(stream_);
  Forget();
}

void RendezvousLink::Close() {
  stream_.reset();
  left_.reset();
  Forget();
}

void RendezvousLink::Forget() {
  ++generation_;
  is_opened_ = false;
  early_.clear();
}

void RendezvousLink::Send(Epoch epoch, rendezvous::AgentEvent event) {
  if (stream_ != nullptr) stream_->Send(epoch, std::move(event));
}

void RendezvousLink::Post(int64_t generation, Item item) {
  {
    MutexLock lock(&mutex_);
    queue_.emplace_back(generation, std::move(item));
  }
  posted_.Ring();
}

std::deque<std::pair<int64_t, RendezvousLink::Item>> RendezvousLink::TakePosted() {
  MutexLock lock(&mutex_);
  return std::exchange(queue_, {});
}

void RendezvousLink::OnPosted() {
  for (auto& [generation, item] : TakePosted()) {
    Opened* opened = std::get_if<Opened>(&item);
    // Even a try that is no longer wanted may have begun to host, and other agents may have joined
    // already.
    if (opened != nullptr && opened->server != nullptr) {
      server_ = std::move(opened->server);
      spdlog::log(IsForThisNodeOnly() ? spdlog::level::debug : spdlog::level::info,
                  "hosting the rendezvous on port {}", server_->port());
      if (ends_soon_) EndSoon();
    }
    if (generation != generation_) continue;
    if (opened == nullptr && !is_opened_) {
      early_.push_back(std::move(item));
    } else {
      Handle(std::move(item));
    }
  }
}

void RendezvousLink::Handle(Item item) {
  if (News* news = std::get_if<News>(&item)) {
    if (std::holds_alternative<rendezvous::DaemonEvent>(*news)) left_.reset();
    return on_news_(std::move(*news));
  }
  Opened& opened = std::get<Opened>(item);
  if (!opened.stream.ok()) {
    if (!AgentStream::RefusedAt(opened.stream.status()).has_value()) ++turns_[place_];
    return on_news_(opened.stream.status());
  }
  stream_ = *std::move(opened.stream);
  options_.on_connection(stream_->TakeConnection());
  is_opened_ = true;
  for (Item& earlier : std::exchange(early_, {})) Handle(std::move(earlier));
}

}  // namespace convene::agent
