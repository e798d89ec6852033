"""emulated_test, emulated_binary: a test tagged `cuda`, or a program, on the GPU that worker_runtime/device/emulated emulates.

The test or program itself stays as it is. Its build sees another @cuda: CUDA's headers and libraries are the emulation's, and the .cu files
are compiled as C++. Only these two rules set the flag that says so, and both make only what is `testonly`: nothing that is shipped can reach
the emulation.
"""

def _setting_impl(_ctx):
    return []

# Both are set by the rules below, never on a command line.
emulated_setting = rule(
    implementation = _setting_impl,
    build_setting = config.bool(),
)
sanitizer_setting = rule(
    implementation = _setting_impl,
    build_setting = config.string(),
)

def _emulated_impl(_settings, attr):
    return {"//tools/bazel:emulated_flag": True, "//tools/bazel:emulated_sanitizer_flag": attr.sanitizer}

_emulated = transition(
    implementation = _emulated_impl,
    inputs = [],
    outputs = ["//tools/bazel:emulated_flag", "//tools/bazel:emulated_sanitizer_flag"],
)

def _info(ctx, built):
    """The executable of `built`, under this target's name."""
    executable = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = executable, target_file = built[DefaultInfo].files_to_run.executable, is_executable = True)
    return DefaultInfo(
        executable = executable,
        runfiles = ctx.runfiles(files = [executable]).merge(built[DefaultInfo].default_runfiles),
    )

def _emulated_binary_test_impl(ctx):
    return [
        _info(ctx, ctx.attr.test[0]),
        testing.TestEnvironment({
            "CONVENE_EMULATED_GPUS": str(ctx.attr.gpus),
            "CONVENE_EMULATED_ORDER": ctx.attr.order,
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }),
    ]

_emulated_binary_test = rule(
    implementation = _emulated_binary_test_impl,
    attrs = {
        "test": attr.label(cfg = _emulated, mandatory = True),
        "gpus": attr.int(default = 1),
        "order": attr.string(mandatory = True),
        "sanitizer": attr.string(),
        "_allowlist_function_transition": attr.label(default = "@bazel_tools//tools/allowlists/function_transition_allowlist"),
    },
    test = True,
)

def _emulated_binary_impl(ctx):
    return [_info(ctx, ctx.attr.binary[0])]

_emulated_binary = rule(
    implementation = _emulated_binary_impl,
    attrs = {
        "binary": attr.label(cfg = _emulated, mandatory = True),
        "sanitizer": attr.string(),
        "_allowlist_function_transition": attr.label(default = "@bazel_tools//tools/allowlists/function_transition_allowlist"),
    },
    executable = True,
)

def emulated_binary(name, binary):
    """The program `binary` with the emulated GPU, for tests.

    Args:
      name: the program's name.
      binary: a cc_binary.
    """
    _emulated_binary(name = name, binary = binary, testonly = True)

def emulated_test(name, test, args = [], orders = ["forward", "reverse", "random"], sanitizers = {}, size = "medium", gpus = 1, tags = []):
    """Tests NAME_ORDER of each order of the threads, and NAME_SANITIZER of each sanitizer, in random order.

    Args:
      name: what their names begin with.
      test: a cc_test on a GPU.
      args: for it: which of its cases run.
      orders: fewer where the kernels' own tests run in all three, and the test is long.
      sanitizers: "address" (with UndefinedBehaviorSanitizer) and "thread", what the kernels are built with: more arguments for each.
      size: of each order; the sanitizers take large.
      gpus: how many there are: one for each rank, where ranks are threads of the test.
      tags: of each order.
    """
    for order in orders:
        _emulated_binary_test(name = "%s_%s" % (name, order), test = test, order = order, args = args, size = size, gpus = gpus, tags = tags)
    for sanitizer, more_args in sanitizers.items():
        _emulated_binary_test(
            name = "%s_%s" % (name, sanitizer),
            test = test,
            order = "random",
            sanitizer = sanitizer,
            args = args + more_args,
            gpus = gpus,
            size = "large",
            tags = ["no-sanitizer"],
        )
