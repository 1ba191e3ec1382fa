# cmake -Dway=find_package|add_subdirectory -Dgdn_source=DIR -Dgdn_build=DIR -Dcompiler=.. -P run.cmake
#
# Configures, builds and runs the consumer next to this file, in a fresh directory.
set(work ${gdn_build}/package_${way})
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

if(way STREQUAL find_package)
  # Installed under a staging prefix, from the configured build; nothing needs to be compiled for it.
  run(${CMAKE_COMMAND} --install ${gdn_build} --prefix ${work}/prefix)
  set(where -DCMAKE_PREFIX_PATH=${work}/prefix)
else()
  set(where -DGDN_SOURCE=${gdn_source})
endif()
if(launcher)
  list(APPEND where -DCMAKE_CXX_COMPILER_LAUNCHER=${launcher})
endif()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/consumer -B ${work}/build -G ${generator}
  -DCMAKE_CXX_COMPILER=${compiler} -DCMAKE_BUILD_TYPE=Debug ${where})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)
