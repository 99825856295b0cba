# Shared target rules: warnings, sanitizers, the one way to add a library, a plugin and a test.
add_library(kvasir_options INTERFACE)
target_include_directories(kvasir_options INTERFACE ${CMAKE_SOURCE_DIR})
# nvcc takes warnings of the host's compiler one by one; what it makes of kernels is not pedantic C++.
target_compile_options(kvasir_options INTERFACE
  "$<$<COMPILE_LANGUAGE:C,CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow>"
  "$<$<COMPILE_LANGUAGE:CXX>:-Wconversion;-Wno-sign-conversion>"
  "$<$<AND:$<BOOL:${KVASIR_WERROR}>,$<COMPILE_LANGUAGE:C,CXX>>:-Werror>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>"
  "$<$<AND:$<BOOL:${KVASIR_WERROR}>,$<COMPILE_LANGUAGE:CUDA>>:-Werror=all-warnings>")
# Several files of a target are compiled as one then: what they define outside of functions, in namespaces
# without a name, too, must differ in name. gcc takes a file that another includes for a header.
if(CMAKE_UNITY_BUILD)
  target_compile_options(kvasir_options INTERFACE
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>")
endif()
if(KVASIR_SANITIZE)
  target_compile_options(kvasir_options INTERFACE
    -fsanitize=${KVASIR_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(kvasir_options INTERFACE -fsanitize=${KVASIR_SANITIZE})
  if(KVASIR_SANITIZE MATCHES thread)  # gcc warns of every fence, which that sanitizer does not follow
    target_compile_options(kvasir_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
endif()

# The tool and the plugins it ships with, without the tests; those plugins alone.
add_custom_target(kvasir_run)
add_custom_target(kvasir_shipped_plugins)
add_dependencies(kvasir_run kvasir_shipped_plugins)

# Fails for any argument: for those that no keyword took.
function(kvasir_refuse_arguments)
  if(ARGN)
    message(FATAL_ERROR "unknown arguments: ${ARGN}")
  endif()
endfunction()

# kvasir_add_library(<name> SOURCES … LINK …): a static library with the alias kvasir::<rest>.
function(kvasir_add_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  kvasir_refuse_arguments(${ARG_UNPARSED_ARGUMENTS})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC kvasir_options ${ARG_LINK})
  string(REPLACE "kvasir_" "kvasir::" alias ${name})
  add_library(${alias} ALIAS ${name})
endfunction()

# kvasir_add_plugin(<name> SOURCES … LINK …): <build>/plugins/<name>.so with exactly one
# exported symbol. OUTPUT_DIR overrides the folder (test plugins stay out of the default one).
function(kvasir_add_plugin name)
  cmake_parse_arguments(ARG "" "OUTPUT_DIR" "SOURCES;LINK" ${ARGN})
  kvasir_refuse_arguments(${ARG_UNPARSED_ARGUMENTS})
  add_library(kvasir_plugin_${name} MODULE ${ARG_SOURCES})
  if(NOT ARG_OUTPUT_DIR)
    set(ARG_OUTPUT_DIR ${CMAKE_BINARY_DIR}/plugins)
    add_dependencies(kvasir_shipped_plugins kvasir_plugin_${name})
    install(TARGETS kvasir_plugin_${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/kvasir/plugins)
  endif()
  set_target_properties(kvasir_plugin_${name} PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${ARG_OUTPUT_DIR}
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS ${CMAKE_SOURCE_DIR}/abi/plugin.map)
  target_link_libraries(kvasir_plugin_${name} PRIVATE kvasir_options kvasir::abi ${ARG_LINK})
  target_link_options(kvasir_plugin_${name} PRIVATE
    -Wl,--version-script=${CMAKE_SOURCE_DIR}/abi/plugin.map -Wl,-z,now,-z,relro,-z,nodelete
    -Wl,--exclude-libs,ALL)
  if(NOT KVASIR_SANITIZE AND NOT KVASIR_FUZZ)  # their runtimes are resolved by the executable
    target_link_options(kvasir_plugin_${name} PRIVATE -Wl,-z,defs)
  endif()
endfunction()

# kvasir_add_test_headers(SOURCES … HEADERS …): the headers that kvasir_add_test has parsed before. A
# program of its own, since all who use them are compiled with the same options.
function(kvasir_add_test_headers)
  cmake_parse_arguments(ARG "" "" "SOURCES;HEADERS" ${ARGN})
  kvasir_refuse_arguments(${ARG_UNPARSED_ARGUMENTS})
  add_executable(kvasir_test_headers ${ARG_SOURCES})
  target_link_libraries(kvasir_test_headers PRIVATE kvasir_options kvasir_test_support)
  kvasir_compile_as_test(kvasir_test_headers)
  target_precompile_headers(kvasir_test_headers PRIVATE ${ARG_HEADERS})
endfunction()

# Tests only ask and compare, and compile in two thirds of the time. Of strings whose header was parsed
# before, gcc 12 believes that they are read and written past their end.
function(kvasir_compile_as_test target)
  target_compile_options(${target} PRIVATE
    $<$<CONFIG:Release>:-O1;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>)
endfunction()

# kvasir_add_test(<folder> SOURCES … LINK … [LABELS …]): one doctest binary per tests/<folder>,
# ctest entry <folder>, labelled <folder>. With the option DATA another one, <folder>/data: the cases of
# tests/support/data.h, skipped where their data is absent. With the option COMPUTES the test itself
# computes for long, and is compiled as what it tests. With OWN_HEADERS it parses all headers itself: a
# library that it links defines what those parsed before do not know. With SEPARATE its files are compiled
# one by one whatever the preset says, as helpers in them have names in common, or some are in C.
function(kvasir_add_test folder)
  cmake_parse_arguments(ARG "COMPUTES;DATA;OWN_HEADERS;SEPARATE" "" "SOURCES;LINK;LABELS" ${ARGN})
  kvasir_refuse_arguments(${ARG_UNPARSED_ARGUMENTS})
  string(REPLACE "/" "_" target "kvasir_test_${folder}")
  add_executable(${target} ${ARG_SOURCES})
  target_link_libraries(${target} PRIVATE kvasir_options kvasir_test_support ${ARG_LINK})
  if(NOT ARG_COMPUTES)
    kvasir_compile_as_test(${target})
    if(NOT ARG_OWN_HEADERS)
      target_precompile_headers(${target} REUSE_FROM kvasir_test_headers)
    endif()
  endif()
  if(ARG_SEPARATE)
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  endif()
  set(entries ${folder})
  if(ARG_DATA)
    add_test(NAME ${folder} COMMAND ${target} "-tce=[data]*" WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    add_test(NAME ${folder}/data COMMAND ${target} "-tc=[data]*" WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
    list(APPEND entries ${folder}/data)
  else()
    add_test(NAME ${folder} COMMAND ${target} WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
  endif()
  # Workers are bound to cores, so tests that use several run alone under ctest -j2. Those of minutes
  # whose workers are bound to nothing say otherwise (kvasir_test_beside).
  set_tests_properties(${entries} PROPERTIES LABELS "${folder};${ARG_LABELS}" TIMEOUT 1200 PROCESSORS 2
    SKIP_RETURN_CODE 77)
endfunction()

# kvasir_test_beside(<folder> [COST <seconds>] [ENVIRONMENT …]): its test may share the machine with
# others. COST: about what it takes of one core; who takes longest begins first, before anybody has
# measured it, so that no core is idle in the end.
function(kvasir_test_beside folder)
  cmake_parse_arguments(ARG "" "COST" "ENVIRONMENT" ${ARGN})
  kvasir_refuse_arguments(${ARG_UNPARSED_ARGUMENTS})
  set_tests_properties(${folder} PROPERTIES PROCESSORS 1)
  if(ARG_COST)
    set_tests_properties(${folder} PROPERTIES COST ${ARG_COST})
  endif()
  if(ARG_ENVIRONMENT)
    set_tests_properties(${folder} PROPERTIES ENVIRONMENT "${ARG_ENVIRONMENT}")
  endif()
endfunction()
