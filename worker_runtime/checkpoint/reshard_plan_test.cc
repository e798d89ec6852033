#include "worker_runtime/checkpoint/reshard_plan.h"

#include <random>

#include "absl/types/span.h"
#include "tools/base/testing/status_testing.h"
#include "worker_runtime/checkpoint/box.h"
#include "worker_runtime/checkpoint/testing/test_layout.h"

namespace convene::worker {
namespace {

using testing::CutModel;
using testing::kModel;
using testing::Positions;
using testing::ValueAt;
using testing::WholeBox;

TensorPiece Rows(int64_t first, int64_t count) {
  return {"weight", {8, 4}, {{first, 0}, {count, 4}}, 0, count * 4};
}

std::vector<std::string> Boxes(const Box& box, int64_t begin, int64_t count) {
  std::vector<std::string> texts;
  for (const Box& part : BoxesOfFlatRange(box, begin, count)) texts.push_back(ToString(part));
  return texts;
}

TEST_CASE("a flat range is a head, whole rows and a tail") {
  const Box box = {{10, 20}, {4, 5}};
  using Texts = std::vector<std::string>;
  CHECK(Boxes(box, 0, 0) == Texts{});
  CHECK(Boxes(box, 0, 20) == Texts{"[10:14, 20:25]"});
  CHECK(Boxes(box, 5, 10) == Texts{"[11:13, 20:25]"});
  CHECK(Boxes(box, 6, 3) == Texts{"[11:12, 21:24]"});
  CHECK(Boxes(box, 3, 4) == Texts{"[10:11, 23:25]", "[11:12, 20:22]"});
  CHECK(Boxes(box, 3, 14) == Texts{"[10:11, 23:25]", "[11:13, 20:25]", "[13:14, 20:22]"});
  CHECK(Boxes({{7}, {9}}, 2, 3) == Texts{"[9:12]"});
}

TEST_CASE("the boxes of any flat range are exactly its elements, at most 2 * axes - 1 of them") {
  for (const std::vector<int64_t>& extent :
       {std::vector<int64_t>{7}, {3, 4}, {1, 5}, {5, 1}, {2, 3, 4}, {2, 1, 3, 2}}) {
    std::vector<int64_t> shape = extent;
    Box box{std::vector<int64_t>(extent.size(), 1), extent};
    for (int64_t& size : shape) size += 2;
    for (int64_t begin = 0; begin <= box.elements(); ++begin) {
      for (int64_t count = 0; begin + count <= box.elements(); ++count) {
        const std::vector<Box> parts = BoxesOfFlatRange(box, begin, count);
        REQUIRE(parts.size() <= 2 * extent.size() - 1);
        std::vector<int64_t> found;
        for (const Box& part : parts) {
          for (int64_t p : Positions({"t", shape, part, 0, part.elements()})) found.push_back(p);
        }
        REQUIRE(found == Positions({"t", shape, box, begin, count}));
      }
    }
  }
}

TEST_CASE("what is subtracted and what is left make the whole") {
  const Box whole = {{0, 0, 0}, {4, 4, 4}};
  const Box middle = {{1, 1, 1}, {2, 2, 2}};
  const std::vector<Box> rest = Subtract(whole, middle);
  int64_t elements = middle.elements();
  for (size_t i = 0; i < rest.size(); ++i) {
    elements += rest[i].elements();
    CHECK(!Intersect(rest[i], middle).has_value());
    if (i > 0) CHECK(rest[i - 1].offset < rest[i].offset);
  }
  CHECK(elements == whole.elements());
  CHECK(Subtract(middle, whole).empty());
  CHECK(Subtract(middle, {{3, 0, 0}, {1, 4, 4}}) == std::vector<Box>{middle});
}

TEST_CASE("rows that are contiguous on both sides become one copy") {
  const auto plan = PlanReshard({Rows(2, 4)}, {Rows(0, 3), Rows(3, 5)});
  REQUIRE_OK(plan);
  REQUIRE(plan->size() == 2);
  CHECK((*plan)[0].axes == 1);
  CHECK((*plan)[0].source_offset == 8);
  CHECK((*plan)[0].extent[0] == 4);
  CHECK((*plan)[1].target_offset == 4);
  CHECK((*plan)[1].extent[0] == 12);
}

TEST_CASE("a hole is named by its first box") {
  CHECK_STATUS(PlanReshard({Rows(0, 8)}, {Rows(0, 3), Rows(5, 1)}),
               absl::StatusCode::kFailedPrecondition,
               "tensor 'weight' has box [3:5, 0:4] in no chunk");
  TensorPiece ragged = Rows(0, 8);
  ragged.flat_count = 30;
  CHECK_STATUS(CheckTiling({ragged}), absl::StatusCode::kFailedPrecondition,
               "[7:8, 2:4] in no chunk");
}

TEST_CASE("an element in two chunks is refused, even when the total is right") {
  CHECK_STATUS(PlanReshard({Rows(0, 8)}, {Rows(0, 5), Rows(4, 4)}),
               absl::StatusCode::kFailedPrecondition, "has box [4:5, 0:4] in two chunks, 0 and 1");
  CHECK_STATUS(CheckTiling({Rows(0, 4), Rows(0, 4)}), absl::StatusCode::kFailedPrecondition,
               "in two chunks");
  CHECK_OK(CheckTiling({Rows(4, 4), Rows(0, 4)}));
}

TEST_CASE("an absent tensor and another shape are refused by name") {
  TensorPiece misspelt = Rows(0, 8);
  misspelt.name = "weigth";
  CHECK_STATUS(PlanReshard({misspelt}, {Rows(0, 8)}), absl::StatusCode::kFailedPrecondition,
               "tensor 'weigth' is in no chunk; 'weight' is");
  const TensorPiece wider = {"weight", {8, 5}, {{0, 0}, {8, 5}}, 0, 40};
  CHECK_STATUS(PlanReshard({wider}, {Rows(0, 8)}), absl::StatusCode::kFailedPrecondition,
               "has shape [8, 4] where it was written, and [8, 5]");
}

TEST_CASE("an impossible piece is refused by name") {
  const auto refused = [](auto change) {
    TensorPiece piece = Rows(2, 4);
    change(&piece);
    return ValidatePiece(piece);
  };
  CHECK_OK(refused([](TensorPiece*) {}));
  CHECK_STATUS(refused([](TensorPiece* p) { p->name = ""; }), absl::StatusCode::kInvalidArgument,
               "without a name");
  CHECK_STATUS(refused([](TensorPiece* p) { p->flat_begin = 1; }),
               absl::StatusCode::kInvalidArgument,
               "flat range 1 + 16 is not inside the 16 elements");
  CHECK_STATUS(refused([](TensorPiece* p) { p->local_box.offset[0] = 5; }),
               absl::StatusCode::kInvalidArgument, "box [5:9, 0:4] is not inside the shape [8, 4]");
  CHECK_STATUS(refused([](TensorPiece* p) { p->global_shape = {8}; }),
               absl::StatusCode::kInvalidArgument, "its box has 2 offsets");
  CHECK_STATUS(refused([](TensorPiece* p) {
                 p->global_shape = {int64_t{1} << 40, int64_t{1} << 40};
               }),
               absl::StatusCode::kInvalidArgument, "impossible shape");
}

TEST_CASE("any layout's pieces fill any other's") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    const auto cut = [&] { return CutModel(kModel, 1 + random() % 5, 1 + random() % 4, &random); };
    std::vector<TensorPiece> available, wanted;
    for (const auto& rank : cut()) available.insert(available.end(), rank.begin(), rank.end());
    for (const auto& rank : cut()) wanted.insert(wanted.end(), rank.begin(), rank.end());
    std::shuffle(available.begin(), available.end(), random);
    REQUIRE_OK(CheckTiling(available));
    const auto plan = PlanReshard(wanted, available);
    REQUIRE_OK(plan);
    std::vector<std::vector<float>> sources, targets;
    for (const TensorPiece& piece : available) {
      sources.emplace_back();
      for (int64_t p : Positions(piece)) sources.back().push_back(ValueAt(piece.name, p, 0));
    }
    for (const TensorPiece& piece : wanted) targets.emplace_back(piece.flat_count, -1.0f);
    for (const BoxCopy& copy : *plan) {
      CopyBox(copy, absl::MakeConstSpan(sources[copy.available_index]),
              absl::MakeSpan(targets[copy.wanted_index]));
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      std::vector<float> expected;
      for (int64_t p : Positions(wanted[i])) expected.push_back(ValueAt(wanted[i].name, p, 0));
      REQUIRE(targets[i] == expected);
    }
  }
}

