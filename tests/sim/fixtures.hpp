// One kernel of ours, printed by jaxlib 0.10.2 in its three generic dialects. Per 16 rows: s += row sums of a + n h, with n from a
// prefetched table; o = s; p = bf16(g > 0 ? a : h times 0 + 1 + .. + (n - 1)).
#pragma once

namespace gdn::test {

inline const char* const running_generic = R"mlir(// call: (tensor<i32>, tensor<4xi32>, tensor<64x128xf32>, tensor<64x128xbf16>) -> (tensor<64x128xf32>, tensor<64x128xbf16>)
"builtin.module"() ({
  "func.func"() <{function_type = (i32, memref<4xi32, #tpu.memory_space<smem>>, memref<16x128xf32, #tpu.memory_space<vmem>>, memref<16x128xbf16, #tpu.memory_space<vmem>>, memref<16x128xf32, #tpu.memory_space<vmem>>, memref<16x128xbf16, #tpu.memory_space<vmem>>, memref<16x128xf32, #tpu.memory_space<vmem>>) -> (), sym_name = "running"}> ({
  ^bb0(%arg2: i32, %arg3: memref<4xi32, #tpu.memory_space<smem>>, %arg4: memref<16x128xf32, #tpu.memory_space<vmem>>, %arg5: memref<16x128xbf16, #tpu.memory_space<vmem>>, %arg6: memref<16x128xf32, #tpu.memory_space<vmem>>, %arg7: memref<16x128xbf16, #tpu.memory_space<vmem>>, %arg8: memref<16x128xf32, #tpu.memory_space<vmem>>):
    %1 = "arith.constant"() <{value = 0 : index}> : () -> index
    %2 = "arith.constant"() <{value = 0 : i32}> : () -> i32
    %3 = "arith.constant"() <{value = 1 : i32}> : () -> i32
    %4 = "arith.index_cast"(%arg2) : (i32) -> index
    %5 = "memref.load"(%arg3, %4) : (memref<4xi32, #tpu.memory_space<smem>>, index) -> i32
    %6 = "vector.load"(%arg4, %1, %1) : (memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<16x128xf32>
    %7 = "tpu.vector_load"(%arg5, %1, %1) <{operandSegmentSizes = array<i32: 1, 2, 0>, strides = array<i32>}> : (memref<16x128xbf16, #tpu.memory_space<vmem>>, index, index) -> vector<16x128xbf16>
    %8 = "arith.extf"(%7) : (vector<16x128xbf16>) -> vector<16x128xf32>
    %9 = "arith.cmpi"(%arg2, %2) <{predicate = 0 : i64}> : (i32, i32) -> i1
    "scf.if"(%9) ({
      %25 = "arith.constant"() <{value = dense<0.000000e+00> : vector<16x128xf32>}> : () -> vector<16x128xf32>
      "tpu.vector_store"(%25, %arg8, %1, %1) <{add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>}> : (vector<16x128xf32>, memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      "scf.yield"() : () -> ()
    }, {
    }) : (i1) -> ()
    %10:2 = "scf.for"(%2, %5, %3, %6, %2) ({
    ^bb0(%arg9: i32, %arg10: vector<16x128xf32>, %arg11: i32):
      %23 = "arith.addf"(%arg10, %8) <{fastmath = #arith.fastmath<none>}> : (vector<16x128xf32>, vector<16x128xf32>) -> vector<16x128xf32>
      %24 = "arith.addi"(%arg11, %arg9) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32
      "scf.yield"(%23, %24) : (vector<16x128xf32>, i32) -> ()
    }) : (i32, i32, i32, vector<16x128xf32>, i32) -> (vector<16x128xf32>, i32)
    %11 = "arith.constant"() <{value = dense<0.000000e+00> : vector<16xf32>}> : () -> vector<16xf32>
    %12 = "vector.multi_reduction"(%10#0, %11) <{kind = #vector.kind<add>, reduction_dims = array<i64: 1>}> : (vector<16x128xf32>, vector<16xf32>) -> vector<16xf32>
    %13 = "vector.shape_cast"(%12) : (vector<16xf32>) -> vector<16x1xf32>
    %14 = "vector.broadcast"(%13) : (vector<16x1xf32>) -> vector<16x128xf32>
    %15 = "vector.load"(%arg8, %1, %1) : (memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<16x128xf32>
    %16 = "arith.addf"(%15, %14) <{fastmath = #arith.fastmath<none>}> : (vector<16x128xf32>, vector<16x128xf32>) -> vector<16x128xf32>
    "tpu.vector_store"(%16, %arg8, %1, %1) <{add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>}> : (vector<16x128xf32>, memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
    "tpu.vector_store"(%16, %arg6, %1, %1) <{add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>}> : (vector<16x128xf32>, memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
    %17 = "arith.cmpi"(%arg2, %2) <{predicate = 4 : i64}> : (i32, i32) -> i1
    %18:2 = "scf.if"(%17) ({
      "scf.yield"(%6, %3) : (vector<16x128xf32>, i32) -> ()
    }, {
      "scf.yield"(%8, %10#1) : (vector<16x128xf32>, i32) -> ()
    }) : (i1) -> (vector<16x128xf32>, i32)
    %19 = "arith.sitofp"(%18#1) : (i32) -> f32
    %20 = "vector.broadcast"(%19) : (f32) -> vector<16x128xf32>
    %21 = "arith.mulf"(%18#0, %20) <{fastmath = #arith.fastmath<none>}> : (vector<16x128xf32>, vector<16x128xf32>) -> vector<16x128xf32>
    %22 = "arith.truncf"(%21) : (vector<16x128xf32>) -> vector<16x128xbf16>
    "tpu.vector_store"(%22, %arg7, %1, %1) <{add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>}> : (vector<16x128xbf16>, memref<16x128xbf16, #tpu.memory_space<vmem>>, index, index) -> ()
    "func.return"() : () -> ()
  }) {dimension_semantics = [#tpu.dimension_semantics<arbitrary>], iteration_bounds = array<i64: -9223372036854775808>, scalar_prefetch = 1 : i64, scratch_operands = 1 : i64, tpu.core_type = #tpu.core_type<tc>, window_params = [{pipeline_mode = #tpu.pipeline_mode<synchronous>, transform_indices = @rows, window_bounds = array<i64: 16, 128>}, {transform_indices = @rows, window_bounds = array<i64: 16, 128>}, {transform_indices = @rows, window_bounds = array<i64: 16, 128>}, {transform_indices = @rows, window_bounds = array<i64: 16, 128>}]} : () -> ()
  "func.func"() <{function_type = (i32, memref<4xi32, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "rows"}> ({
  ^bb0(%arg0: i32, %arg1: memref<4xi32, #tpu.memory_space<smem>>):
    %0 = "arith.constant"() <{value = 0 : i32}> : () -> i32
    "func.return"(%arg0, %0) : (i32, i32) -> ()
  }) : () -> ()
}) : () -> ()
)mlir";

inline const char* const running_stable = R"mlir(// call: (tensor<i32>, tensor<4xi32>, tensor<64x128xf32>, tensor<64x128xbf16>) -> (tensor<64x128xf32>, tensor<64x128xbf16>)
"builtin.module"() ({
  "stable_mosaic.func.func"() ({
  ^bb0(%arg2: i32, %arg3: memref<4xi32, #tpu.memory_space<smem>>, %arg4: memref<16x128xf32, #tpu.memory_space<vmem>>, %arg5: memref<16x128xbf16, #tpu.memory_space<vmem>>, %arg6: memref<16x128xf32, #tpu.memory_space<vmem>>, %arg7: memref<16x128xbf16, #tpu.memory_space<vmem>>, %arg8: memref<16x128xf32, #tpu.memory_space<vmem>>):
    %1 = "stable_mosaic.arith.constant"() {value = 0 : index} : () -> index
    %2 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    %3 = "stable_mosaic.arith.constant"() {value = 1 : i32} : () -> i32
    %4 = "stable_mosaic.arith.index_cast"(%arg2) : (i32) -> index
    %5 = "stable_mosaic.memref.load"(%arg3, %4) : (memref<4xi32, #tpu.memory_space<smem>>, index) -> i32
    %6 = "stable_mosaic.vector.load"(%arg4, %1, %1) : (memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<16x128xf32>
    %7 = "stable_mosaic.tpu.vector_load"(%arg5, %1, %1) {operandSegmentSizes = array<i32: 1, 2, 0>, strides = array<i32>} : (memref<16x128xbf16, #tpu.memory_space<vmem>>, index, index) -> vector<16x128xbf16>
    %8 = "stable_mosaic.arith.extf"(%7) : (vector<16x128xbf16>) -> vector<16x128xf32>
    %9 = "stable_mosaic.arith.cmpi"(%arg2, %2) {predicate = 0 : i64} : (i32, i32) -> i1
    "stable_mosaic.scf.if"(%9) ({
      %25 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<16x128xf32>} : () -> vector<16x128xf32>
      "stable_mosaic.tpu.vector_store"(%25, %arg8, %1, %1) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<16x128xf32>, memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
      "stable_mosaic.scf.yield"() : () -> ()
    }, {
    }) : (i1) -> ()
    %10:2 = "stable_mosaic.scf.for"(%2, %5, %3, %6, %2) ({
    ^bb0(%arg9: i32, %arg10: vector<16x128xf32>, %arg11: i32):
      %23 = "stable_mosaic.arith.addf"(%arg10, %8) {fastmath = #arith.fastmath<none>} : (vector<16x128xf32>, vector<16x128xf32>) -> vector<16x128xf32>
      %24 = "stable_mosaic.arith.addi"(%arg11, %arg9) {overflowFlags = #arith.overflow<none>} : (i32, i32) -> i32
      "stable_mosaic.scf.yield"(%23, %24) : (vector<16x128xf32>, i32) -> ()
    }) : (i32, i32, i32, vector<16x128xf32>, i32) -> (vector<16x128xf32>, i32)
    %11 = "stable_mosaic.arith.constant"() {value = dense<0.000000e+00> : vector<16xf32>} : () -> vector<16xf32>
    %12 = "stable_mosaic.vector.multi_reduction"(%10#0, %11) {kind = #vector.kind<add>, reduction_dims = array<i64: 1>} : (vector<16x128xf32>, vector<16xf32>) -> vector<16xf32>
    %13 = "stable_mosaic.vector.shape_cast"(%12) : (vector<16xf32>) -> vector<16x1xf32>
    %14 = "stable_mosaic.vector.broadcast"(%13) : (vector<16x1xf32>) -> vector<16x128xf32>
    %15 = "stable_mosaic.vector.load"(%arg8, %1, %1) : (memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<16x128xf32>
    %16 = "stable_mosaic.arith.addf"(%15, %14) {fastmath = #arith.fastmath<none>} : (vector<16x128xf32>, vector<16x128xf32>) -> vector<16x128xf32>
    "stable_mosaic.tpu.vector_store"(%16, %arg8, %1, %1) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<16x128xf32>, memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
    "stable_mosaic.tpu.vector_store"(%16, %arg6, %1, %1) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<16x128xf32>, memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> ()
    %17 = "stable_mosaic.arith.cmpi"(%arg2, %2) {predicate = 4 : i64} : (i32, i32) -> i1
    %18:2 = "stable_mosaic.scf.if"(%17) ({
      "stable_mosaic.scf.yield"(%6, %3) : (vector<16x128xf32>, i32) -> ()
    }, {
      "stable_mosaic.scf.yield"(%8, %10#1) : (vector<16x128xf32>, i32) -> ()
    }) : (i1) -> (vector<16x128xf32>, i32)
    %19 = "stable_mosaic.arith.sitofp"(%18#1) : (i32) -> f32
    %20 = "stable_mosaic.vector.broadcast"(%19) : (f32) -> vector<16x128xf32>
    %21 = "stable_mosaic.arith.mulf"(%18#0, %20) {fastmath = #arith.fastmath<none>} : (vector<16x128xf32>, vector<16x128xf32>) -> vector<16x128xf32>
    %22 = "stable_mosaic.arith.truncf"(%21) : (vector<16x128xf32>) -> vector<16x128xbf16>
    "stable_mosaic.tpu.vector_store"(%22, %arg7, %1, %1) {add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>} : (vector<16x128xbf16>, memref<16x128xbf16, #tpu.memory_space<vmem>>, index, index) -> ()
    "stable_mosaic.func.return"() : () -> ()
  }) {dimension_semantics = [#tpu.dimension_semantics<arbitrary>], function_type = (i32, memref<4xi32, #tpu.memory_space<smem>>, memref<16x128xf32, #tpu.memory_space<vmem>>, memref<16x128xbf16, #tpu.memory_space<vmem>>, memref<16x128xf32, #tpu.memory_space<vmem>>, memref<16x128xbf16, #tpu.memory_space<vmem>>, memref<16x128xf32, #tpu.memory_space<vmem>>) -> (), iteration_bounds = array<i64: -9223372036854775808>, scalar_prefetch = 1 : i64, scratch_operands = 1 : i64, sym_name = "running", tpu.core_type = #tpu.core_type<tc>, window_params = [{pipeline_mode = #tpu.pipeline_mode<synchronous>, transform_indices = @rows, window_bounds = array<i64: 16, 128>}, {transform_indices = @rows, window_bounds = array<i64: 16, 128>}, {transform_indices = @rows, window_bounds = array<i64: 16, 128>}, {transform_indices = @rows, window_bounds = array<i64: 16, 128>}]} : () -> ()
  "stable_mosaic.func.func"() ({
  ^bb0(%arg0: i32, %arg1: memref<4xi32, #tpu.memory_space<smem>>):
    %0 = "stable_mosaic.arith.constant"() {value = 0 : i32} : () -> i32
    "stable_mosaic.func.return"(%arg0, %0) : (i32, i32) -> ()
  }) {function_type = (i32, memref<4xi32, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "rows"} : () -> ()
}) {stable_mosaic.version = 13 : i64} : () -> ()
)mlir";

inline const char* const running_with_locations = R"mlir(// call: (tensor<i32>, tensor<4xi32>, tensor<64x128xf32>, tensor<64x128xbf16>) -> (tensor<64x128xf32>, tensor<64x128xbf16>)
#loc2 = loc("-":3:22)
#loc3 = loc("-":3:31)
#loc4 = loc("-":3:75)
#loc5 = loc("-":3:124)
#loc6 = loc("-":4:6)
#loc7 = loc("-":4:55)
#loc8 = loc("-":4:105)
#loc22 = loc("-":20:20)
#loc23 = loc("-":20:54)
#loc24 = loc("-":20:63)
#loc47 = loc("-":46:19)
#loc48 = loc("-":46:28)
"builtin.module"() ({
  "func.func"() <{function_type = (i32, memref<4xi32, #tpu.memory_space<smem>>, memref<16x128xf32, #tpu.memory_space<vmem>>, memref<16x128xbf16, #tpu.memory_space<vmem>>, memref<16x128xf32, #tpu.memory_space<vmem>>, memref<16x128xbf16, #tpu.memory_space<vmem>>, memref<16x128xf32, #tpu.memory_space<vmem>>) -> (), sym_name = "running"}> ({
  ^bb0(%arg2: i32 loc("-":3:22), %arg3: memref<4xi32, #tpu.memory_space<smem>> loc("-":3:31), %arg4: memref<16x128xf32, #tpu.memory_space<vmem>> loc("-":3:75), %arg5: memref<16x128xbf16, #tpu.memory_space<vmem>> loc("-":3:124), %arg6: memref<16x128xf32, #tpu.memory_space<vmem>> loc("-":4:6), %arg7: memref<16x128xbf16, #tpu.memory_space<vmem>> loc("-":4:55), %arg8: memref<16x128xf32, #tpu.memory_space<vmem>> loc("-":4:105)):
    %1 = "arith.constant"() <{value = 0 : index}> : () -> index loc(#loc9)
    %2 = "arith.constant"() <{value = 0 : i32}> : () -> i32 loc(#loc10)
    %3 = "arith.constant"() <{value = 1 : i32}> : () -> i32 loc(#loc11)
    %4 = "arith.index_cast"(%arg2) : (i32) -> index loc(#loc12)
    %5 = "memref.load"(%arg3, %4) : (memref<4xi32, #tpu.memory_space<smem>>, index) -> i32 loc(#loc13)
    %6 = "vector.load"(%arg4, %1, %1) : (memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<16x128xf32> loc(#loc14)
    %7 = "tpu.vector_load"(%arg5, %1, %1) <{operandSegmentSizes = array<i32: 1, 2, 0>, strides = array<i32>}> : (memref<16x128xbf16, #tpu.memory_space<vmem>>, index, index) -> vector<16x128xbf16> loc(#loc15)
    %8 = "arith.extf"(%7) : (vector<16x128xbf16>) -> vector<16x128xf32> loc(#loc16)
    %9 = "arith.cmpi"(%arg2, %2) <{predicate = 0 : i64}> : (i32, i32) -> i1 loc(#loc17)
    "scf.if"(%9) ({
      %25 = "arith.constant"() <{value = dense<0.000000e+00> : vector<16x128xf32>}> : () -> vector<16x128xf32> loc(#loc19)
      "tpu.vector_store"(%25, %arg8, %1, %1) <{add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>}> : (vector<16x128xf32>, memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> () loc(#loc20)
      "scf.yield"() : () -> () loc(#loc18)
    }, {
    }) : (i1) -> () loc(#loc18)
    %10:2 = "scf.for"(%2, %5, %3, %6, %2) ({
    ^bb0(%arg9: i32 loc("-":20:20), %arg10: vector<16x128xf32> loc("-":20:54), %arg11: i32 loc("-":20:63)):
      %23 = "arith.addf"(%arg10, %8) <{fastmath = #arith.fastmath<none>}> : (vector<16x128xf32>, vector<16x128xf32>) -> vector<16x128xf32> loc(#loc25)
      %24 = "arith.addi"(%arg11, %arg9) <{overflowFlags = #arith.overflow<none>}> : (i32, i32) -> i32 loc(#loc26)
      "scf.yield"(%23, %24) : (vector<16x128xf32>, i32) -> () loc(#loc27)
    }) : (i32, i32, i32, vector<16x128xf32>, i32) -> (vector<16x128xf32>, i32) loc(#loc21)
    %11 = "arith.constant"() <{value = dense<0.000000e+00> : vector<16xf32>}> : () -> vector<16xf32> loc(#loc28)
    %12 = "vector.multi_reduction"(%10#0, %11) <{kind = #vector.kind<add>, reduction_dims = array<i64: 1>}> : (vector<16x128xf32>, vector<16xf32>) -> vector<16xf32> loc(#loc29)
    %13 = "vector.shape_cast"(%12) : (vector<16xf32>) -> vector<16x1xf32> loc(#loc30)
    %14 = "vector.broadcast"(%13) : (vector<16x1xf32>) -> vector<16x128xf32> loc(#loc31)
    %15 = "vector.load"(%arg8, %1, %1) : (memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> vector<16x128xf32> loc(#loc32)
    %16 = "arith.addf"(%15, %14) <{fastmath = #arith.fastmath<none>}> : (vector<16x128xf32>, vector<16x128xf32>) -> vector<16x128xf32> loc(#loc33)
    "tpu.vector_store"(%16, %arg8, %1, %1) <{add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>}> : (vector<16x128xf32>, memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> () loc(#loc34)
    "tpu.vector_store"(%16, %arg6, %1, %1) <{add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>}> : (vector<16x128xf32>, memref<16x128xf32, #tpu.memory_space<vmem>>, index, index) -> () loc(#loc35)
    %17 = "arith.cmpi"(%arg2, %2) <{predicate = 4 : i64}> : (i32, i32) -> i1 loc(#loc36)
    %18:2 = "scf.if"(%17) ({
      "scf.yield"(%6, %3) : (vector<16x128xf32>, i32) -> () loc(#loc38)
    }, {
      "scf.yield"(%8, %10#1) : (vector<16x128xf32>, i32) -> () loc(#loc39)
    }) : (i1) -> (vector<16x128xf32>, i32) loc(#loc37)
    %19 = "arith.sitofp"(%18#1) : (i32) -> f32 loc(#loc40)
    %20 = "vector.broadcast"(%19) : (f32) -> vector<16x128xf32> loc(#loc41)
    %21 = "arith.mulf"(%18#0, %20) <{fastmath = #arith.fastmath<none>}> : (vector<16x128xf32>, vector<16x128xf32>) -> vector<16x128xf32> loc(#loc42)
    %22 = "arith.truncf"(%21) : (vector<16x128xf32>) -> vector<16x128xbf16> loc(#loc43)
    "tpu.vector_store"(%22, %arg7, %1, %1) <{add = false, operandSegmentSizes = array<i32: 1, 1, 2, 0>, strides = array<i32>}> : (vector<16x128xbf16>, memref<16x128xbf16, #tpu.memory_space<vmem>>, index, index) -> () loc(#loc44)
    "func.return"() : () -> () loc(#loc45)
  }) {dimension_semantics = [#tpu.dimension_semantics<arbitrary>], iteration_bounds = array<i64: -9223372036854775808>, scalar_prefetch = 1 : i64, scratch_operands = 1 : i64, tpu.core_type = #tpu.core_type<tc>, window_params = [{pipeline_mode = #tpu.pipeline_mode<synchronous>, transform_indices = @rows, window_bounds = array<i64: 16, 128>}, {transform_indices = @rows, window_bounds = array<i64: 16, 128>}, {transform_indices = @rows, window_bounds = array<i64: 16, 128>}, {transform_indices = @rows, window_bounds = array<i64: 16, 128>}]} : () -> () loc(#loc1)
  "func.func"() <{function_type = (i32, memref<4xi32, #tpu.memory_space<smem>>) -> (i32, i32), sym_name = "rows"}> ({
  ^bb0(%arg0: i32 loc("-":46:19), %arg1: memref<4xi32, #tpu.memory_space<smem>> loc("-":46:28)):
    %0 = "arith.constant"() <{value = 0 : i32}> : () -> i32 loc(#loc49)
    "func.return"(%arg0, %0) : (i32, i32) -> () loc(#loc50)
  }) : () -> () loc(#loc46)
}) : () -> () loc(#loc)
#loc = loc("-":2:1)
#loc1 = loc("-":3:3)
#loc9 = loc("-":7:10)
#loc10 = loc("-":8:11)
#loc11 = loc("-":9:11)
#loc12 = loc("-":10:11)
#loc13 = loc("-":11:10)
#loc14 = loc("-":12:10)
#loc15 = loc("-":13:11)
#loc16 = loc("-":14:10)
#loc17 = loc("-":15:14)
#loc18 = loc("-":16:5)
#loc19 = loc("-":17:15)
#loc20 = loc("-":18:7)
#loc21 = loc("-":20:12)
#loc25 = loc("-":21:13)
#loc26 = loc("-":22:13)
#loc27 = loc("-":23:7)
#loc28 = loc("-":25:12)
#loc29 = loc("-":26:12)
#loc30 = loc("-":27:12)
#loc31 = loc("-":28:13)
#loc32 = loc("-":29:15)
#loc33 = loc("-":30:14)
#loc34 = loc("-":31:5)
#loc35 = loc("-":32:5)
#loc36 = loc("-":33:14)
#loc37 = loc("-":34:12)
#loc38 = loc("-":35:7)
#loc39 = loc("-":37:7)
#loc40 = loc("-":39:10)
#loc41 = loc("-":40:11)
#loc42 = loc("-":41:10)
#loc43 = loc("-":42:11)
#loc44 = loc("-":43:5)
#loc45 = loc("-":44:5)
#loc46 = loc("-":46:3)
#loc49 = loc("-":47:11)
#loc50 = loc("-":48:5)
)mlir";

}  // namespace gdn::test
