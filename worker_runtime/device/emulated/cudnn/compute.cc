#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker_runtime/device/emulated/cudnn/graph.h"
#include "worker_runtime/device/emulated/library.h"

namespace convene::emulated {
namespace {

[[noreturn]] void Refuse(const std::string& what) { throw std::runtime_error(what); }

int64_t ElementBytes(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_BFLOAT16:
      return 2;
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32:
      return 4;
    case CUDNN_DATA_INT64:
      return 8;
    default:
      Refuse(absl::StrCat("an element type that is not emulated: ", type));
  }
}

float Rounded(cudnnDataType_t type, float value) {
  if (type != CUDNN_DATA_BFLOAT16 || std::isnan(value)) return value;
  uint32_t bits = std::bit_cast<uint32_t>(value);
  bits += 0x7fff + ((bits >> 16) & 1);  // to the nearest, ties to even
  return std::bit_cast<float>(bits & 0xffff0000);
}

void Store(cudnnDataType_t type, float value, char* to) {
  value = Rounded(type, value);
  if (type == CUDNN_DATA_FLOAT) {
    std::memcpy(to, &value, sizeof(value));
  } else if (type == CUDNN_DATA_BFLOAT16) {
    std::memcpy(to, reinterpret_cast<const char*>(&value) + 2, 2);  // the upper half
  } else {
    Refuse("a result that is no floating-point number");
  }
}

// One sequence of a tensor, by head, row and column.
struct Values {
  int64_t heads = 0, rows = 0, columns = 0;
  std::vector<float> data;

  // Of a dimension of 1 the one element stands for all.
  float At(int64_t head, int64_t row, int64_t column) const {
    return data[((heads == 1 ? 0 : head) * rows + (rows == 1 ? 0 : row)) * columns +
                (columns == 1 ? 0 : column)];
  }
  float* Row(int64_t head, int64_t row) { return &data[(head * rows + row) * columns]; }
  const float* Row(int64_t head, int64_t row) const { return &data[(head * rows + row) * columns]; }
};

// A sequence of a tensor in memory.
struct Place {
  char* data = nullptr;
  int64_t length = 0;  // along the tensor's sequence dimension
};

// The computation of one sequence.
class Sequence {
 public:
  Sequence(const CudnnGraph& graph, const CudnnPointers& pointers, int64_t number)
      : graph_(graph), pointers_(pointers), number_(number) {}

  void Compute() {
    for (const CudnnOperation& operation : graph_.operations) {
      const CudnnTensor& output = Tensor(operation.output);
      Values result;
      switch (operation.kind) {
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
          result = Pointwise(operation, output);
          break;
        case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
          result = Product(operation, output);
          break;
        case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
          result = Reduction(operation, output);
          break;
        case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
          result = Reshape(operation, output);
          break;
        default:
          Refuse(absl::StrCat("an operation that is not emulated: ", operation.kind));
      }
      Keep(output, std::move(result));
    }
  }

 private:
  const CudnnTensor& Tensor(int64_t id) const { return graph_.tensors.at(id); }

  Values Empty(const CudnnTensor& tensor) const {
    Values values = {tensor.dimensions[1], tensor.dimensions[2], tensor.dimensions[3], {}};
    values.data.assign(values.heads * values.rows * values.columns,
                       std::numeric_limits<float>::quiet_NaN());
    return values;
  }

  // The memory that the tensor lies in, `count` elements from `first` on.
  char* Memory(const CudnnTensor& tensor, int64_t first, int64_t count) const {
    const int64_t bytes = ElementBytes(tensor.type);
    char* const begin = static_cast<char*>(pointers_.memory.at(tensor.id));
    const size_t end = (first + count) * bytes;
    if (first < 0 || (count > 0 && DeviceBytesFrom(begin) < end)) {
      Refuse(absl::StrCat("tensor ", tensor.id, ", sequence ", number_, ": its elements ", first,
                          " to ", first + count, " lie outside the memory that it was given"));
    }
    return begin + first * bytes;
  }

