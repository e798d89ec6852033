#include "worker_runtime/inference/completion_server.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/thread.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/clock.h"
#include "tools/base/mutex.h"
#include "tools/base/signals.h"
#include "tools/base/status_macros.h"
#include "tools/base/thread.h"

namespace convene::worker {
namespace {

constexpr size_t kMostWaiting = 64;
constexpr int kMostHandedOver = 64;  // calls to the thread "serve" that it has not come to
constexpr int kLargestRequest = 16 << 20;
constexpr int kLargestHeaders = 64 << 10;
constexpr int kPatienceSeconds = 60;  // for a client that sends or takes nothing

template <auto kFree>
struct FreeWith {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
using EventBase = std::unique_ptr<event_base, FreeWith<event_base_free>>;
using HttpServer = std::unique_ptr<evhttp, FreeWith<evhttp_free>>;
using Buffer = std::unique_ptr<evbuffer, FreeWith<evbuffer_free>>;
using Event = std::unique_ptr<event, FreeWith<event_free>>;

Buffer BufferOf(const std::string& text) {
  Buffer buffer(evbuffer_new());
  evbuffer_add(buffer.get(), text.data(), text.size());
  return buffer;
}

// libevent tells on stderr alone that a name has no address.
absl::Status CheckHasAddress(const std::string& host) {
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, nullptr, &found); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen at ", host, ": ", gai_strerror(error), " (--host)"));
  }
  freeaddrinfo(found);
  return absl::OkStatus();
}

// A request that waits or is answered.
struct Job {
  CompletionRequest request;
  AnswerHead head;
  evhttp_request* http = nullptr;  // of the thread "serve"; null: the client has gone, or has all
  bool has_begun = false;          // a streamed answer; the same thread's
  Event watch;                     // the same thread's, while there is `http`
  std::atomic<bool> is_given_up = false;
};
using JobPtr = std::shared_ptr<Job>;

absl::Status GoneError() { return absl::CancelledError("the client has gone"); }

}  // namespace

class CompletionServer::Web {
 public:
  Web(std::string model, AnswerRequest answer)
      : model_(std::move(model)),
        created_(absl::ToUnixSeconds(WallNow())),
        answer_(std::move(answer)) {}

  absl::Status Start(const std::string& host, int port) {
    CONVENE_RETURN_IF_ERROR(CheckHasAddress(host));
    evthread_use_pthreads();
    base_.reset(event_base_new());
    http_.reset(evhttp_new(base_.get()));
    evhttp_set_timeout(http_.get(), kPatienceSeconds);
    evhttp_set_max_body_size(http_.get(), kLargestRequest);
    evhttp_set_max_headers_size(http_.get(), kLargestHeaders);
    evhttp_set_gencb(
        http_.get(), [](evhttp_request* http, void* web) { static_cast<Web*>(web)->Hear(http); },
        this);
    evhttp_bound_socket* const bound =
        evhttp_bind_socket_with_handle(http_.get(), host.c_str(), static_cast<ev_uint16_t>(port));
    if (bound == nullptr) {
      return absl::UnavailableError(absl::StrCat(
          "cannot listen at ", host, ":", port,
          ": another program has the port, or this machine has no such address (--serve, --host)"));
    }
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    getsockname(evhttp_bound_socket_get_fd(bound), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.ss_family == AF_INET6
                      ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                      : reinterpret_cast<const sockaddr_in&>(address).sin_port);
    CONVENE_ASSIGN_OR_RETURN(answering_, Thread::Start("answer", [this] { AnswerJobs(); }));
    auto serving = Thread::Start("serve", [this] {
      // To write to a connection that a client has reset is an error of this client's alone. The
      // kernel sends SIGPIPE, which would end the process, to the thread that writes.
      BlockSignals({SIGPIPE});
      event_base_loop(base_.get(), EVLOOP_NO_EXIT_ON_EMPTY);
    });
    if (!serving.ok()) {
      EndAnswering();
      return serving.status();
    }
    serving_ = *std::move(serving);
    return absl::OkStatus();
  }

