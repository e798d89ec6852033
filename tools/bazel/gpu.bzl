"""gpu_library, gpu_test, emulated_test: code that calls CUDA, built twice: as NAME with CUDA, tagged `cuda`, and as NAME_emulated with the GPU
that worker_runtime/device/emulated emulates.

Every NAME_emulated is `testonly`: nothing that is shipped can reach the emulation.
"""

load("//tools/bazel:test.bzl", "convene_test", "convene_test_cases")
load("//tools/bazel/precompiled:precompiled.bzl", "cc_library")

CUDART = "@cuda//:cudart"
_EMULATION = "//worker_runtime/device/emulated:"

def emulated(gpu_deps):
    """What stands for `gpu_deps` (of @cuda, or made by the rules here and by cuda_library) on the emulated GPU."""
    stand_ins = []
    for label in gpu_deps:
        if label.startswith("@cuda//"):
            stand_in = _EMULATION + "cuda"
        elif ":" in label:
            stand_in = label + "_emulated"
        else:
            stand_in = "%s:%s_emulated" % (label, label.split("/")[-1])
        if stand_in not in stand_ins:
            stand_ins.append(stand_in)
    return stand_ins

def gpu_library(name, deps = [], gpu_deps = [], testonly = None, **kwargs):
    """Two libraries of the same sources, NAME and NAME_emulated.

    Args:
      name: the library's name.
      deps: what does not call CUDA.
      gpu_deps: what does: of @cuda, and other libraries that exist twice. @cuda//:cudart comes by itself.
      testonly: as in every rule, of NAME.
      **kwargs: passed on to both.
    """
    all_gpu_deps = gpu_deps + [CUDART]
    cc_library(name = name, tags = ["cuda"], testonly = testonly, deps = deps + all_gpu_deps, **kwargs)
    cc_library(name = name + "_emulated", testonly = True, deps = deps + emulated(all_gpu_deps), **kwargs)

def gpu_test(name, srcs, deps = [], gpu_deps = [], kernels = [], size = "small", copts = [], linkopts = []):
    """A convene_test that needs a GPU, and NAME_emulated, its cases alone, for emulated_test.

    Args:
      name: ends in _test.
      srcs: the test's sources.
      deps: as in gpu_library.
      gpu_deps: as in gpu_library.
      kernels: what emulated_test links instead with a sanitizer: each a cuda_library.
      size: of NAME.
      copts: as in every rule.
      linkopts: as in every rule.
    """
    flags = {"srcs": srcs, "copts": copts, "linkopts": linkopts}
    all_gpu_deps = gpu_deps + [CUDART]
    convene_test(name = name, size = size, tags = ["cuda"], deps = deps + all_gpu_deps + kernels, **flags)
    convene_test_cases(name = name + "_emulated", deps = deps + emulated(all_gpu_deps), **flags)

def device_test(name, srcs, deps, **kwargs):
    """A convene_test on CPUs, and its cases alone, NAME_cases, for a program whose ranks have GPUs (//worker_runtime/testing:gpu_places).

    Args:
      name: ends in _test.
      srcs: the test's sources, compiled once for both.
      deps: what it tests.
      **kwargs: of the convene_test.
    """
    convene_test_cases(name = name + "_cases", srcs = srcs, visibility = ["//worker_runtime/trainer/testing:__pkg__"], deps = deps)
    convene_test(name = name, srcs = [], deps = [name + "_cases"], **kwargs)

def _emulated_run_test_impl(ctx):
    executable = ctx.actions.declare_file(ctx.label.name)
    built = ctx.attr.program[DefaultInfo]
    ctx.actions.symlink(output = executable, target_file = built.files_to_run.executable, is_executable = True)
    return [
        DefaultInfo(executable = executable, runfiles = ctx.runfiles(files = [executable]).merge(built.default_runfiles)),
        testing.TestEnvironment({
            "CONVENE_EMULATED_GPUS": str(ctx.attr.gpus),
            "CONVENE_EMULATED_ORDER": ctx.attr.order,
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }),
    ]

# One program for all orders: it is linked once.
_emulated_run_test = rule(
    implementation = _emulated_run_test_impl,
    attrs = {
        "program": attr.label(mandatory = True),
        "gpus": attr.int(),
        "order": attr.string(),
    },
    test = True,
)

_ORDERS = ["forward", "reverse", "random"]

def emulated_test(name, test, kernels = [], args = [], orders = _ORDERS, sanitizers = {}, size = "medium", gpus = 1, tags = []):
    """Tests NAME_ORDER of each order of the threads, and NAME_SANITIZER of each sanitizer, in random order.

    Args:
      name: what their names begin with.
      test: a gpu_test.
      kernels: of `test`.
      args: for it: which of its cases run.
      orders: fewer where the kernels' own tests run in all three, and the test is long.
        A dict: for each order the arguments in place of `args`. A word behind an order ("forward_once") lets cases of the same order run beside each other.
      sanitizers: "address" (with UndefinedBehaviorSanitizer) and "thread", what `kernels` are built with: for each the arguments in place of `args`.
      size: of each order; the sanitizers take large.
      gpus: how many there are: one for each rank, where ranks are threads of the test.
      tags: of each order.
    """
    for suffix in [""] + ["_" + sanitizer for sanitizer in sanitizers]:
        convene_test(
            name = name + "_program" + suffix,
            srcs = [],
            tags = ["manual"],
            deps = [test + "_emulated", _EMULATION + "sanitizers" + suffix] + [label + suffix for label in emulated(kernels)],
        )
    for order in orders:
        its_args = orders[order] if type(orders) == "dict" else args
        _emulated_run_test(name = name + "_" + order, program = name + "_program", order = order.split("_")[0], size = size, tags = tags,
                           args = its_args, gpus = gpus)
    for sanitizer, its_args in sanitizers.items():
        _emulated_run_test(
            name = name + "_" + sanitizer,
            program = name + "_program_" + sanitizer,
            order = "random",
            size = "large",
            tags = ["no-sanitizer"],
            args = its_args,
            gpus = gpus,
        )