  int64_t Begin(int64_t id, int64_t number) const {
    const CudnnTensor& begins = Tensor(id);
    if (begins.type != CUDNN_DATA_INT64) Refuse("ragged offsets that are no 64-bit numbers");
    int64_t begin = 0;
    std::memcpy(&begin, Memory(begins, number, 1), sizeof(begin));
    return begin;
  }

  // The elements that a step of one in the offsets' tokens takes: the stride of the narrowest
  // tensor that has them. A wider one (the gradients of all query heads, beside those of the heads
  // that they share) begins as many tokens in.
  int64_t TokenStride(int64_t offsets) const {
    int64_t stride = std::numeric_limits<int64_t>::max();
    for (const auto& [id, tensor] : graph_.tensors) {
      if (tensor.begin == offsets) stride = std::min(stride, tensor.sequence_stride());
    }
    return stride;
  }

  Place Find(const CudnnTensor& tensor) const {
    if (reinterpret_cast<uintptr_t>(pointers_.memory.at(tensor.id)) % tensor.alignment != 0) {
      Refuse(absl::StrCat("tensor ", tensor.id, " is not at a multiple of ", tensor.alignment,
                          " bytes"));
    }
    std::array<int64_t, 4> dimensions = tensor.dimensions;
    int64_t& length = dimensions[tensor.sequence_dimension()];
    int64_t first = dimensions[0] == 1 ? 0 : number_ * tensor.strides[0];
    if (tensor.begin.has_value()) {
      const int64_t token = TokenStride(*tensor.begin);
      const int64_t begin = Begin(*tensor.begin, number_);
      const int64_t end = Begin(*tensor.begin, number_ + 1);
      if (begin % token != 0 || end % token != 0 || end < begin || end - begin > length * token) {
        Refuse(absl::StrCat("tensor ", tensor.id, ": sequence ", number_, " goes from ", begin,
                            " to ", end, ", in tokens of ", token, ", of at most ", length));
      }
      first = begin / token * tensor.sequence_stride();
      length = (end - begin) / token;
    }
    int64_t count = length == 0 ? 0 : 1;
    for (int i = 1; i < 4 && count > 0; ++i) count += (dimensions[i] - 1) * tensor.strides[i];
    return {Memory(tensor, first, count), length};
  }

  // Calls visit(element's address, values' element) for what lies in memory.
  template <typename Visit>
  void ForEach(const CudnnTensor& tensor, Values& values, const Visit& visit) const {
    const Place place = Find(tensor);
    const bool is_turned = tensor.sequence_dimension() == 3;
    const int64_t bytes = ElementBytes(tensor.type);
    for (int64_t head = 0; head < values.heads; ++head) {
      for (int64_t row = 0; row < (is_turned ? values.rows : place.length); ++row) {
        float* const elements = values.Row(head, row);
        for (int64_t column = 0; column < (is_turned ? place.length : values.columns); ++column) {
          const int64_t at =
              head * tensor.strides[1] + row * tensor.strides[2] + column * tensor.strides[3];
          visit(place.data + at * bytes, elements[column]);
        }
      }
    }
  }

  const Values& Read(int64_t id) {
    const auto found = values_.find(id);
    if (found != values_.end()) return found->second;
    const CudnnTensor& tensor = Tensor(id);
    if (tensor.is_virtual) Refuse(absl::StrCat("tensor ", id, " is read before it is computed"));
    Values values = Empty(tensor);
    if (tensor.is_by_value) {
      values.data[0] = pointers_.values.at(id);
    } else {
      ForEach(tensor, values,
              [&](const char* from, float& value) { value = ReadCudnnNumber(tensor.type, from); });
    }
    return values_[id] = std::move(values);
  }