  // REQUIRES: Start was OK.
  void Stop() {
    EndAnswering();
    // The last words that the thread "answer" has handed over get a moment to be sent.
    OnServe([this] {
      const timeval moment = {.tv_usec = 100'000};
      event_base_loopexit(base_.get(), &moment);
    });
    serving_.Join();
  }

  int port() const { return port_; }

 private:
  void EndAnswering() {
    {
      MutexLock lock(&mutex_);
      is_stopping_ = true;
      changed_.SignalAll();
    }
    answering_.Join();
  }

  // Runs `call` on the thread "serve", in the order of calls. Waits while there are too many.
  void OnServe(std::function<void()> call) {
    {
      MutexLock lock(&mutex_);
      while (handed_over_ >= kMostHandedOver) changed_.Wait(&mutex_);
      ++handed_over_;
    }
    const timeval now = {};
    auto* const held = new std::function<void()>([this, call = std::move(call)] {
      call();
      MutexLock lock(&mutex_);
      --handed_over_;
      changed_.SignalAll();
    });
    event_base_once(
        base_.get(), -1, EV_TIMEOUT,
        [](evutil_socket_t, short, void* argument) {
          const std::unique_ptr<std::function<void()>> mine(
              static_cast<std::function<void()>*>(argument));
          (*mine)();
        },
        held, &now);
  }

  static void Reply(evhttp_request* http, int status, const std::string& json) {
    evhttp_add_header(evhttp_request_get_output_headers(http), "Content-Type", "application/json");
    // libevent would send the body all the same.
    const bool has_body = evhttp_request_get_command(http) != EVHTTP_REQ_HEAD;
    evhttp_send_reply(http, status, nullptr, BufferOf(has_body ? json : "").get());
  }
  static void Fail(evhttp_request* http, const absl::Status& error) {
    Reply(http, HttpStatusOf(error), ErrorJson(error));
  }

  void Hear(evhttp_request* http) {
    const std::string path(evhttp_uri_get_path(evhttp_request_get_evhttp_uri(http)));
    const evhttp_cmd_type command = evhttp_request_get_command(http);
    if (command == EVHTTP_REQ_GET && path == "/v1/models") {
      return Reply(http, 200, ModelsJson(model_, created_));
    }
    const bool is_chat = path == "/v1/chat/completions";
    if (command != EVHTTP_REQ_POST || (!is_chat && path != "/v1/completions")) {
      return Fail(http,
                  absl::NotFoundError("there are GET /v1/models, POST /v1/completions and POST "
                                      "/v1/chat/completions here, and nothing else"));
    }
    evbuffer* const input = evhttp_request_get_input_buffer(http);
    std::string body(evbuffer_get_length(input), '\0');
    evbuffer_copyout(input, body.data(), body.size());
    auto request = ParseCompletionRequest(body, is_chat, /*default_seed=*/++requests_);
    if (!request.ok()) return Fail(http, request.status());
    const auto job = std::make_shared<Job>();
    job->request = *std::move(request);
    job->head = {.is_chat = is_chat,
                 .id = absl::StrCat(is_chat ? "chatcmpl-" : "cmpl-", requests_),
                 .created = absl::ToUnixSeconds(WallNow()),
                 .model = model_};
    job->http = http;
    MutexLock lock(&mutex_);
    EndGivenUp();
    if (waiting_.size() >= kMostWaiting) {
      return Fail(http, absl::UnavailableError(
                            absl::StrCat(kMostWaiting, " requests wait already: ask again later")));
    }
    // The job lives until End, which the connection forgets it before.
    evhttp_connection_set_closecb(
        evhttp_request_get_connection(http),
        [](evhttp_connection*, void* given_up) {
          Job& gone = *static_cast<Job*>(given_up);
          gone.watch.reset();
          // Where the answer had begun, libevent takes the request out of a connection that fails,
          // and leaves it to us.
          if (evhttp_request_get_connection(gone.http) == nullptr) evhttp_request_free(gone.http);
          gone.http = nullptr;
          gone.is_given_up = true;
        },
        job.get());
    Watch(*job);
    waiting_.push_back(job);
    changed_.SignalAll();
  }

  // By itself libevent reads nothing until the answer is sent, and so sees that a client has gone
  // only when it writes to it.
  void Watch(Job& job) {
    evhttp_connection* const connection = evhttp_request_get_connection(job.http);
    const auto look = [](evutil_socket_t fd, short, void* watched) {
      char next = 0;  // of the client's next request
      const ssize_t size = recv(fd, &next, 1, MSG_PEEK | MSG_DONTWAIT);
      const bool has_gone = size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR);
      if (has_gone) static_cast<Job*>(watched)->is_given_up = true;
    };
    job.watch.reset(event_new(base_.get(),
                              bufferevent_getfd(evhttp_connection_get_bufferevent(connection)),
                              EV_READ, look, &job));
    event_add(job.watch.get(), nullptr);
  }

