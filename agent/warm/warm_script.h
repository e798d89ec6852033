// warm.py, as text.
#pragma once

namespace convene::agent {

extern const char kWarmScript[];

}  // namespace convene::agent
