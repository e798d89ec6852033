// The runtime's functions for an emulated library that is compiled with NVIDIA's own headers
// (cudnn/): of CUDA's types they name a stream alone.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

struct CUstream_st;

namespace convene::emulated {

// As QueueWork (runtime.h); whether it is queued.
bool QueueLibraryWork(CUstream_st* stream, std::function<void()> work);

// The next two are called by work that runs.

// From here on all launches fail, with this reason.
void Fail(std::string why);
// From `data` to the end of the device memory that holds it; 0 where none does.
size_t DeviceBytesFrom(const void* data);

}  // namespace convene::emulated
