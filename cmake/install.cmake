# The C library as an installed one: `cmake --install BUILD --prefix DIR` puts cutback.h, one library and cutback.pc
# there. Static, or with -DBUILD_SHARED_LIBS=ON shared. A wheel has the extension module alone, so with CB_PYTHON the
# library is built and installed only when it is asked for: `--target cutback`, `--component library`.
include(GNUInstallDirs)

get_property(kernels GLOBAL PROPERTY CB_OBJECTS)
foreach(target cb_base cb_flow cb_plan cb_ir cb_ad cb_fuse cb_lower cb_micro cb_optim cb_cuda cb_exec cb_core ${kernels})
  list(APPEND objects $<TARGET_OBJECTS:${target}>)
endforeach()
add_library(cutback ${objects})
target_link_libraries(cutback PRIVATE cb_flags ${CMAKE_DL_LIBS})
target_include_directories(cutback INTERFACE csrc/include)
set_target_properties(cutback PROPERTIES LINKER_LANGUAGE C VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION})
set(component COMPONENT library)
if(CB_PYTHON)
  set_target_properties(cutback PROPERTIES EXCLUDE_FROM_ALL ON)
  list(APPEND component EXCLUDE_FROM_ALL)
endif()

set(libraries -lm -pthread)
foreach(library ${CMAKE_DL_LIBS})
  list(APPEND libraries -l${library})
endforeach()
list(JOIN libraries " " CB_LIBRARIES)
configure_file(cmake/cutback.pc.in cutback.pc @ONLY)

install(TARGETS cutback ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} ${component}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${component})
install(FILES csrc/include/cutback.h csrc/include/cutback_capture.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} ${component})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/cutback.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig ${component})
