// y[i] = a * x[i] + y[i], 256 workitems in a workgroup.
module attributes {gpu.container_module} {
  gpu.module @kernels {
    gpu.func @axpy(%x: !llvm.ptr<1>, %y: !llvm.ptr<1>, %a: f32, %n: i32) kernel
        attributes {known_block_size = array<i32: 256, 1, 1>} {
      %block = gpu.block_id x
      %thread = gpu.thread_id x
      %size = arith.constant 256 : index
      %start = arith.muli %block, %size : index
      %index = arith.addi %start, %thread : index
      %i = arith.index_cast %index : index to i32
      %inside = arith.cmpi slt, %i, %n : i32
      scf.if %inside {
        %px = llvm.getelementptr %x[%i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
        %py = llvm.getelementptr %y[%i] : (!llvm.ptr<1>, i32) -> !llvm.ptr<1>, f32
        %vx = llvm.load %px : !llvm.ptr<1> -> f32
        %vy = llvm.load %py : !llvm.ptr<1> -> f32
        %product = arith.mulf %a, %vx : f32
        %sum = arith.addf %product, %vy : f32
        llvm.store %sum, %py : f32, !llvm.ptr<1>
      }
      gpu.return
    }
  }
  func.func @launch(%x: !llvm.ptr<1>, %y: !llvm.ptr<1>, %a: f32, %n: i32,
                    %stream: !gpu.async.token) {
    %one = arith.constant 1 : index
    %threads = arith.constant 256 : index
    %count = arith.index_cast %n : i32 to index
    %blocks = arith.ceildivsi %count, %threads : index
    %done = gpu.launch_func async [%stream] @kernels::@axpy
        blocks in (%blocks, %one, %one) threads in (%threads, %one, %one)
        args(%x : !llvm.ptr<1>, %y : !llvm.ptr<1>, %a : f32, %n : i32)
    return
  }
}
