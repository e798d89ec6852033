// Stands in for libnvidia-ml.so.1: two GPUs, the second of which is in trouble. FAKE_NVML chooses:
// "broken" does not initialise, "dies" ends the process, "unstarted" has no fabric manager, "split"
// has a clique for each GPU, "capped" has clocks and power set by a person, and a fabric of no use;
// else all is as above.
#include <cstdlib>
#include <cstring>

namespace {

bool Is(const char* mode) {
  const char* const value = std::getenv("FAKE_NVML");
  return value != nullptr && std::strcmp(value, mode) == 0;
}
char devices[2];
long Number(void* device) { return static_cast<char*>(device) - devices; }

}  // namespace

extern "C" {
int nvmlInit_v2() {
  if (Is("dies")) _Exit(3);
  return Is("broken") ? 18 : 0;
}
const char* nvmlErrorString(int code) {
  return code == 18 ? "Driver/library version mismatch" : "unknown";
}
int nvmlShutdown() { return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned) {
  std::strcpy(text, "580.65.06");
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned) {
  std::strcpy(text, "NVIDIA H100 80GB HBM3");
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned) {
  std::strcpy(text, Number(device) == 0 ? "GPU-a" : "GPU-b");
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, char* info) {
  std::strcpy(info + 36, Number(device) == 0 ? "00000000:3B:00.0" : "00000000:D8:00.0");
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  memory[0] = 80ULL << 30;
  memory[2] = Number(device) == 0 ? 0 : 60ULL << 30;
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, int type, int counter, unsigned long long* count) {
  *count = type == 1 && counter == 0 && Number(device) == 1 ? 4 : 0;
  return 0;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned*, unsigned*, unsigned* is_pending,
                              unsigned* has_failed) {
  *is_pending = Number(device) == 1 ? 1 : 0;
  *has_failed = 0;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  const unsigned long long troubled = Is("capped") ? 0x2 | 0x4 | 0x8 | 0x80 : 0x8 | 0x40;
  *reasons = Number(device) == 1 ? troubled : 0x1;  // idle
  return 0;
}
int nvmlDeviceGetPersistenceMode(void*, int* is_on) {
  *is_on = 1;
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* is_up) {
  *is_up = link != 3 || Number(device) == 0 ? 1 : 0;
  return link < 18 ? 0 : 2;
}
int nvmlDeviceGetGpuFabricInfo(void* device, unsigned char* info) {
  std::memset(info, 0xab, 16);
  const int status = Is("capped") ? 999 : 0;
  const unsigned clique = Is("split") ? 1 + static_cast<unsigned>(Number(device)) : 7;
  std::memcpy(info + 16, &status, 4);
  std::memcpy(info + 20, &clique, 4);
  info[24] = Is("unstarted") ? 1 : 3;
  return 0;
}
// NCCL's, for the test of its version.
int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}
}
