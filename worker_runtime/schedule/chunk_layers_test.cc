#include "worker_runtime/schedule/chunk_layers.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <numeric>
#include <vector>

#include "tools/base/testing/status_testing.h"

namespace convene::worker {
namespace {

std::vector<int> Cut(absl::string_view layout, int layers, int chunks, double head_cost = 0) {
  const absl::StatusOr<std::vector<int>> cut = CutLayers(layout, layers, chunks, head_cost);
  REQUIRE_OK(cut);
  return *cut;
}

double Dearest(const std::vector<int>& cut, double head_cost) {
  std::vector<double> cost(cut.begin(), cut.end());
  cost.back() += head_cost;
  return *std::max_element(cost.begin(), cost.end());
}

TEST_CASE("layers that divide are cut into equal chunks") {
  CHECK(Cut("", 8, 1) == std::vector<int>{8});
  CHECK(Cut("", 32, 4) == std::vector<int>{8, 8, 8, 8});
  CHECK(Cut("", 32, 4, 0.5) == std::vector<int>{8, 8, 8, 8});
}

TEST_CASE("what does not divide goes to the middle, and a dear head takes layers away") {
  CHECK(Cut("", 10, 4) == std::vector<int>{2, 3, 3, 2});
  CHECK(Cut("", 30, 4, 0.9) == std::vector<int>{7, 8, 8, 7});
  CHECK(Cut("", 16, 4, 4.3) == std::vector<int>{5, 5, 5, 1});
  CHECK(Cut("", 15, 4, 9) == std::vector<int>{5, 5, 5, 0});
}

TEST_CASE("no cut has a cheaper dearest chunk") {
  for (int chunks = 1; chunks <= 4; ++chunks) {
    for (int layers = std::max(1, chunks - 2); layers <= 9; ++layers) {
      for (const double head_cost : {0.0, 0.5, 1.0, 2.6}) {
        INFO(layers << " layers, " << chunks << " chunks, head " << head_cost);
        const std::vector<int> cut = Cut("", layers, chunks, head_cost);
        REQUIRE(std::accumulate(cut.begin(), cut.end(), 0) == layers);
        std::vector<int> other;
        const std::function<void(int)> try_all = [&](int left) {
          if (static_cast<int>(other.size()) == chunks) {
            if (left == 0) REQUIRE(Dearest(cut, head_cost) <= Dearest(other, head_cost) + 1e-9);
            return;
          }
          const bool is_inner = !other.empty() && static_cast<int>(other.size()) + 1 < chunks;
          for (int count = is_inner ? 1 : 0; count <= left; ++count) {
            other.push_back(count);
            try_all(left - count);
            other.pop_back();
          }
        };
        try_all(layers);
        // A cut written out is read as it is.
        std::string text;
        for (const int count : cut) text += (text.empty() ? "" : ",") + std::to_string(count);
        REQUIRE(Cut(text, layers, chunks, head_cost) == cut);
      }
    }
  }
}

TEST_CASE("a layout in words of one's own") {
  CHECK(Cut("5,6*2,7", 24, 4) == std::vector<int>{5, 6, 6, 7});
  CHECK(Cut(" 0, 4*2, 0", 8, 4) == std::vector<int>{0, 4, 4, 0});
}

TEST_CASE("an illegal layout is refused with a legal one") {
  struct Row {
    const char* layout;
    const char* problem;
  };
  for (const Row& row : {
           Row{"5,6,6",
               "--pp-layout 5,6,6: it names 3 chunks, and the pipeline has 4; 2,3,3,2 "
               "would be legal"},
           Row{"2,3,3,3", "it adds up to 11 layers, and the model has 10; 2,3,3,2 would be legal"},
           Row{"5,5,0,0", "chunk 2 has no layer"},
           Row{"2,3,x,2", "'x' is no count of layers between 0 and 10, nor such a count, '*' and"},
           Row{"2,3*,3,2", "'3*' is no count"},
           Row{"2,3*5,2", "'3*5' is no count"},
           Row{"2,,6,2", "'' is no count"},
           Row{"-1,6,3,2", "'-1' is no count"},
           Row{"11,3,3,2", "'11' is no count"},
           Row{"3*0,3,3,4", "'3*0' is no count"},
       }) {
    INFO(row.layout);
    CHECK_STATUS(CutLayers(row.layout, 10, 4, 0), absl::StatusCode::kInvalidArgument, row.problem);
  }
  CHECK(Cut("", 3, 5) == std::vector<int>{0, 1, 1, 1, 0});
  CHECK_STATUS(CutLayers("", 3, 6, 0), absl::StatusCode::kInvalidArgument, "at most 5 chunks");
  CHECK_STATUS(CutLayers("", 3, 8, 0), absl::StatusCode::kInvalidArgument,
               "8 pipeline chunks for 3 layers: only the first and the last chunk can do without a "
               "layer, so there are at most 5 chunks (pipeline ranks x virtual stages)");
}

}  // namespace
}  // namespace convene::worker
