# For tests that build a plugin outside the tree. In: work (folder), NM, READELF,
# GENERATOR and MAKE_PROGRAM where it is configured with CMake.

# run(<command>...): in work; what it prints is in `output`.
function(run)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${work} RESULT_VARIABLE rc
                  OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(rc)
    message(FATAL_ERROR "${ARGN}\n${text}")
  endif()
  set(output "${text}" PARENT_SCOPE)
endfunction()

# The project in work/cmake, into work/cmake/build.
function(configure_outside)
  run(${CMAKE_COMMAND} -G ${GENERATOR} -DCMAKE_MAKE_PROGRAM=${MAKE_PROGRAM} -S cmake -B cmake/build ${ARGN})
endfunction()

function(check_plugin file)
  run(${NM} -D --defined-only ${file})
  if(NOT output MATCHES "^[0-9a-f]+ T kvasir_plugin_entry\n$")
    message(FATAL_ERROR "${file} exports:\n${output}")
  endif()
  run(${READELF} -nW ${file})
  if(NOT output MATCHES "Kvasir +0x00000278")
    message(FATAL_ERROR "${file}: note missing:\n${output}")
  endif()
endfunction()
