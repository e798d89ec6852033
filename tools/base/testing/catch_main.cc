// Catch2's main, compiled once for all tests: it is slow to compile.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
