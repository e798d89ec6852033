"""convene_test: a Catch2 test beside the code it tests."""

load("//tools/bazel/precompiled:precompiled.bzl", "cc_test", "test_library")

def convene_test(name, srcs, deps = [], size = "small", **kwargs):
    """A cc_test that links Catch2's main and runs without a network.

    Args:
      name: ends in _test.
      srcs: the test's sources.
      deps: what it tests.
      size: small unless it starts processes or trains.
      **kwargs: passed on to cc_test.
    """
    cc_test(
        name = name,
        srcs = srcs,
        size = size,
        deps = deps + [
            "//tools/base/testing:catch_main",
            "@system//:catch2",
        ],
        **kwargs
    )

def convene_test_cases(name, deps = [], **kwargs):
    """A test's sources compiled once, for the convene_tests without sources that link them."""
    test_library(name = name, testonly = True, alwayslink = True, deps = deps + ["@system//:catch2"], **kwargs)
