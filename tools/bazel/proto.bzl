"""Protobuf and gRPC code by Debian's protoc: Bazel's own rules would build protoc from source."""

def _generated(src, suffix):
    return src[:-len(".proto")] + suffix

def cc_proto(name, src, grpc = False, imports = [], deps = [], visibility = None):
    """One .proto file as a cc_library.

    Args:
      name: the library's name.
      src: the .proto file, in the calling package.
      grpc: whether the file declares services.
      imports: the .proto files that it imports, of this package.
      deps: the cc_proto of each of them.
      visibility: who may depend on it.
    """
    headers = [_generated(src, ".pb.h")]
    sources = [_generated(src, ".pb.cc")]
    flags = "--cpp_out=$(GENDIR)"
    if grpc:
        headers.append(_generated(src, ".grpc.pb.h"))
        sources.append(_generated(src, ".grpc.pb.cc"))
        flags += " --grpc_out=$(GENDIR) --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin"
    native.genrule(
        name = name + "_generate",
        srcs = [src] + imports,
        outs = headers + sources,
        cmd = "/usr/bin/protoc -I. %s $(location %s)" % (flags, src),
    )
    native.cc_library(
        name = name,
        srcs = sources,
        hdrs = headers,
        visibility = visibility,
        deps = deps + ["@system//:grpc++" if grpc else "@system//:protobuf"],
    )
