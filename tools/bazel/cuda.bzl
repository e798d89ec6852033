"""cuda_library: .cu files compiled by nvcc into an archive that any cc_* rule can link."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")
load("//tools/bazel:gpu.bzl", "CUDART", "emulated")

_NVCC_FLAGS = [
    "-std=c++20",
    "-O3",
    "-lineinfo",  # profilers and compute-sanitizer name the source line; costs no speed
    "--expt-relaxed-constexpr",
    "-Xcompiler=-fPIC,-Wall,-Wextra",
    "-Werror=all-warnings",
    "-Xptxas=-v",  # what each kernel takes is kept: the output group resource_usage
]

def _code_for_cards(archs):
    """nvcc's flags for machine code of each, and for PTX of the last, which a later card's driver compiles when the program starts.

    worker_runtime/device/cuda/cards.h refuses the cards that can use neither.
    """
    return ["-gencode=arch=compute_%s,code=sm_%s" % (arch, arch) for arch in archs] + \
           ["-gencode=arch=compute_%s,code=compute_%s" % (archs[-1], archs[-1])]

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
    usages = []
    for src in ctx.files.srcs:
        obj = ctx.actions.declare_file("_objs/%s/%s.o" % (ctx.label.name, src.basename))
        usage = ctx.actions.declare_file("_objs/%s/%s.ptxas.txt" % (ctx.label.name, src.basename))
        args = ctx.actions.args()
        args.add_all(["-x", "cu", "-c"])

        # nvcc names its temporary files after its process, which has the same number in each sandbox; /tmp is shared by all of them.
        args.add("--objdir-as-tempdir")
        args.add_all(_NVCC_FLAGS)
        if not ctx.attr.may_spill:
            args.add("-Xptxas=-warn-spills")  # an error, as all warnings are
        args.add("-ccbin", cc_toolchain.compiler_executable)
        args.add_all(_code_for_cards(ctx.var["cuda_archs"].split(",")))
        args.add_all(ctx.attr.copts)
        for d in deps.quote_includes.to_list():
            args.add("-Xcompiler", "-iquote," + d)
        args.add_all(deps.includes, before_each = "-I")
        args.add_all(deps.system_includes, before_each = "-isystem")
        args.add_all(deps.defines, format_each = "-D%s")
        args.add("-I.")
        args.add(src)
        args.add("-o", obj)
        ctx.actions.run_shell(
            command = """usage=$1; shift; /usr/local/cuda/bin/nvcc "$@" 2> "$usage" || { cat "$usage" >&2; exit 1; }""",
            arguments = [usage.path, args],
            inputs = depset([src], transitive = [deps.headers, cc_toolchain.all_files]),
            outputs = [obj, usage],
            env = {"PATH": "/usr/local/cuda/bin:/usr/bin:/bin"},
            mnemonic = "CudaCompile",
            progress_message = "Compiling %s with nvcc" % src.short_path,
        )
        objects.append(obj)
        usages.append(usage)

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
        OutputGroupInfo(resource_usage = depset(usages)),
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
        "may_spill": attr.bool(),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
    fragments = ["cpp"],
)

# For the emulated GPU the same files are C++ (worker_runtime/device/emulated/translate.py).
def _translated_impl(ctx):
    headers = depset(transitive = [dep[CcInfo].compilation_context.headers for dep in ctx.attr.deps])
    outputs = []
    for src in ctx.files.srcs:
        out = ctx.actions.declare_file("_emulated/%s/%s.cc" % (ctx.label.name, src.basename))
        ctx.actions.run(
            executable = "/usr/bin/python3",
            arguments = [ctx.file._translate.path, src.path, out.path],
            inputs = depset([src, ctx.file._translate], transitive = [headers]),
            outputs = [out],
            mnemonic = "CudaTranslate",
        )
        outputs.append(out)
    return [DefaultInfo(files = depset(outputs))]

_translated = rule(
    implementation = _translated_impl,
    attrs = {
        "srcs": attr.label_list(allow_files = [".cu"], mandatory = True),
        "deps": attr.label_list(providers = [CcInfo]),
        "_translate": attr.label(default = "//worker_runtime/device/emulated:translate.py", allow_single_file = True),
    },
)

# Kernels are written for nvcc, so these warnings of gcc and clang are off.
_EMULATED_COPTS = [
    "-O3",
    "-Wno-sign-compare",
    "-Wno-subobject-linkage",  # to gcc a file named by #line is a header
    "-Wno-unknown-pragmas",
    "-ftrivial-auto-var-init=pattern",  # a register that nobody wrote holds a number that shows
]

# The suffix of a library whose kernels a sanitizer watches, and its flags.
_EMULATED_SANITIZERS = {
    "": [],
    "_address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-sanitize=vptr", "-g1"],
    "_thread": ["-fsanitize=thread", "-g1"],
}

def cuda_library(name, srcs, hdrs = [], deps = [], gpu_deps = [], visibility = None, testonly = False, **kwargs):
    """Like gpu_library, for .cu files: NAME, and NAME_emulated, NAME_emulated_address and NAME_emulated_thread.

    The headers stand in a plain cc_library target: only those get the module map that layering_check reads.

    Args:
      name: the library's name.
      srcs: .cu files.
      hdrs: what its callers include.
      deps: cc_library targets that do not call CUDA.
      gpu_deps: those that do, as in gpu_library.
      visibility: who may depend on it.
      testonly: as in every rule.
      **kwargs: of _nvcc_objects: copts for nvcc, and may_spill: whether registers may go to memory, which is an error else.
    """
    common = {"tags": ["cuda"], "testonly": testonly}
    all_gpu_deps = gpu_deps + [CUDART]
    native.cc_library(name = name + "_headers", hdrs = hdrs, deps = deps + all_gpu_deps, **common)
    _nvcc_objects(name = name + "_objects", srcs = srcs, deps = [":" + name + "_headers"], visibility = visibility, **dict(common, **kwargs))
    native.cc_library(name = name, hdrs = hdrs, deps = deps + all_gpu_deps + [":" + name + "_objects"], visibility = visibility, **common)

    # Manual: only those are built that a test links.
    common = {"tags": ["manual"], "testonly": True}
    emulated_deps = deps + emulated(all_gpu_deps)
    _translated(name = name + "_translated", srcs = srcs, deps = emulated_deps, **common)
    for suffix, flags in _EMULATED_SANITIZERS.items():
        native.cc_library(
            name = name + "_emulated" + suffix,
            srcs = [":" + name + "_translated"],
            hdrs = hdrs,
            copts = _EMULATED_COPTS + flags,
            visibility = visibility,
            deps = emulated_deps,
            **common
        )
