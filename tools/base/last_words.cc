#include "tools/base/last_words.h"

#include <signal.h>
#include <unistd.h>

#include "tools/base/signals.h"

namespace convene {
namespace {

// A signal's handler may make no text.
const std::string* g_last_words = nullptr;

void SayLastWords(int signal) {
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, g_last_words->data(), g_last_words->size());
  raise(signal);  // ends the process when the handler returns
}

}  // namespace

void SetLastWords(const std::string& words) {
  struct sigaction action = {};
  action.sa_handler = words.empty() ? SIG_DFL : SayLastWords;
  action.sa_flags = SA_RESETHAND;
  // Never freed: a handler may be reading them.
  if (!words.empty()) g_last_words = new std::string(words);
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    if (!IsIgnored(signal)) sigaction(signal, &action, nullptr);
  }
}

}  // namespace convene