  void Keep(const CudnnTensor& tensor, Values values) {
    if (tensor.is_virtual) {
      for (float& value : values.data) value = Rounded(tensor.type, value);
      values_[tensor.id] = std::move(values);
      return;
    }
    values_.erase(tensor.id);  // who reads it reads the memory
    ForEach(tensor, values, [&](char* to, float& value) { Store(tensor.type, value, to); });
  }

  // A sequence's count of rows, columns or summands of a product.
  int64_t Count(const std::optional<int64_t>& id, int64_t most) const {
    if (!id.has_value()) return most;
    const CudnnTensor& counts = Tensor(*id);
    if (counts.type != CUDNN_DATA_INT32) Refuse("lengths that are no 32-bit numbers");
    int32_t count = 0;
    std::memcpy(&count, Memory(counts, number_, 1), sizeof(count));
    if (count < 0 || count > most) {
      Refuse(absl::StrCat("sequence ", number_, " has ", count, " tokens, of at most ", most));
    }
    return count;
  }

  Values Product(const CudnnOperation& operation, const CudnnTensor& output) {
    const Values& a = Read(operation.inputs[0]);
    const Values& b = Read(operation.inputs[1]);
    Values c = Empty(output);
    if (a.rows != c.rows || b.columns != c.columns || a.columns != b.rows ||
        c.heads % a.heads != 0 || c.heads % b.heads != 0) {
      Refuse(absl::StrCat("a product whose shapes do not fit, into tensor ", output.id));
    }
    const int64_t rows = Count(operation.rows, c.rows);
    const int64_t columns = Count(operation.columns, c.columns);
    const int64_t depth = Count(operation.depth, a.columns);
    for (int64_t head = 0; head < c.heads; ++head) {
      for (int64_t row = 0; row < rows; ++row) {
        const float* const left = a.Row(head * a.heads / c.heads, row);
        float* const sums = c.Row(head, row);
        std::fill(sums, sums + columns, 0.0f);
        for (int64_t i = 0; i < depth; ++i) {
          const float* const right = b.Row(head * b.heads / c.heads, i);
          for (int64_t column = 0; column < columns; ++column) {
            sums[column] += left[i] * right[column];
          }
        }
      }
    }
    return c;
  }

  Values Reduction(const CudnnOperation& operation, const CudnnTensor& output) {
    const Values& x = Read(operation.inputs[0]);
    Values y = Empty(output);
    if (x.heads % y.heads != 0 || (y.rows != x.rows && y.rows != 1) ||
        (y.columns != x.columns && y.columns != 1)) {
      Refuse(absl::StrCat("a reduction whose shapes do not fit, into tensor ", output.id));
    }
    const bool is_sum = operation.reduction == CUDNN_REDUCE_TENSOR_ADD;
    if (!is_sum && operation.reduction != CUDNN_REDUCE_TENSOR_MAX) {
      Refuse(absl::StrCat("a reduction that is not emulated: ", operation.reduction));
    }
    std::fill(y.data.begin(), y.data.end(),
              is_sum ? 0.0f : -std::numeric_limits<float>::infinity());
    for (int64_t head = 0; head < x.heads; ++head) {
      for (int64_t row = 0; row < x.rows; ++row) {
        float* const results = y.Row(head * y.heads / x.heads, y.rows == 1 ? 0 : row);
        const float* const elements = x.Row(head, row);
        for (int64_t column = 0; column < x.columns; ++column) {
          float& result = results[y.columns == 1 ? 0 : column];
          result = is_sum ? result + elements[column] : std::max(result, elements[column]);
        }
      }
    }
    return y;
  }

