"""Protobuf and gRPC code by Debian's protoc: Bazel's own rules would build protoc from source."""

def _generated(src, suffix):
    return src[:-len(".proto")] + suffix

def cc_proto(name, src, grpc = False, imports = [], deps = [], visibility = None):
    """One .proto file as a cc_library; its services, if it has any, as another one, NAME_grpc: a file that includes the messages
    alone compiles for 0.7 s, one that includes the services for 1.8 s.

    Args:
      name: the library's name.
      src: the .proto file, in the calling package.
      grpc: whether the file declares services: then there is NAME_grpc.
      imports: the .proto files that it imports, of this package.
      deps: the cc_proto of each of them.
      visibility: who may depend on it.
    """
    headers = [_generated(src, ".pb.h")]
    sources = [_generated(src, ".pb.cc")]
    services = [_generated(src, ".grpc.pb.h"), _generated(src, ".grpc.pb.cc")] if grpc else []
    flags = "--cpp_out=$(GENDIR)"
    if grpc:
        flags += " --grpc_out=$(GENDIR) --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin"
    native.genrule(
        name = name + "_generate",
        srcs = [src] + imports,
        outs = headers + sources + services,
        cmd = "/usr/bin/protoc -I. %s $(location %s)" % (flags, src),
    )
    native.cc_library(
        name = name,
        srcs = sources,
        hdrs = headers,
        visibility = visibility,
        deps = deps + ["@system//:protobuf"],
    )
    if grpc:
        native.cc_library(
            name = name + "_grpc",
            srcs = services[1:],
            hdrs = services[:1],
            visibility = visibility,
            deps = [":" + name, "@system//:grpc++"],
        )