TEST_CASE("without any one of its pieces a tensor is not whole") {
  std::mt19937_64 random(7);
  std::vector<TensorPiece> pieces;
  for (const auto& rank : CutModel(kModel, 3, 2, &random)) {
    for (const TensorPiece& piece : rank) {
      if (piece.flat_count > 0) pieces.push_back(piece);
    }
  }
  for (size_t missing = 0; missing < pieces.size(); ++missing) {
    std::vector<TensorPiece> rest = pieces;
    rest.erase(rest.begin() + missing);
    std::vector<TensorPiece> wanted = {{pieces[missing].name, pieces[missing].global_shape,
                                        WholeBox(pieces[missing].global_shape), 0,
                                        WholeBox(pieces[missing].global_shape).elements()}};
    CHECK_STATUS(PlanReshard(wanted, rest), absl::StatusCode::kFailedPrecondition, wanted[0].name);
  }
}

TEST_CASE("twenty thousand chunks are planned at once") {
  std::vector<TensorPiece> available, wanted;
  for (int tensor = 0; tensor < 100; ++tensor) {
    const std::string name = "layers." + std::to_string(tensor);
    for (int64_t i = 0; i < 200; ++i) {
      available.push_back({name, {4096, 1024}, WholeBox({4096, 1024}), i * 20971, 20971});
    }
    available.back().flat_count = 4096 * 1024 - 199 * 20971;
    wanted.push_back({name, {4096, 1024}, {{0, 256}, {4096, 512}}, 12345, 1 << 20});
  }
  CHECK_OK(CheckTiling(available));
  CHECK_OK(PlanReshard(wanted, available));
}

}  // namespace
}  // namespace convene::worker
