// A daemon that is told to end, as stories (story.h tells how to read them).
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "rendezvous/quorum/testing/story.h"

namespace convene::rendezvous {
namespace {

// The first of two nodes hosts the daemon, and is told to end.
const char kHostLeaves[] = R"(
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > daemon ends soon host=7
    > a leaves with_workers
    a: stop abort: a left: SIGTERM
    b: stop abort: a left: SIGTERM
    > a leaves
    a: close left: SIGTERM
    a: end OK
    > b ready
)";

TEST_CASE("a daemon that is told to end forms no epoch that nobody goes on with") {
  Check(Story(Nodes(1, 2)), absl::StrCat(R"(
    > a hello incarnation=7 hosts
    a: welcome
    > b hello incarnation=8
    b: welcome)",
                                         kHostLeaves, R"(
    > rest 2s
  )"));
}

TEST_CASE("a daemon that is told to end forms the epoch that another agent goes on with") {
  Check(Story(Nodes(1, 2)), absl::StrCat(R"(
    > a hello incarnation=7 hosts
    a: welcome
    > b hello incarnation=8 hosts
    b: welcome)",
                                         kHostLeaves, R"(
    b: epoch 2 node 0 of 1, ranks from 0 of 1, store b, failures 0
  )"));
}

TEST_CASE(
    "a daemon that is told to end begins no first epoch, and its own process goes on with none") {
  Check(Story(Nodes(1, 2)), R"(
    > a hello incarnation=7 hosts
    a: welcome
    > b hello incarnation=8
    b: welcome
    > daemon ends soon host=7
    > a ready
    > b ready
    > rest 2s
  )");
  // All have stopped, and the signal reaches the host before its last Ready has come.
  Check(Story(Nodes(1, 2, 1)), R"(
    > a hello incarnation=7 hosts
    a: welcome
    > b hello incarnation=8
    b: welcome
    > a ready
    > b ready
    a: epoch 1 node 0 of 2, ranks from 0 of 2, store a, failures 0
    b: epoch 1 node 1 of 2, ranks from 1 of 2, store a, failures 0
    > b fails
    a: stop abort: rank 0 on b: exit code 1
    b: stop abort: rank 0 on b: exit code 1
    > a ready
    > daemon ends soon host=7
    > b ready
    > rest 2s
  )");
}

}  // namespace
}  // namespace convene::rendezvous
