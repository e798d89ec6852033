"""cuda_library: .cu files compiled by nvcc into an archive that any cc_* rule can link."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _nvcc_objects_impl(ctx):
    cc_toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = cc_toolchain,
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )
    deps_info = cc_common.merge_cc_infos(cc_infos = [dep[CcInfo] for dep in ctx.attr.deps])
    deps = deps_info.compilation_context

    objects = []
    for src in ctx.files.srcs:
        obj = ctx.actions.declare_file("_objs/%s/%s.o" % (ctx.label.name, src.basename))
        args = ctx.actions.args()
        args.add_all(["-x", "cu", "-c", "-std=c++17", "-O3", "-Xcompiler", "-fPIC"])
        args.add("-ccbin", cc_toolchain.compiler_executable)
        args.add_all(ctx.attr.archs, format_each = "-gencode=arch=compute_%s")
        args.add_all(ctx.attr.copts)
        for d in deps.quote_includes.to_list():
            args.add("-Xcompiler", "-iquote," + d)
        args.add_all(deps.includes, before_each = "-I")
        args.add_all(deps.system_includes, before_each = "-isystem")
        args.add_all(deps.defines, format_each = "-D%s")
        args.add("-I.")
        args.add(src)
        args.add("-o", obj)
        ctx.actions.run(
            executable = "/usr/local/cuda/bin/nvcc",
            arguments = [args],
            inputs = depset([src], transitive = [deps.headers, cc_toolchain.all_files]),
            outputs = [obj],
            env = {"PATH": "/usr/local/cuda/bin:/usr/bin:/bin"},
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s with nvcc" % src.short_path,
        )
        objects.append(obj)

    linking, _ = cc_common.create_linking_context_from_compilation_outputs(
        actions = ctx.actions,
        feature_configuration = features,
        cc_toolchain = cc_toolchain,
        name = ctx.label.name,
        compilation_outputs = cc_common.create_compilation_outputs(
            objects = depset(objects),
            pic_objects = depset(objects),
        ),
        linking_contexts = [deps_info.linking_context],
        disallow_dynamic_library = True,
    )
    return [
        DefaultInfo(files = depset(objects)),
        cc_common.merge_cc_infos(
            direct_cc_infos = [CcInfo(linking_context = linking)],
            cc_infos = [dep[CcInfo] for dep in ctx.attr.deps],
        ),
    ]

_nvcc_objects = rule(
    implementation = _nvcc_objects_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "copts": attr.string_list(),
        "archs": attr.string_list(default = ["90,code=sm_90"]),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    fragments = ["cpp"],
)

def cuda_library(name, srcs, hdrs = [], deps = [], visibility = None, **kwargs):
    """Like cc_library, for .cu files. The headers stay in plain cc_library targets: only those get
    the module map that layering_check reads."""
    native.cc_library(name = name + "_headers", hdrs = hdrs, deps = deps)
    _nvcc_objects(name = name + "_objects", srcs = srcs, deps = [":" + name + "_headers"], **kwargs)
    native.cc_library(name = name, hdrs = hdrs, deps = deps + [":" + name + "_objects"], visibility = visibility)
