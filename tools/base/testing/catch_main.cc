// Catch2's main, compiled once for all tests: it is slow to compile.
//
// A Catch2 assertion on a thread of its own corrupts Catch2's list of messages, and the test
// crashes once in a hundred runs (Catch2's documentation, "Limitations": assertions are not thread
// safe). Here it ends the test in each run, and says where it stands.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <thread>

namespace {

class OneThreadReporter : public Catch::ConsoleReporter {
 public:
  using ConsoleReporter::ConsoleReporter;

  static std::string getDescription() { return "console, and assertions on the test's thread"; }

  void assertionStarting(const Catch::AssertionInfo& assertion) override {
    if (std::this_thread::get_id() != thread_) {
      std::fprintf(stderr,
                   "%s:%zu: an assertion on a thread that is not the test's. Catch2 allows none: "
                   "return a value, and check it on the test's thread\n",
                   assertion.lineInfo.file, assertion.lineInfo.line);
      std::_Exit(EXIT_FAILURE);
    }
    ConsoleReporter::assertionStarting(assertion);
  }

 private:
  const std::thread::id thread_ = std::this_thread::get_id();
};
CATCH_REGISTER_REPORTER("one_thread", OneThreadReporter)

}  // namespace

int main(int argc, char** argv) {
  Catch::Session session;
  session.configData().reporterName = "one_thread";
  return session.run(argc, argv);
}
