// cuDNN's backend, as its frontend calls it. The real library, which needs no GPU for that, judges
// each descriptor and graph, chooses the engine and says how much scratch it takes, for the GPU
// that kGpu describes; here the graph is noted down, and computed (graph.h).
#include <cuda_runtime.h>
#include <cudnn.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tools/base/check.h"
#include "tools/base/mutex.h"
#include "worker_runtime/device/emulated/cudnn/graph.h"
#include "worker_runtime/device/emulated/library.h"

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace convene::emulated {
namespace {

// An H100 SXM, as cuDNN asks a driver for it (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).
constexpr char kGpu[] =
    R"({"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
    R"("multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
    R"("maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,)"
    R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
    R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
    R"("totalGlobalMem":85000000000,"smClockRateKHz":1980000,"memClockRateKHz":2619000,)"
    R"("l2CacheSize":52428800,"cudaDeviceId":0,"deviceVer":900,"driverVer":13000,)"
    R"("deviceName":"NVIDIA H100 80GB HBM3"})";

// The real function `name`, of which `Function` is the declared type.
template <typename Function>
Function* Real(const char* name) {
  static void* const library = dlopen("/usr/local/cuda/lib64/libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  void* const found = library == nullptr ? nullptr : dlsym(library, name);
  if (found == nullptr) {
    std::fprintf(stderr, "emulated cuDNN: %s: %s\n", name, dlerror());
    CONVENE_CHECK(false);
  }
  return reinterpret_cast<Function*>(found);
}
#define CONVENE_REAL(name) Real<std::remove_reference_t<decltype(name)>>(#name)

// A descriptor of the real library: its attributes, and the part of a graph that it stands for.
struct Note {
  cudnnBackendDescriptorType_t type = {};
  std::map<cudnnBackendAttributeName_t, std::vector<char>> attributes;
  // Of a graph, and of the heuristics, configurations and plans that are made from it.
  std::shared_ptr<const CudnnGraph> graph;
  // Of a tensor: itself, and the list that says where its sequences begin. Of an operation: all
  // that it names.
  std::vector<CudnnTensor> tensors;
  std::shared_ptr<CudnnOperation> operation;

  template <typename T>
  std::vector<T> All(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> values(found->second.size() / sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), found->second.data(), found->second.size());
    return values;
  }
  template <typename T>
  T Get(cudnnBackendAttributeName_t name, T otherwise = {}) const {
    const std::vector<T> values = All<T>(name);
    return values.empty() ? otherwise : values[0];
  }
};

size_t Bytes(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return 4;
  }
}

struct Notes {
  Mutex mutex;
  std::map<cudnnBackendDescriptor_t, Note> all ABSL_GUARDED_BY(mutex);
};
Notes& TheNotes() {
  static Notes& notes = *new Notes;  // plans are destroyed until the very end
  return notes;
}

cudnnBackendDescriptor_t TheGpu() {
  static const cudnnBackendDescriptor_t gpu = [] {
    cudnnBackendDescriptor_t made = nullptr;
    const auto create = CONVENE_REAL(cudnnBackendCreateDescriptor);
    const auto set = CONVENE_REAL(cudnnBackendSetAttribute);
    const auto finalize = CONVENE_REAL(cudnnBackendFinalize);
    CONVENE_CHECK(create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &made) == CUDNN_STATUS_SUCCESS);
    CONVENE_CHECK(set(made, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                      sizeof(kGpu) - 1, kGpu) == CUDNN_STATUS_SUCCESS);
    CONVENE_CHECK(finalize(made) == CUDNN_STATUS_SUCCESS);
    return made;
  }();
  return gpu;
}

using All = std::map<cudnnBackendDescriptor_t, Note>;

const Note& NoteOf(const All& notes, const Note& note, cudnnBackendAttributeName_t name) {
  return notes.at(note.Get<cudnnBackendDescriptor_t>(name));
}

