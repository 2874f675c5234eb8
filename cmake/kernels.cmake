# The CPU kernels (csrc/exec/cpu/kern_*.c) are compiled once for each instruction set; dispatch.c chooses at
# run time. Nothing else is compiled above the baseline, so a binary runs wherever the baseline does.
# Adding a file: name it kern_<x>.c and add <x> to CB_KERN_FILES in csrc/exec/cpu/kern.h.

if(NOT TARGET cb_exec)
  return()
endif()
file(GLOB kernel_sources CONFIGURE_DEPENDS csrc/exec/cpu/kern_*.c)
get_target_property(sources cb_exec SOURCES)
list(FILTER sources EXCLUDE REGEX "/exec/cpu/kern_[^/]*\\.c$")
set_property(TARGET cb_exec PROPERTY SOURCES ${sources})

# The loops are written for the vectoriser, which -O2 holds back. For AVX2 -O3 makes larger kernels that are no faster;
# the baseline, beside builds for wider vectors, is for processors of before 2013, and small. -Wno-psabi: vectors wider
# than the baseline's registers are passed only between inlined functions, so their calling convention is nobody's.
function(cb_kernels isa)
  add_library(cb_kernels_${isa} OBJECT ${kernel_sources})
  target_link_libraries(cb_kernels_${isa} PRIVATE cb_flags)
  target_compile_definitions(cb_kernels_${isa} PRIVATE CB_KERN_ISA=${isa})
  target_compile_options(cb_kernels_${isa} PRIVATE -Wno-psabi ${ARGN})
  target_sources(cb_exec PRIVATE $<TARGET_OBJECTS:cb_kernels_${isa}>)
endfunction()

set(fast $<$<CONFIG:Release>:-O3>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  cb_kernels(baseline -march=x86-64-v2)
  cb_kernels(avx2 -march=x86-64-v3 $<$<CONFIG:Release>:-ftree-vectorize>)
  # gcc before 13.3 lays out stack frames that it instruments for AddressSanitizer with 32-byte alignment
  # and still stores 64-byte vectors there with aligned moves (its bug 110027): these frames are left alone.
  if(CB_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL "GNU" AND CMAKE_C_COMPILER_VERSION VERSION_LESS 13.3)
    set(frames --param=asan-stack=0)
  endif()
  cb_kernels(avx512 -march=x86-64-v4 -mprefer-vector-width=512 ${fast} ${frames})
else()
  cb_kernels(baseline ${fast})
endif()
