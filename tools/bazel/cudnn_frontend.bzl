"""cudnn_frontend_repository: the headers that tools/install_cudnn_frontend put into the user's cache."""

_BUILD = """
cc_library(
    name = "cudnn_frontend",
    hdrs = glob(["include/**"]),
    # These count as system headers: we cannot mend their warnings.
    includes = ["include"],
    visibility = ["//visibility:public"],
    deps = [
        "@cuda//:cudnn",
        "@cuda//:nvrtc",
    ],
)
"""

def _cudnn_frontend_repository_impl(repository_ctx):
    folder = repository_ctx.path(repository_ctx.os.environ["HOME"] + "/.cache/convene/cudnn_frontend")
    if not folder.get_child("include").exists:
        fail("%s is not there: run tools/install_cudnn_frontend" % folder)
    repository_ctx.symlink(folder.get_child("include"), "include")

    repository_ctx.file("BUILD.bazel", _BUILD, executable = False)

cudnn_frontend_repository = repository_rule(
    implementation = _cudnn_frontend_repository_impl,
    environ = ["HOME"],
    local = True,
)