void ReadTensor(const All& notes, Note& note) {
  CudnnTensor tensor;
  tensor.id = note.Get<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  tensor.type = note.Get<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  tensor.alignment = note.Get<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  tensor.is_virtual = note.Get<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL) != 0;
  tensor.is_by_value = note.Get<char>(CUDNN_ATTR_TENSOR_IS_BY_VALUE) != 0;
  const auto dimensions = note.All<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  const auto strides = note.All<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  for (size_t i = 0; i < 4; ++i) {
    tensor.dimensions[i] = dimensions.at(i);
    tensor.strides[i] = strides.at(i);
  }
  if (note.attributes.count(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC) > 0) {
    note.tensors = NoteOf(notes, note, CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC).tensors;
    tensor.begin = note.tensors[0].id;
  }
  note.tensors.insert(note.tensors.begin(), tensor);
}

// The attributes of an operation that name its tensors.
struct Ports {
  std::vector<cudnnBackendAttributeName_t> inputs;
  cudnnBackendAttributeName_t output;
};
Ports PortsOf(cudnnBackendDescriptorType_t type) {
  switch (type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return {{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
               CUDNN_ATTR_OPERATION_POINTWISE_TDESC},
              CUDNN_ATTR_OPERATION_POINTWISE_YDESC};
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return {{CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_ATTR_OPERATION_MATMUL_BDESC},
              CUDNN_ATTR_OPERATION_MATMUL_CDESC};
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return {{CUDNN_ATTR_OPERATION_REDUCTION_XDESC}, CUDNN_ATTR_OPERATION_REDUCTION_YDESC};
    default:
      return {{CUDNN_ATTR_OPERATION_RESHAPE_XDESC}, CUDNN_ATTR_OPERATION_RESHAPE_YDESC};
  }
}

bool IsOperation(cudnnBackendDescriptorType_t type) {
  return type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR ||
         type == CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR;
}

void ReadOperation(const All& notes, Note& note) {
  auto operation = std::make_shared<CudnnOperation>();
  operation->kind = note.type;
  const auto tensor = [&](cudnnBackendAttributeName_t name) -> std::optional<int64_t> {
    if (note.attributes.count(name) == 0) return {};
    const std::vector<CudnnTensor>& named = NoteOf(notes, note, name).tensors;
    note.tensors.insert(note.tensors.end(), named.begin(), named.end());
    return named[0].id;
  };
  const Ports ports = PortsOf(note.type);
  for (const cudnnBackendAttributeName_t name : ports.inputs) {
    if (const auto id = tensor(name)) operation->inputs.push_back(*id);
  }
  operation->output = *tensor(ports.output);
  if (note.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR) {
    const Note& how = NoteOf(notes, note, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    operation->pointwise = how.Get<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    operation->axis = how.Get<int64_t>(CUDNN_ATTR_POINTWISE_AXIS);
  }
  if (note.type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
    operation->reduction = NoteOf(notes, note, CUDNN_ATTR_OPERATION_REDUCTION_DESC)
                               .Get<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR);
  }
  if (note.type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) {
    operation->rows = tensor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
    operation->columns = tensor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
    operation->depth = tensor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
  }
  note.operation = std::move(operation);
}

std::shared_ptr<const CudnnGraph> ReadGraph(const All& notes, const Note& note) {
  auto graph = std::make_shared<CudnnGraph>();
  for (const auto& descriptor : note.All<cudnnBackendDescriptor_t>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    const Note& operation = notes.at(descriptor);
    CONVENE_CHECK(operation.operation != nullptr);  // IsOperation knows all that attention has
    graph->operations.push_back(*operation.operation);
    for (const CudnnTensor& tensor : operation.tensors) graph->tensors[tensor.id] = tensor;
  }
  return graph;
}

