// A device library for docs/examples/externs.py: scale(x) = x * factor. The application sets the
// global `factor` once the module is loaded; `llvm.used` keeps its symbol through linking.
module attributes {gpu.container_module} {
  gpu.module @library {
    llvm.mlir.global external @factor(2.0 : f32) {addr_space = 1 : i32, externally_initialized} : f32
    llvm.mlir.global appending @llvm.used() {section = "llvm.metadata", addr_space = 1 : i32}
        : !llvm.array<1 x ptr> {
      %none = llvm.mlir.undef : !llvm.array<1 x ptr>
      %address = llvm.mlir.addressof @factor : !llvm.ptr<1>
      %generic = llvm.addrspacecast %address : !llvm.ptr<1> to !llvm.ptr
      %used = llvm.insertvalue %generic, %none[0] : !llvm.array<1 x ptr>
      llvm.return %used : !llvm.array<1 x ptr>
    }
    llvm.func @scale(%x: f32) -> f32 {
      %address = llvm.mlir.addressof @factor : !llvm.ptr<1>
      %factor = llvm.load %address : !llvm.ptr<1> -> f32
      %scaled = llvm.fmul %x, %factor : f32
      llvm.return %scaled : f32
    }
  }
}
