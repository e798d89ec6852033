#include "worker_runtime/shard/flat_shard.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "worker_runtime/model/testing/chunks.h"
#include "worker_runtime/ops/elementwise.h"

namespace convene::worker {
namespace {

ModelConfig Tiny() { return NamedModel("llama-tiny").value(); }

// Every number of ranks, over one stage and over several, with one bucket and with many.
template <typename Body>
void OnEveryCut(Body body) {
  for (int dp = 1; dp <= 8; ++dp) {
    for (const Layout layout : {Layout{1, dp, 1}, Layout{2, dp, 2}}) {
      for (const int64_t count_min : {int64_t{1}, int64_t{60'000}, int64_t{1} << 40}) {
        INFO(layout.ToString() << ", buckets of at least " << count_min);
        body(PlaceUnits(UnitsOf(Tiny(), testing::EvenChunk(Tiny(), layout.pp, 0), layout.tp, 0), dp,
                        count_min),
             dp);
      }
    }
  }
}

TEST_CASE("the shards of all ranks hold every element of every parameter once") {
  OnEveryCut([](const Placement& placement, int dp) {
    std::vector<char> held(placement.flat_count);
    for (int rank = 0; rank < dp; ++rank) {
      int64_t last_end = 0;
      for (const ShardSegment& segment : MakeFlatShard(placement, dp, rank).segments) {
        CHECK(segment.flat_begin >= last_end);
        last_end = segment.flat_begin + segment.count;
        const PlacedParameter& slice = placement.parameters[segment.parameter];
        CHECK(segment.flat_begin == slice.flat_offset + segment.slice_begin);
        CHECK(segment.slice_begin + segment.count <= slice.count());
        for (int64_t i = segment.flat_begin; i < last_end; ++i) ++held[i];
      }
    }
    std::vector<char> expected(placement.flat_count);
    for (const PlacedParameter& slice : placement.parameters) {
      std::fill_n(expected.begin() + slice.flat_offset, slice.count(), 1);
    }
    CHECK(held == expected);
  });
}

TEST_CASE("a shard is its parts one after the other, and each part the same share of its bucket") {
  OnEveryCut([](const Placement& placement, int dp) {
    for (int rank = 0; rank < dp; ++rank) {
      const FlatShard shard = MakeFlatShard(placement, dp, rank);
      REQUIRE(shard.parts.size() == placement.buckets.size());
      int64_t shard_end = 0;
      for (const ShardPart& part : shard.parts) {
        CHECK(part.shard_begin == shard_end);
        CHECK(part.count * dp == part.bucket.count);
        CHECK(part.count % kParameterAlignment == 0);
        CHECK(part.flat_begin == part.bucket.begin + rank * part.count);
        shard_end += part.count;
      }
      CHECK(shard.count == shard_end);
      CHECK(shard.count * dp == placement.flat_count);
    }
  });
}

TEST_CASE("flags are those of the parameter, and none where there is none") {
  OnEveryCut([](const Placement& placement, int dp) {
    std::vector<uint8_t> flat_flags(placement.flat_count / kFlagBlock);
    for (const PlacedParameter& slice : placement.parameters) {
      const int64_t end = slice.flat_offset + slice.count();
      for (int64_t block = slice.flat_offset / kFlagBlock; block * kFlagBlock < end; ++block) {
        flat_flags[block] = (slice.decayed ? kDecayed : 0) | (slice.owned ? kOwned : 0);
      }
    }
    for (int rank = 0; rank < dp; ++rank) {
      const FlatShard shard = MakeFlatShard(placement, dp, rank);
      std::vector<uint8_t> expected;
      for (const ShardPart& part : shard.parts) {
        const auto begin = flat_flags.begin() + part.flat_begin / kFlagBlock;
        expected.insert(expected.end(), begin, begin + part.count / kFlagBlock);
      }
      CHECK(MakeParameterFlags(placement, shard, /*speaks_for_shard=*/true) == expected);
      for (uint8_t& flags : expected) flags &= static_cast<uint8_t>(~kOwned);
      CHECK(MakeParameterFlags(placement, shard, /*speaks_for_shard=*/false) == expected);
    }
  });
}

TEST_CASE(
    "runs hold the whole shard in its order, and say of each element whether it is a matrix's") {
  OnEveryCut([](const Placement& placement, int dp) {
    for (int rank = 0; rank < dp; ++rank) {
      const FlatShard shard = MakeFlatShard(placement, dp, rank);
      const std::vector<MatrixRun> runs = MatrixRuns(placement, shard);
      std::vector<char> of_matrices(shard.count, 2);
      int64_t end = 0;
      int64_t rest = 0;
      const MatrixRun* before = nullptr;
      for (const MatrixRun& run : runs) {
        CHECK(run.shard_begin == end);
        CHECK(run.count > 0);
        CHECK(run.count % kParameterAlignment == 0);
        CHECK(run.shard_begin % kParameterAlignment == 0);
        CHECK(RestBefore(runs, end) == rest);
        const int64_t half = run.count / 2;
        CHECK(RestBefore(runs, end + half) == rest + (run.of_matrices ? 0 : half));
        if (!run.of_matrices) rest += run.count;
        end += run.count;
        const ShardPart& part = shard.parts[run.part];
        CHECK(run.shard_begin >= part.shard_begin);
        CHECK(end <= part.shard_begin + part.count);
        // As few as can be.
        CHECK((before == nullptr || before->part != run.part ||
               before->of_matrices != run.of_matrices));
        before = &run;
        std::fill_n(of_matrices.begin() + run.shard_begin, run.count, run.of_matrices ? 1 : 0);
      }
      CHECK(end == shard.count);
      CHECK(RestBefore(runs, shard.count) == rest);
      for (const ShardSegment& segment : shard.segments) {
        const char expected = placement.parameters[segment.parameter].is_matrix() ? 1 : 0;
        const auto begin = of_matrices.begin() + segment.shard_begin;
        CHECK(std::all_of(begin, begin + segment.count, [=](char is) { return is == expected; }));
      }
    }
  });
}

}  // namespace
}  // namespace convene::worker
