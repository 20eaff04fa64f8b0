# In place of Horovod's own module of this name, which turns to CUDA as soon as PyTorch knows CUDA and any nvcc
# is found. Ours is the build over MPI on host memory, whichever PyTorch is installed (PyPI's is a CUDA build).

set(ask "import torch; from torch.utils.cpp_extension import CppExtension; e = CppExtension('', []); \
print('answer', torch.__version__, *(';'.join(x) for x in (e.include_dirs, e.library_dirs, e.libraries)), \
int(torch.compiled_with_cxx11_abi()), sep='|')")
execute_process(COMMAND ${PY_EXE} -c "${ask}" OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE)

if(answer MATCHES "answer\\|([^|]+)\\|([^|]+)\\|([^|]+)\\|([^|]+)\\|([01])")
  set(Pytorch_VERSION "${CMAKE_MATCH_1}")
  set(Pytorch_INCLUDE_DIRS "${CMAKE_MATCH_2}")
  set(Pytorch_LIBRARY_DIRS "${CMAKE_MATCH_3}")
  set(names "${CMAKE_MATCH_4}")
  set(Pytorch_COMPILE_FLAGS "-D_GLIBCXX_USE_CXX11_ABI=${CMAKE_MATCH_5}")
  set(Pytorch_CXX11 "${CMAKE_MATCH_5}")
  set(Pytorch_LIBRARIES "")
  foreach(name IN LISTS names)
    find_library(Pytorch_${name}_LIBRARY NAMES ${name} HINTS ${Pytorch_LIBRARY_DIRS} REQUIRED)
    list(APPEND Pytorch_LIBRARIES "${Pytorch_${name}_LIBRARY}")
  endforeach()
endif()
set(Pytorch_CUDA FALSE)
set(Pytorch_ROCM FALSE)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Pytorch REQUIRED_VARS Pytorch_LIBRARIES VERSION_VAR Pytorch_VERSION)
