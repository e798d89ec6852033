#include "worker_runtime/report/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace convene::worker {
namespace {

constexpr int kDotsAcross = 2;
constexpr int kDotsDown = 4;

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  void Include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  // The dot of `count` that `value` falls on; a range of one value has it in the middle.
  int DotOf(double value, int count) const {
    if (high == low) return count / 2;
    const double share = std::clamp((value - low) / (high - low), 0.0, 1.0);
    return static_cast<int>(std::lround(share * (count - 1)));
  }
};

bool IsFinite(const PlotPoint& point) { return std::isfinite(point.x) && std::isfinite(point.y); }

// One code point below U+10000 as UTF-8 (braille and line drawing need three bytes).
void AppendCharacter(char32_t character, std::string* text) {
  if (character < 0x80) {
    text->push_back(static_cast<char>(character));
    return;
  }
  text->push_back(static_cast<char>(0xE0 | (character >> 12)));
  text->push_back(static_cast<char>(0x80 | ((character >> 6) & 0x3F)));
  text->push_back(static_cast<char>(0x80 | (character & 0x3F)));
}

// The area inside the axes. Dots and cells are counted from the left and from the top.
class Canvas {
 public:
  Canvas(int width, int height)
      : width_(width), height_(height), dots_(width * height), marks_(width * height, U' ') {}

  int dots_across() const { return width_ * kDotsAcross; }
  int dots_down() const { return height_ * kDotsDown; }

  void Dot(int x, int y) {
    // Unicode numbers a cell's dots 1-2-3-7 down the left side and 4-5-6-8 down the right.
    static constexpr uint8_t kBits[kDotsDown][kDotsAcross] = {
        {0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    dots_[CellOf(x, y)] |= kBits[y % kDotsDown][x % kDotsAcross];
  }

  void Line(int from_x, int from_y, int to_x, int to_y) {
    const int length = std::max({std::abs(to_x - from_x), std::abs(to_y - from_y), 1});
    for (int i = 0; i <= length; ++i) {
      Dot(from_x + static_cast<int>(std::lround(double(to_x - from_x) * i / length)),
          from_y + static_cast<int>(std::lround(double(to_y - from_y) * i / length)));
    }
  }

  // A whole character: over the dots, or (a restart's line) only where there are none.
  void Mark(int x, int y, char32_t character) { marks_[CellOf(x, y)] = character; }

  std::string Row(int row) const {
    std::string text;
    for (int cell = row * width_; cell < (row + 1) * width_; ++cell) {
      const bool is_dots = dots_[cell] != 0 && marks_[cell] != U'o';
      AppendCharacter(is_dots ? char32_t{0x2800} + dots_[cell] : marks_[cell], &text);
    }
    return text;
  }

 private:
  int CellOf(int x, int y) const { return y / kDotsDown * width_ + x / kDotsAcross; }

  int width_;
  int height_;
  std::vector<uint8_t> dots_;
  std::vector<char32_t> marks_;
};

void Draw(const LossPlotData& data, const Range& x, const Range& y, Canvas* canvas) {
  const auto column = [&](double value) { return x.DotOf(value, canvas->dots_across()); };
  const auto row = [&](double value) {
    return canvas->dots_down() - 1 - y.DotOf(value, canvas->dots_down());
  };
  for (const double restart : data.restarts) {
    if (!(restart >= x.low && restart <= x.high)) continue;
    for (int dot = 0; dot < canvas->dots_down(); dot += kDotsDown) {
      canvas->Mark(column(restart), dot, U'┊');
    }
  }
  const PlotPoint* previous = nullptr;
  for (const PlotPoint& point : data.training) {
    if (!IsFinite(point)) {
      previous = nullptr;
      continue;
    }
    const PlotPoint& from = previous == nullptr ? point : *previous;
    canvas->Line(column(from.x), row(from.y), column(point.x), row(point.y));
    previous = &point;
  }
  for (const PlotPoint& point : data.validation) {
    if (IsFinite(point)) canvas->Mark(column(point.x), row(point.y), U'o');
  }
}

// Numbers on the top, the bottom, and about every fourth row between, at the height of the row's
// middle.
std::string RowLabel(const Range& y, int row, int height) {
  const bool is_labelled = row == 0 || row == height - 1 || (row % 4 == 0 && row + 3 < height);
  if (!is_labelled) return std::string(8, ' ');
  const double share = static_cast<double>(row) / (height - 1);
  const double value = y.high - share * (y.high - y.low);
  return std::abs(value) < 1000 ? absl::StrFormat("%8.3f", value) : absl::StrFormat("%8.3g", value);
}

// First and last x at the ends, the middle one between when there is room.
std::string StepLabels(const Range& x, int width) {
  const auto number = [](double value) { return absl::StrFormat("%.0f", value); };
  const std::string left = number(x.low), middle = number((x.low + x.high) / 2);
  const std::string right = number(x.high);
  std::string text(width, ' ');
  const auto put = [&text](size_t begin, const std::string& label) {
    if (begin + label.size() <= text.size()) text.replace(begin, label.size(), label);
  };
  put(0, left);
  if (x.high > x.low) put(width - std::min<size_t>(width, right.size()), right);
  const size_t begin = (width - std::min<size_t>(width, middle.size())) / 2;
  const size_t end_of_left = left.size() + 2;
  if (x.high > x.low && begin >= end_of_left &&
      begin + middle.size() + 2 + right.size() <= text.size()) {
    put(begin, middle);
  }
  return text;
}

std::string Legend(const LossPlotData& data) {
  return absl::StrCat("step    ⠤ training loss",
                      data.validation.empty() ? "" : "   o validation loss",
                      data.restarts.empty() ? "" : "   ┊ restart");
}

}  // namespace

LossPlotData LossPlotDataOf(const MetricsHistory& history) {
  LossPlotData data;
  for (const StepMetrics& metrics : history.steps) {
    const double step = static_cast<double>(metrics.step);
    data.training.push_back({step, metrics.loss});
  }
  for (size_t i = 1; i < history.steps.size(); ++i) {
    if (history.steps[i].epoch == history.steps[i - 1].epoch) continue;
    data.restarts.push_back(static_cast<double>(history.steps[i].step));
  }
  for (const ValidationMetrics& metrics : history.validations) {
    data.validation.push_back({static_cast<double>(metrics.step), metrics.validation_loss});
  }
  return data;
}

std::string LossPlot(const LossPlotData& data, int width, int height) {
  width = std::max(width, 8);
  height = std::max(height, 2);
  Range x, y;
  for (const std::vector<PlotPoint>* points : {&data.training, &data.validation}) {
    for (const PlotPoint& point : *points) {
      if (!IsFinite(point)) continue;
      x.Include(point.x);
      y.Include(point.y);
    }
  }
  if (x.low > x.high) return "no losses to plot\n";
  Canvas canvas(width, height);
  Draw(data, x, y, &canvas);
  std::string text;
  const auto add_line = [&text](std::string line) {
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&text, line, "\n");
  };
  for (int row = 0; row < height; ++row) {
    add_line(absl::StrCat(RowLabel(y, row, height), " │", canvas.Row(row)));
  }
  std::string axis = absl::StrCat(std::string(9, ' '), "└");
  for (int column = 0; column < width; ++column) absl::StrAppend(&axis, "─");
  add_line(axis);
  const std::string margin(10, ' ');
  add_line(absl::StrCat(margin, StepLabels(x, width)));
  add_line(absl::StrCat(margin, Legend(data)));
  return text;
}

}  // namespace convene::worker
