"""emulated_test: a test tagged `cuda`, on the GPU that worker_runtime/device/emulated emulates.

The test itself stays as it is. Its build sees another @cuda: CUDA's headers and libraries are the emulation's, and the .cu files are
compiled as C++. Only this rule sets the flag that says so, and it makes only tests: nothing that is shipped can reach the emulation.
"""

def _setting_impl(_ctx):
    return []

# Both are set by emulated_test, never on a command line.
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

def _emulated_binary_test_impl(ctx):
    test = ctx.attr.test[0]
    executable = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(output = executable, target_file = test[DefaultInfo].files_to_run.executable, is_executable = True)
    return [
        DefaultInfo(executable = executable, runfiles = test[DefaultInfo].default_runfiles),
        testing.TestEnvironment({
            "CONVENE_EMULATED_ORDER": ctx.attr.order,
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }),
    ]

_emulated_binary_test = rule(
    implementation = _emulated_binary_test_impl,
    attrs = {
        "test": attr.label(cfg = _emulated, mandatory = True),
        "order": attr.string(mandatory = True),
        "sanitizer": attr.string(),
        "_allowlist_function_transition": attr.label(default = "@bazel_tools//tools/allowlists/function_transition_allowlist"),
    },
    test = True,
)

def emulated_test(name, test, args = [], sanitizers = {}, size = "medium"):
    """Tests NAME_forward, NAME_reverse, NAME_random, and NAME_SANITIZER of each sanitizer, in random order.

    Args:
      name: what their names begin with.
      test: a cc_test on a GPU.
      args: for it: which of its cases run.
      sanitizers: "address" (with UndefinedBehaviorSanitizer) and "thread", what the kernels are built with: more arguments for each.
      size: of each order; the sanitizers take large.
    """
    for order in ["forward", "reverse", "random"]:
        _emulated_binary_test(name = "%s_%s" % (name, order), test = test, order = order, args = args, size = size)
    for sanitizer, more_args in sanitizers.items():
        _emulated_binary_test(
            name = "%s_%s" % (name, sanitizer),
            test = test,
            order = "random",
            sanitizer = sanitizer,
            args = args + more_args,
            size = "large",
            tags = ["no-sanitizer"],
        )
