"""cuda_repository: the CUDA toolkit at /usr/local/cuda, or an empty folder where there is none."""

def _cuda_repository_impl(repository_ctx):
    include = repository_ctx.path("/usr/local/cuda/include")
    if include.exists:
        repository_ctx.symlink(include, "include")
    repository_ctx.symlink(Label("//tools/bazel:cuda.BUILD"), "BUILD.bazel")

cuda_repository = repository_rule(
    implementation = _cuda_repository_impl,
    local = True,
)