  // The same memory read with other strides: here as it was, or turned.
  Values Reshape(const CudnnOperation& operation, const CudnnTensor& output) {
    const CudnnTensor& input = Tensor(operation.inputs[0]);
    const Values& x = Read(input.id);
    const bool is_turned =
        output.strides[2] == input.strides[3] && output.strides[3] == input.strides[2] &&
        output.dimensions[2] == input.dimensions[3] && output.dimensions[3] == input.dimensions[2];
    if (output.dimensions[1] != input.dimensions[1] || !is_turned) {
      Refuse(absl::StrCat("a reshape that is not emulated, into tensor ", output.id));
    }
    Values y = Empty(output);
    for (int64_t head = 0; head < y.heads; ++head) {
      for (int64_t row = 0; row < y.rows; ++row) {
        float* const elements = y.Row(head, row);
        for (int64_t column = 0; column < y.columns; ++column) {
          elements[column] = x.At(head, column, row);
        }
      }
    }
    return y;
  }

  Values Pointwise(const CudnnOperation& operation, const CudnnTensor& output) {
    Values y = Empty(output);
    const Values& x = Read(operation.inputs[0]);
    const Values& b = Read(operation.inputs[operation.inputs.size() > 1 ? 1 : 0]);
    const Values& flag = Read(operation.inputs.back());
    for (int64_t head = 0; head < y.heads; ++head) {
      for (int64_t row = 0; row < y.rows; ++row) {
        for (int64_t column = 0; column < y.columns; ++column) {
          const std::array<int64_t, 4> at = {number_, head, row, column};
          y.Row(head, row)[column] =
              operation.pointwise == CUDNN_POINTWISE_GEN_INDEX
                  ? static_cast<float>(at[operation.axis])
                  : Apply(operation.pointwise, x.At(head, row, column), b.At(head, row, column),
                          flag.At(head, row, column));
        }
      }
    }
    return y;
  }

  static float Apply(cudnnPointwiseMode_t mode, float x, float b, float flag) {
    switch (mode) {
      case CUDNN_POINTWISE_ADD:
        return x + b;
      case CUDNN_POINTWISE_SUB:
        return x - b;
      case CUDNN_POINTWISE_MUL:
        return x * b;
      case CUDNN_POINTWISE_DIV:
        return x / b;
      case CUDNN_POINTWISE_EXP:
        return std::exp(x);
      case CUDNN_POINTWISE_LOG:
        return std::log(x);
      case CUDNN_POINTWISE_IDENTITY:
        return x;
      case CUDNN_POINTWISE_CMP_GE:
        return x >= b ? 1 : 0;
      case CUDNN_POINTWISE_CMP_LT:
        return x < b ? 1 : 0;
      case CUDNN_POINTWISE_LOGICAL_AND:
        return x != 0 && b != 0 ? 1 : 0;
      case CUDNN_POINTWISE_BINARY_SELECT:
        return flag != 0 ? x : b;
      default:
        Refuse(absl::StrCat("a pointwise operation that is not emulated: ", mode));
    }
  }

  const CudnnGraph& graph_;
  const CudnnPointers& pointers_;
  const int64_t number_;
  std::map<int64_t, Values> values_;
};

}  // namespace

float ReadCudnnNumber(cudnnDataType_t type, const void* from) {
  const auto read = [&]<typename T>(T number) {
    std::memcpy(&number, from, sizeof(number));
    return number;
  };
  switch (type) {
    case CUDNN_DATA_BFLOAT16:
      return std::bit_cast<float>(uint32_t{read(uint16_t{})} << 16);
    case CUDNN_DATA_INT32:
      return static_cast<float>(read(int32_t{}));
    case CUDNN_DATA_FLOAT:
      return read(float{});
    default:
      Refuse(absl::StrCat("numbers of a type that is not emulated: ", type));
  }
}

std::string ComputeCudnnGraph(const CudnnGraph& graph, const CudnnPointers& pointers) {
  int64_t sequences = 1;
  for (const auto& [id, tensor] : graph.tensors) {
    // Offsets have one element more than there are sequences, and are one-dimensional.
    if (tensor.dimensions[3] > 1) sequences = std::max(sequences, tensor.dimensions[0]);
  }
  try {
    for (int64_t number = 0; number < sequences; ++number) {
      Sequence(graph, pointers, number).Compute();
    }
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace convene::emulated
