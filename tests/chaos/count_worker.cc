// A job for the chaos test, cheap to start: the ranks count together, one step every 2 ms, and end
// with 0 when the count has reached the target.
//
//   count_worker DIRECTORY
//
// Rank 0 counts. A step appends "<epoch> <count>\n" to DIRECTORY/history, then renames a file with
// the count to DIRECTORY/count: that is the checkpoint, so a restart repeats at most the step that
// was under way. DIRECTORY/target appears when it is known. Each rank also has a helper, as a data
// loader would be, that moved to a session of its own and never ends by itself.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

namespace {

constexpr int kStepMilliseconds = 2;

long ReadNumber(const std::string& path, long otherwise) {
  std::ifstream file(path);
  long number = otherwise;
  return file >> number ? number : otherwise;
}

void StartHelper() {
  if (fork() != 0) return;
  setsid();
  for (int fd = 0; fd < 3; ++fd) close(fd);
  for (;;) pause();
}

bool Append(const std::string& path, const std::string& line) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool whole =
      fd >= 0 && write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  close(fd);
  return whole;
}

bool Count(const std::string& directory, const std::string& epoch, long count) {
  const std::string number = std::to_string(count);
  if (!Append(directory + "/history", epoch + " " + number + "\n")) return false;
  const std::string next = directory + "/count." + epoch;
  unlink(next.c_str());
  return Append(next, number + "\n") &&
         std::rename(next.c_str(), (directory + "/count").c_str()) == 0;
}

}  // namespace

int main(int argc, char** argv) {
  const char* const rank = std::getenv("RANK");
  const char* const epoch = std::getenv("CONVENE_EPOCH");
  if (argc != 2 || rank == nullptr || epoch == nullptr) return 64;
  const std::string directory = argv[1];
  StartHelper();
  const bool counts = std::string(rank) == "0";
  for (;;) {
    const long count = ReadNumber(directory + "/count", 0);
    if (count >= ReadNumber(directory + "/target", count + 1)) return 0;
    if (counts && !Count(directory, epoch, count + 1)) return 1;
    poll(nullptr, 0, kStepMilliseconds);  // the step's work
  }
}
