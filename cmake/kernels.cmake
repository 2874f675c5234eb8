# The CPU kernels (csrc/exec/cpu/*/kern_*.c) and the formulas of the optimizers (csrc/optim/kern_*.c) are compiled once
# for each instruction set; exec/cpu/dispatch.c and optim/elements.c choose at run time. Nothing else is compiled above
# the baseline, so a binary runs wherever the baseline does.
# Adding a kernel file to a folder of exec/cpu: name it kern_<x>.c and add <x> to CB_KERN_FILES in csrc/exec/cpu/kern.h.
# Its plain_*.c are compiled once, as the baseline's.

foreach(layer exec optim)
  get_target_property(${layer}_sources cb_${layer} SOURCES)
  foreach(kind kern plain)
    set(${layer}_${kind} ${${layer}_sources})
    list(FILTER ${layer}_${kind} INCLUDE REGEX "/(cpu/[^/]*|optim)/${kind}_[^/]*\\.c$")
  endforeach()
  list(FILTER ${layer}_sources EXCLUDE REGEX "/(cpu/[^/]*|optim)/(kern|plain)_[^/]*\\.c$")
  set_property(TARGET cb_${layer} PROPERTY SOURCES ${${layer}_sources})
endforeach()

# The loops are written for the vectoriser, which -O2 holds back. For AVX2 -O3 makes larger kernels that are no faster;
# the baseline, beside builds for wider vectors, is for processors of before 2013, and small. -Wno-psabi: vectors wider
# than the baseline's registers are passed only between inlined functions, so their calling convention is nobody's.
# Without tables for unwinding, which nothing unwinds by: an eighth of the wheel.
function(cb_objects name layer isa sources)
  add_library(${name} OBJECT ${sources})
  target_link_libraries(${name} PRIVATE cb_flags ${unwatched_${isa}})
  target_compile_definitions(${name} PRIVATE CB_KERN_ISA=${isa})
  target_compile_options(${name} PRIVATE -Wno-psabi -fno-asynchronous-unwind-tables ${ARGN})
  target_sources(cb_${layer} PRIVATE $<TARGET_OBJECTS:${name}>)
  set_property(GLOBAL APPEND PROPERTY CB_OBJECTS ${name})
endfunction()

function(cb_kernels isa)
  cb_objects(cb_kernels_${isa} exec ${isa} "${exec_kern}" ${ARGN})
  cb_objects(cb_formulas_${isa} optim ${isa} "${optim_kern}" ${ARGN})
endfunction()

function(cb_plain)
  cb_objects(cb_kernels_plain exec plain "${exec_plain}" ${ARGN})
endfunction()

set(fast $<$<CONFIG:Release>:-O3>)
# Checks of AddressSanitizer in this file are calls: inline, they make gcc compile four times as long.
if(CB_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  set_source_files_properties(csrc/exec/cpu/conv/kern_conv.c PROPERTIES
    COMPILE_OPTIONS --param=asan-instrumentation-with-call-threshold=0)
endif()
# A sanitizer watches the kernels for the widest instruction set that this processor has, and with CB_WATCH_ALL all that
# it runs: the narrower ones are the same source, and compiling them with checks takes four times as long.
if((CB_SANITIZE OR CB_TSAN) AND EXISTS /proc/cpuinfo AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  add_library(cb_unwatched INTERFACE)
  # After what cb_flags says. CB_SANITIZED: the executor's operations are called, as in watched code.
  target_compile_options(cb_unwatched INTERFACE -fno-sanitize=all)
  target_compile_definitions(cb_unwatched INTERFACE CB_SANITIZED)
  add_library(cb_linked_only INTERFACE)
  target_compile_options(cb_linked_only INTERFACE -O0)
  target_link_libraries(cb_linked_only INTERFACE cb_unwatched)
  file(STRINGS /proc/cpuinfo runs_avx512 REGEX "^flags.*avx512vl" LIMIT_COUNT 1)
  file(STRINGS /proc/cpuinfo runs_avx2 REGEX "^flags.* avx2" LIMIT_COUNT 1)
  if(NOT runs_avx512)
    set(unwatched_avx512 cb_linked_only)
  elseif(NOT CB_WATCH_ALL)
    set(unwatched_avx2 cb_unwatched)
  endif()
  if(runs_avx2 AND NOT CB_WATCH_ALL)
    set(unwatched_baseline cb_unwatched)
  endif()
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  cb_kernels(baseline -march=x86-64-v2)
  cb_plain(-march=x86-64-v2 ${fast})
  cb_kernels(avx2 -march=x86-64-v3 $<$<CONFIG:Release>:-ftree-vectorize>)
  # gcc before 13.3 lays out stack frames that it instruments for AddressSanitizer with 32-byte alignment
  # and still stores 64-byte vectors there with aligned moves (its bug 110027): these frames are left alone.
  if(CB_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 13.3)
    set(frames --param=asan-stack=0)
  endif()
  cb_kernels(avx512 -march=x86-64-v4 -mprefer-vector-width=512 ${fast} ${frames})
else()
  cb_kernels(baseline ${fast})
  cb_plain(${fast})
endif()
