# Fails on an include that points against the arrows:
#   abi, kernels see nothing of ours; the SDK sees abi and the standard library; plugins see abi,
#   kernels, the SDK and plugins/shared; core never sees a plugin, the SDK or a tool, and never names
#   a plugin id; of core only core/model/cuda sees kernels/cuda; the tool never sees a plugin or the
#   SDK;
# and on a plugin that is read as an example or as a proof, and is too long for it:
#   test plugins over 100 lines, the C template over 80.
set(failures "")
# forbid(<folder> <pattern> <why> [<pattern of lines that are allowed all the same>])
function(forbid folder pattern why)
  file(GLOB_RECURSE files ${ROOT}/${folder}/*.h ${ROOT}/${folder}/*.cc ${ROOT}/${folder}/*.c
       ${ROOT}/${folder}/*.cu ${ROOT}/${folder}/*.cuh)
  foreach(f ${files})
    file(STRINGS ${f} lines REGEX "${pattern}")
    if(ARGC GREATER 3)
      list(FILTER lines EXCLUDE REGEX "${ARGV3}")
    endif()
    foreach(line ${lines})
      file(RELATIVE_PATH rel ${ROOT} ${f})
      set(failures "${failures}${rel}: ${line}\n  ${why}\n" PARENT_SCOPE)
      set(failures "${failures}${rel}: ${line}\n  ${why}\n")
    endforeach()
  endforeach()
endfunction()
set(ours "^[ \t]*#[ \t]*include[ \t]*[<\"]")
forbid(abi "${ours}(core|kernels|plugins|tools|tests|kvasir/sdk)/" "abi includes nothing of ours")
forbid(kernels "${ours}(core|abi|plugins|tools|tests|kvasir)/" "kernels include nothing of ours")
forbid(core "${ours}(plugins|tools|tests|kvasir/sdk)/" "core includes neither plugins nor tools")
forbid(core "\"kvasir\\.[a-z_0-9]+\"" "core never names a plugin")
# What needs CUDA is a library apart, core/model/cuda, that the core loads.
file(GLOB parts RELATIVE ${ROOT} ${ROOT}/core/* ${ROOT}/core/model/*)
list(REMOVE_ITEM parts core/model core/model/cuda)
foreach(part ${parts})
  forbid(${part} "${ours}(kernels/cuda|core/model/cuda|cuda|cublas)" "the core includes nothing of CUDA: see core/model/cuda")
endforeach()
forbid(core/model/cuda "${ours}(cuda|cublas)" "its library reaches the device through kernels/cuda")
forbid(plugins "${ours}(core|tools|tests|plugins/sdk)/"
  "plugins include <kvasir/…>, <kvasir/sdk/…>, kernels and plugins/shared only")
forbid(plugins/sdk "^[ \t]*#[ \t]*include" "the SDK is what authors get: <kvasir/…> and the standard library only"
  "include <(kvasir/[a-z_/]+[.]h|[a-z_]+)>")
forbid(tools/kvasir "${ours}(plugins|tests|kvasir/sdk)/" "the tool includes core, kernels and abi, never a plugin")

function(count_lines file result)
  file(READ ${file} text)
  string(REGEX REPLACE "[^\n]" "" newlines "${text}")
  string(LENGTH "${newlines}" n)
  set(${result} ${n} PARENT_SCOPE)
endfunction()
set(n_plugins 0)
file(GLOB_RECURSE sources ${ROOT}/tests/*.c ${ROOT}/tests/*.cc)
foreach(f ${sources})
  file(STRINGS ${f} notes REGEX "^ *KVASIR_(SDK_PLUGIN|PLUGIN_NOTE)\\(|^static kvasir_status plugin_create\\(")
  if(NOT notes)
    continue()
  endif()
  math(EXPR n_plugins "${n_plugins} + 1")
  count_lines(${f} n)
  if(n GREATER 100)
    file(RELATIVE_PATH rel ${ROOT} ${f})
    string(APPEND failures "${rel}: ${n} lines\n  a test plugin has at most 100: split it by what is "
      "proven, share through a header, or let a shipped plugin drive the slot\n")
  endif()
endforeach()
if(n_plugins LESS 15)
  string(APPEND failures "tests: only ${n_plugins} test plugins recognised: mend the pattern above\n")
endif()
count_lines(${ROOT}/tools/templates/plugin-c/strided.c n)
if(n GREATER 80)
  string(APPEND failures "tools/templates/plugin-c/strided.c: ${n} lines\n  a newcomer reads at most "
    "80: what every plugin in C writes alike belongs in <kvasir/c_plugin.h>\n")
endif()
if(failures)
  message(FATAL_ERROR "${failures}")
endif()