  // A request whose client has gone leaves its place to another one.
  void EndGivenUp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::erase_if(waiting_, [](const JobPtr& job) {
      if (!job->is_given_up) return false;
      End(*job, GoneError());
      return true;
    });
  }

  // The rest on the thread "answer".
  void AnswerJobs() {
    while (true) {
      JobPtr job;
      {
        MutexLock lock(&mutex_);
        while (waiting_.empty() && !is_stopping_) changed_.Wait(&mutex_);
        if (waiting_.empty()) return;
        job = std::move(waiting_.front());
        waiting_.pop_front();
      }
      const absl::Status status = Answer(job);
      // The job's last word, which also holds it until then.
      OnServe([job, status] { End(*job, status); });
    }
  }

  absl::Status CheckGoesOn(const Job& job) {
    if (job.is_given_up) return GoneError();
    MutexLock lock(&mutex_);
    return is_stopping_ ? absl::CancelledError("the server stops") : absl::OkStatus();
  }

  absl::Status Answer(const JobPtr& job) {
    CONVENE_RETURN_IF_ERROR(CheckGoesOn(*job));  // it may have waited for long
    std::vector<Choice> choices(job->request.prompts.size() * job->request.choices);
    std::vector<bool> has_begun(choices.size());
    const auto show = [&](int index, const Choice& piece) {
      choices[index].text += piece.text;
      choices[index].finish_reason = piece.finish_reason;
      choices[index].tokens.insert(choices[index].tokens.end(), piece.tokens.begin(),
                                   piece.tokens.end());
      const bool is_first = !has_begun[index];
      has_begun[index] = true;
      // Half a character, or what may become a stop text, shows nothing yet.
      const bool shows =
          is_first || !piece.text.empty() || !piece.finish_reason.empty() || !piece.tokens.empty();
      if (job->request.streams && shows) {
        Send(job, ChunkEvent(job->head, index, piece, is_first));
      }
    };
    CONVENE_ASSIGN_OR_RETURN(const Usage usage,
                             answer_(job->request, show, [&] { return CheckGoesOn(*job); }));
    if (!job->request.streams) {
      Send(job, CompletionJson(job->head, choices, usage));
    } else {
      Send(job, absl::StrCat(job->request.streams_usage ? UsageEvent(job->head, usage) : "",
                             kLastEvent));
    }
    return absl::OkStatus();
  }

  void Send(const JobPtr& job, std::string text) {
    OnServe([job, text = std::move(text)] {
      if (job->http == nullptr) return;
      if (!job->request.streams) {
        Forget(*job);
        return Reply(std::exchange(job->http, nullptr), 200, text);
      }
      if (!std::exchange(job->has_begun, true)) {
        evhttp_add_header(evhttp_request_get_output_headers(job->http), "Content-Type",
                          "text/event-stream");
        evhttp_send_reply_start(job->http, 200, nullptr);
      }
      evhttp_send_reply_chunk(job->http, BufferOf(text).get());
    });
  }

  // A connection may have another request later.
  static void Forget(Job& job) {
    job.watch.reset();
    evhttp_connection_set_closecb(evhttp_request_get_connection(job.http), nullptr, nullptr);
  }

  static void End(Job& job, const absl::Status& status) {
    if (job.http == nullptr) return;
    Forget(job);
    evhttp_request* const http = std::exchange(job.http, nullptr);
    if (!job.has_begun) return Fail(http, status);
    // The status line is gone, so an error comes as an event.
    if (!status.ok()) {
      evhttp_send_reply_chunk(http,
                              BufferOf(absl::StrCat("data: ", ErrorJson(status), "\n\n")).get());
    }
    evhttp_send_reply_end(http);
  }

  const std::string model_;
  const int64_t created_;
  AnswerRequest answer_;  // the thread "answer"'s
  int64_t requests_ = 0;  // the thread "serve"'s
  int port_ = 0;
  Mutex mutex_;
  CondVar changed_;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  int handed_over_ GUARDED_BY(mutex_) = 0;
  std::deque<JobPtr> waiting_ GUARDED_BY(mutex_);
  EventBase base_;
  HttpServer http_;
  Thread answering_;
  Thread serving_;
};

CompletionServer::CompletionServer(std::unique_ptr<Web> web) : web_(std::move(web)) {}

CompletionServer::~CompletionServer() { web_->Stop(); }

int CompletionServer::port() const { return web_->port(); }

absl::StatusOr<std::unique_ptr<CompletionServer>> CompletionServer::Start(const std::string& host,
                                                                          int port,
                                                                          std::string model,
                                                                          AnswerRequest answer) {
  auto web = std::make_unique<Web>(std::move(model), std::move(answer));
  CONVENE_RETURN_IF_ERROR(web->Start(host, port));
  return std::unique_ptr<CompletionServer>(new CompletionServer(std::move(web)));
}

}  // namespace convene::worker
