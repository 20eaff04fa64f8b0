# Handed to Horovod's own CMakeLists.txt as CMAKE_PROJECT_INCLUDE, so that its sources stay as released.

# Horovod asks for C++14 (PyTorch part) and C++17 (TensorFlow part); the headers of the pinned PyTorch need C++20.
foreach(standard IN ITEMS 11 14 17)
  set(CMAKE_CXX${standard}_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CXX${standard}_EXTENSION_COMPILE_OPTION -std=gnu++20)
endforeach()

# Nothing of CUDA, even where a toolkit lies: the tensors that Horovod reduces here are in host memory.
list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}") # FindPytorch.cmake
set(CMAKE_CUDA_COMPILER CMAKE_CUDA_COMPILER-NOTFOUND)
set(CMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit ON)

# No debug information: nobody reads it here, and it makes the build longer and the wheel many times larger.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG") # Horovod makes -O3 of it

# A wheel that is kept must find its libraries in whichever environment it is installed, so no path of the
# environment that built it may stay in it: LIB/python3.X/site-packages/horovod/torch -> LIB.
# HPCCKPT_MPI_RPATH is the machine's MPI, which has a fixed place; empty for PyPI's, which lies in LIB.
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../../../.." "$ORIGIN/../../torch/lib" "$ORIGIN/../../tensorflow")
if(NOT "$ENV{HPCCKPT_MPI_RPATH}" STREQUAL "")
  list(PREPEND CMAKE_INSTALL_RPATH "$ENV{HPCCKPT_MPI_RPATH}")
endif()

# All code of this file is for GPUs, but it includes XLA headers that current TensorFlow wheels do not have.
if(CMAKE_CURRENT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR)
  cmake_language(DEFER CALL set_source_files_properties
    "${CMAKE_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc"
    DIRECTORY "${CMAKE_SOURCE_DIR}/horovod/tensorflow"
    PROPERTIES HEADER_FILE_ONLY ON)
endif()