// Fails the stream's work where scratch or a tensor does not lie where it should.
cudnnStatus_t Execute(cudnnHandle_t handle, const Note& plan, int64_t workspace_bytes,
                      const Note& pack) {
  const auto ids = pack.All<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto data = pack.All<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  void* const workspace = pack.Get<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  CudnnPointers pointers;
  for (size_t i = 0; i < ids.size(); ++i) pointers.memory[ids[i]] = data[i];
  for (const auto& [id, tensor] : plan.graph->tensors) {
    if (tensor.is_virtual) continue;
    const auto found = pointers.memory.find(id);
    if (found == pointers.memory.end() || found->second == nullptr) return CUDNN_STATUS_BAD_PARAM;
    if (tensor.is_by_value) pointers.values[id] = ReadCudnnNumber(tensor.type, found->second);
  }
  const bool is_queued =
      QueueLibraryWork(handle->stream, [graph = plan.graph, pointers, workspace, workspace_bytes] {
        std::string why;
        if (workspace_bytes > 0 && DeviceBytesFrom(workspace) < size_t(workspace_bytes)) {
          why = "its scratch is longer than the memory that it was given";
        } else {
          // All but what the frontend wrote there: for the versions here that is nothing.
          std::memset(workspace, 0xff, workspace_bytes);
          why = ComputeCudnnGraph(*graph, pointers);
        }
        if (!why.empty()) Fail("cuDNN: " + why);
      });
  return is_queued ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}
size_t cudnnGetVersion() { return CONVENE_REAL(cudnnGetVersion)(); }
const char* cudnnGetErrorString(cudnnStatus_t status) {
  return CONVENE_REAL(cudnnGetErrorString)(status);
}
void cudnnGetLastErrorString(char* message, size_t bytes) {
  CONVENE_REAL(cudnnGetLastErrorString)(message, bytes);
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  const cudnnStatus_t status = CONVENE_REAL(cudnnBackendCreateDescriptor)(type, descriptor);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  if (type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    const auto gpu = TheGpu();
    (void)CONVENE_REAL(cudnnBackendSetAttribute)(*descriptor, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP,
                                                 CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &gpu);
  }
  const MutexLock lock(&TheNotes().mutex);
  TheNotes().all[*descriptor] = {.type = type};
  return status;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  const MutexLock lock(&TheNotes().mutex);
  TheNotes().all.erase(descriptor);
  return CONVENE_REAL(cudnnBackendDestroyDescriptor)(descriptor);
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* elements) {
  {
    const MutexLock lock(&TheNotes().mutex);
    Note& note = TheNotes().all.at(descriptor);
    const char* const begin = static_cast<const char*>(elements);
    note.attributes[name].assign(begin, begin + count * Bytes(type));
    if (name == CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG) {
      note.graph = NoteOf(TheNotes().all, note, name).graph;
    }
  }
  const auto set = CONVENE_REAL(cudnnBackendSetAttribute);
  // In the place of a handle, which would name a GPU.
  if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE) return CUDNN_STATUS_SUCCESS;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE) {
    const auto gpu = TheGpu();
    return set(descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
               &gpu);
  }
  return set(descriptor, name, type, count, elements);
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  {
    const MutexLock lock(&TheNotes().mutex);
    auto& notes = TheNotes().all;
    Note& note = notes.at(descriptor);
    if (note.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) ReadTensor(notes, note);
    if (IsOperation(note.type)) ReadOperation(notes, note);
    if (note.type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) note.graph = ReadGraph(notes, note);
    if (note.type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR) return CUDNN_STATUS_SUCCESS;
  }
  return CONVENE_REAL(cudnnBackendFinalize)(descriptor);
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t wanted,
                                       int64_t* count, void* elements) {
  const cudnnStatus_t status =
      CONVENE_REAL(cudnnBackendGetAttribute)(descriptor, name, type, wanted, count, elements);
  if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS || elements == nullptr) return status;
  const MutexLock lock(&TheNotes().mutex);
  auto& notes = TheNotes().all;
  const auto graph =
      NoteOf(notes, notes.at(descriptor), CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH).graph;
  for (int64_t i = 0; i < *count; ++i) {
    notes.at(static_cast<cudnnBackendDescriptor_t*>(elements)[i]).graph = graph;
  }
  return status;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  int64_t bytes = 0;
  const cudnnStatus_t status = CONVENE_REAL(cudnnBackendGetAttribute)(
      plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, nullptr, &bytes);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  Note plan_note, pack_note;
  {
    const MutexLock lock(&TheNotes().mutex);
    plan_note = TheNotes().all.at(plan);
    pack_note = TheNotes().all.at(pack);
  }
  return Execute(handle, plan_note, bytes, pack_note);
}

}  // extern "C"
}  // namespace convene::emulated
