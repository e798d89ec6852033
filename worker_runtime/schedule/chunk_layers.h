// PURE. How many of the model's layers each chunk of a pipeline holds: --pp-layout.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace convene::worker {

// [chunk]: its layers, in model order. A chunk between the ends has at least one layer; the
// first and the last may have the embedding or the head alone.
//
// `layout` gives the counts, separated by commas: "5,6,6,7"; "6*3" stands for "6,6,6". Empty: a cut
// whose chunk with the most work has as little of it as possible; chunks in the middle get what
// does not divide, because the chunks at the ends have other work too.
//
// InvalidArgument, with the automatic cut as the nearest legal value: text of another form, another
// number of chunks or of layers, or a chunk without any layer; and with the legal numbers, where
// the model has too few layers for so many chunks.
//
// `head_cost`: the last chunk's work beside its layers, in layers; the first one's, looking up
// tokens, is nothing beside it. REQUIRES: layers >= 1, chunks >= 1, head_cost >= 0.
absl::StatusOr<std::vector<int>> CutLayers(absl::string_view layout, int layers, int chunks,
                                           double head_cost);

}  // namespace convene::worker
