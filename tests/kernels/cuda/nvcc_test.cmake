# Everything that tools/gpu-check builds, with nvcc and for each architecture that the product names;
# registers that spill are an error. Nobody runs it, so the host's part is not optimised. Without nvcc it
# says so, and the test counts as skipped.
find_program(nvcc nvcc HINTS $ENV{CUDACXX} /usr/local/cuda/bin)
if(NOT nvcc)
  message("SKIPPED: no nvcc in PATH or /usr/local/cuda: kernels were not compiled for devices")
  return()
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${ROOT}/tools/gpu -B ${OUT} -G Ninja -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_CXX_FLAGS_RELEASE=-O0 -DCMAKE_CUDA_COMPILER=${nvcc} "-DCMAKE_CUDA_ARCHITECTURES=80-real;90a-real"
  "-DCMAKE_CUDA_FLAGS=-Xptxas=--warn-on-spills,--warning-as-error" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --build ${OUT} COMMAND_ERROR_IS_FATAL ANY)
