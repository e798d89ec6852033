"""cc_library, cc_binary and cc_test that read the headers that most files share from a precompiled header: a third of the compiling less.

A file still includes what it uses: the builds by clang (--config=by_clang) precompile nothing, and refuse what is missing.
"""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

_HERE = "tools/bazel/precompiled"

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    action = "c++-compile"
    source = ctx.file.header
    text = ctx.actions.declare_file(ctx.label.name + ".h")
    precompiled = ctx.actions.declare_file(ctx.label.name + ".h.gch")

    # gcc takes NAME.h.gch in the place of NAME.h where its flags are the same, and reads NAME.h where they are not.
    ctx.actions.write(text, '#include "%s"\n' % source.path)
    flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts + ["-x", "c++-header"]
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = flags,
        quote_include_directories = depset(["."]),
        source_file = source.path,
        output_file = precompiled.path,
    )
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(feature_configuration = features, action_name = action),
        arguments = cc_common.get_memory_inefficient_command_line(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = action,
            variables = variables,
        ),
        inputs = depset([source] + ctx.files.includes, transitive = [toolchain.all_files]),
        outputs = [precompiled],
        mnemonic = "CppPrecompile",
        progress_message = "Precompiling %s" % source.path,
    )
    headers = depset([text, precompiled, source] + ctx.files.includes)
    return [
        DefaultInfo(files = depset([precompiled])),
        CcInfo(compilation_context = cc_common.create_compilation_context(headers = headers)),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "header": attr.label(allow_single_file = [".h"], mandatory = True),
        "includes": attr.label_list(allow_files = [".h"], doc = "headers of ours that `header` includes"),
        "copts": attr.string_list(doc = "flags beyond those of the command line: those of the files that are compiled with it"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _shared(name, kwargs):
    """`kwargs` of a rule for C++, with the precompiled header `name`."""

    # gcc 12 takes a precompiled header for a file that is optimised otherwise, and then may crash (seen with -O3 and -fsanitize=thread).
    if not kwargs.get("srcs") or kwargs.get("copts"):
        return kwargs
    label = "//%s:%s" % (_HERE, name)
    without = "//%s:without" % _HERE

    # gcc 12 forgets with a precompiled header that its own std::string may be silent about these (GCC bug 105329); clang looks for them too.
    flags = ["-include", "$(GENDIR)/%s/%s.h" % (_HERE, name), "-Wno-array-bounds", "-Wno-stringop-overflow"]
    changed = dict(kwargs)
    changed["deps"] = kwargs.get("deps", []) + select({without: [], "//conditions:default": [label]})
    changed["copts"] = select({without: [], "//conditions:default": flags})
    return changed

def cc_library(**kwargs):
    """Bazel's cc_library, with the precompiled header `common`."""
    native.cc_library(**_shared("common", kwargs))

def cc_binary(**kwargs):
    """Bazel's cc_binary, with the precompiled header `common`."""
    native.cc_binary(**_shared("common", kwargs))

def _header_of_tests():
    """`tests`, or `common` where .bazelrc optimises tests."""
    package = native.package_name() + "/"
    optimised = package.startswith("worker_runtime/ops/") or package.startswith("worker_runtime/trainer/")
    return "common" if optimised else "tests"

def cc_test(**kwargs):
    """Bazel's cc_test, with the precompiled header of tests."""
    native.cc_test(**_shared(_header_of_tests(), kwargs))

def test_library(**kwargs):
    """Bazel's cc_library of a test's sources, with the precompiled header of tests."""
    native.cc_library(**_shared(_header_of_tests(), kwargs))
