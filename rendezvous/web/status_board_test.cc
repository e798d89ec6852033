#include "rendezvous/web/status_board.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/base/testing/manual_clock.h"
#include "tools/base/testing/status_testing.h"

namespace convene::rendezvous {
namespace {

// A text takes `cost` to make and tells the number of texts made so far.
class BoardTest {
 public:
  std::string Get(const std::string& job_id = "") {
    const auto text = board_.Get(job_id);
    REQUIRE_OK(text);
    return **text;
  }

  ManualClock clock_;
  absl::Duration cost_ = absl::Milliseconds(1);
  int made_ = 0;
  StatusBoard board_{[](const std::string& job_id) -> absl::StatusOr<std::vector<JobView>> {
                       if (job_id == "unknown") return absl::NotFoundError("no such job");
                       std::vector<JobView> views(1);
                       views[0].job_id = job_id;
                       return views;
                     },
                     [this](const std::vector<JobView>& views) {
                       clock_.Advance(cost_);
                       return absl::StrCat(views[0].job_id, ++made_);
                     },
                     &clock_};
};

TEST_CASE_METHOD(BoardTest, "a text is kept for twenty times what it cost") {
  CHECK(Get() == "1");
  clock_.Advance(absl::Milliseconds(19));
  CHECK(Get() == "1");
  clock_.Advance(absl::Milliseconds(1));
  CHECK(Get() == "2");
}

TEST_CASE_METHOD(BoardTest, "no text is older than five seconds") {
  cost_ = absl::Seconds(1);
  CHECK(Get() == "1");
  clock_.Advance(absl::Seconds(5) - absl::Nanoseconds(1));
  CHECK(Get() == "1");
  clock_.Advance(absl::Nanoseconds(1));
  CHECK(Get() == "2");
}

TEST_CASE_METHOD(BoardTest, "each job has its own text, and an unknown one has none") {
  CHECK(Get("a") == "a1");
  CHECK(Get("b") == "b2");
  CHECK(Get("a") == "a1");
  CHECK_STATUS(board_.Get("unknown"), absl::StatusCode::kNotFound, "no such job");
}

}  // namespace
}  // namespace convene::rendezvous
