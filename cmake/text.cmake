# Files as text in a C source: cb_cu_headers of csrc/exec/cuda/text/text.h. A header of C's is what stands for it on a device;
# an optimizer finds its factors under its name.
#
#     cmake -DROOT=<csrc> -DOUT=<file> -P text.cmake
set(files
  prelude.cuh=exec/cuda/text/prelude.cuh
  matmul.cuh=exec/cuda/text/matmul.cuh
  turn.cuh=exec/cuda/text/turn.cuh
  ../../../micro/vecmath.h=micro/vecmath.h
  ../../../micro/ops.h=micro/ops.h
  ../../../micro/point_ops.h=micro/point_ops.h
  ../base/bits.h=base/bits.h
  ../../../base/philox.h=base/philox.h
  optim.cuh=exec/cuda/text/optim.cuh
  factored.cuh=exec/cuda/text/factored.cuh
  orthogonal.cuh=exec/cuda/text/orthogonal.cuh
  device_types.cuh=exec/cuda/text/device_types.cuh
  ../../../optim/formula_factors.h=optim/formula_factors.h
  ../../../optim/formulas_impl.h=optim/formulas_impl.h
  ../../../optim/both_reals.h=optim/both_reals.h
  ../../../optim/blocks_8bit.h=optim/blocks_8bit.h
  adam_factors.h=optim/algorithms/adam_factors.h
  adamw_8bit_factors.h=optim/algorithms/adam_factors.h
  adadelta_factors.h=optim/algorithms/adadelta_factors.h
  adagrad_factors.h=optim/algorithms/adagrad_factors.h
  adamax_factors.h=optim/algorithms/adamax_factors.h
  ademamix_factors.h=optim/algorithms/ademamix_factors.h
  adopt_factors.h=optim/algorithms/adopt_factors.h
  asgd_factors.h=optim/algorithms/asgd_factors.h
  lion_factors.h=optim/algorithms/lion_factors.h
  nadam_factors.h=optim/algorithms/nadam_factors.h
  radam_factors.h=optim/algorithms/radam_factors.h
  rmsprop_factors.h=optim/algorithms/rmsprop_factors.h
  rprop_factors.h=optim/algorithms/rprop_factors.h
  schedule_free_factors.h=optim/algorithms/schedule_free_factors.h
  sgd_factors.h=optim/algorithms/sgd_factors.h
  adamw_factors.h=optim/algorithms/adam_factors.h
  rmsprop_centered_factors.h=optim/algorithms/rmsprop_factors.h
  stdint.h=exec/cuda/text/device_types.cuh
  math.h=exec/cuda/text/device_types.cuh
  string.h=exec/cuda/text/device_types.cuh)
set(arrays "")
set(rows "")
set(n 0)
foreach(entry ${files})
  string(REPLACE "=" ";" pair ${entry})
  list(GET pair 0 name)
  list(GET pair 1 path)
  file(READ ${ROOT}/${path} hex HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
  string(APPEND arrays "static const char text_${n}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", text_${n}},\n")
  math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "#include \"exec/cuda/text/text.h\"\n\n${arrays}\nconst cb_cu_header cb_cu_headers[] = {\n${rows}};\nconst int cb_cu_n_header = ${n};\n")
