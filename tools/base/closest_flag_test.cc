#include "tools/base/closest_flag.h"

#include <catch2/catch.hpp>

namespace convene {
namespace {

const std::vector<std::string> kFlags = {
    "--learning-rate",    "--min-learning-rate", "--lr-schedule",     "--global-batch-size",
    "--micro-batch-size", "--value-size",        "--vocabulary-size", "--head-size",
    "--deterministic",    "--nproc-per-node",    "--nnodes",          "--steps",
    "--warmup-steps"};

TEST_CASE("the flag that has the words of another trainer's flag comes before a similar one") {
  CHECK(ClosestFlag("--vocab-size", kFlags) == "--vocabulary-size");
  CHECK(ClosestFlag("--batch_size", kFlags) == "--global-batch-size or --micro-batch-size");
  CHECK(ClosestFlag("--nproc", kFlags) == "--nproc-per-node");
  CHECK(ClosestFlag("--lr", kFlags) == "--learning-rate");
  CHECK(ClosestFlag("--Warmup", kFlags) == "--warmup-steps");
  CHECK(ClosestFlag("learning_rat", {"learning_rate", "min_learning_rate"}) == "learning_rate");
}

TEST_CASE("without its words a flag is the nearest one, and never the opposite") {
  CHECK(ClosestFlag("--lerning-rate", kFlags) == "--learning-rate");
  CHECK(ClosestFlag("--nproc-per-nodes", kFlags) == "--nproc-per-node");
  CHECK(ClosestFlag("--size", kFlags) == "--value-size or --vocabulary-size or --head-size");
  CHECK(
      ClosestFlag("--size", {"--blue-size", "--pink-size", "--grey-size", "--teal-size"}).empty());
  CHECK(ClosestFlag("--step", kFlags) == "--steps");
  CHECK(ClosestFlag("--no-deterministic", kFlags).empty());
  CHECK(ClosestFlag("--quantum-entanglement", kFlags).empty());
  CHECK(ClosestFlag("--", kFlags).empty());
  CHECK(ClosestFlag("--x", {}).empty());
}

}  // namespace
}  // namespace convene
