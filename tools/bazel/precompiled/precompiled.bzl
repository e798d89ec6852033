"""cc_library, cc_binary and cc_test that read the headers that most files share from a precompiled header: a third of the compiling less.

A file still includes what it uses: --config=clang precompiles nothing, and refuses what is missing.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

_HERE = "tools/bazel/precompiled"

# The folders that --config=asan does not optimise (.bazelrc).
_CONTROL_PLANE = ["agent", "launcher", "proto", "rendezvous", "tests", "tools"]

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        # Clang's toolchain asks for a module's name and maps, which a header has not.
        unsupported_features = ctx.disabled_features + ["module_maps", "layering_check"],
    )
    action = "c++-compile"
    text = ctx.actions.declare_file(ctx.label.name + ".h")
    precompiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")
    sources = ctx.files.headers

    # In the place of NAME.h gcc and clang take NAME.h.gch. Where the flags are not the same gcc reads NAME.h, and clang refuses.
    ctx.actions.write(text, "".join(['#include "%s"\n' % source.path for source in sources]))

    # Clang writes its source's absolute name into its result, and each sandbox has another: it reads standard input. gcc cannot.
    clang = toolchain.compiler == "clang"
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-x", "c++-header"],
        quote_include_directories = depset(["."]),
        source_file = "-" if clang else text.path,
        output_file = precompiled.path,
    )
    command = [cc_common.get_tool_for_action(feature_configuration = features, action_name = action)]
    command += cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = action,
        variables = variables,
    )
    ctx.actions.run_shell(
        command = ("cat %s | " % " ".join([source.path for source in sources]) if clang else "") + "\"$@\"",
        arguments = command,
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        inputs = depset(sources + [text], transitive = [toolchain.all_files]),
        outputs = [precompiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % ctx.label,
    )
    return [
        DefaultInfo(files = depset([precompiled])),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset([text, precompiled] + sources))),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "headers": attr.label_list(allow_files = [".h"], mandatory = True, doc = "in this order; they include nothing of ours"),
        "copts": attr.string_list(doc = "flags beyond those of the command line: those of the files that are compiled with it"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _label(name):
    return ["//%s:%s" % (_HERE, name)]

def _flags(name):
    # gcc 12 forgets with a precompiled header that its own std::string may be silent about these (GCC bug 105329); clang looks for them too.
    return ["-include", "$(GENDIR)/%s/%s.h" % (_HERE, name), "-Wno-array-bounds", "-Wno-stringop-overflow"]

def _shared(name, kwargs):
    """`kwargs` of a rule for C++, with the precompiled header `name`."""

    # gcc 12 takes a precompiled header for a file that is optimised otherwise, and then may crash (seen with -O3 and -fsanitize=thread).
    if not kwargs.get("srcs") or kwargs.get("copts"):
        return kwargs
    without = "//%s:without" % _HERE
    asan = "//%s:asan" % _HERE
    in_asan = name
    if name == "common" and native.package_name().split("/")[0] in _CONTROL_PLANE:
        in_asan = "unoptimised"
    changed = dict(kwargs)
    changed["deps"] = kwargs.get("deps", []) + select({without: [], asan: _label(in_asan), "//conditions:default": _label(name)})
    changed["copts"] = select({without: [], asan: _flags(in_asan), "//conditions:default": _flags(name)})
    return changed

def cc_library(**kwargs):
    """Bazel's cc_library, with the precompiled header `common`."""
    native.cc_library(**_shared("common", kwargs))

def cc_binary(**kwargs):
    """Bazel's cc_binary, with the precompiled header `common`."""
    native.cc_binary(**_shared("common", kwargs))

def _header_of_tests():
    """`tests`, or `common` where .bazelrc optimises tests."""
    package = native.package_name()
    optimised = package.startswith("worker_runtime/ops/") or package.startswith("worker_runtime/trainer/")
    return "common" if optimised else "tests"

def cc_test(**kwargs):
    """Bazel's cc_test, with the precompiled header of tests."""
    native.cc_test(**_shared(_header_of_tests(), kwargs))

def test_library(**kwargs):
    """Bazel's cc_library of a test's sources, with the precompiled header of tests."""
    native.cc_library(**_shared(_header_of_tests(), kwargs))
