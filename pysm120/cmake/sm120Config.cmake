# find_package(sm120) gives the imported target sm120::sm120. Installed, the library and its header lie in the folder above
# this one; in the source tree, in build and src.
get_filename_component(_sm120_package "${CMAKE_CURRENT_LIST_DIR}/.." REALPATH)
if(EXISTS "${_sm120_package}/libsm120.so.0")
    set(_sm120_library "${_sm120_package}/libsm120.so.0")
    set(_sm120_include "${_sm120_package}")
else()
    set(_sm120_library "${_sm120_package}/../build/libsm120.so.0")
    set(_sm120_include "${_sm120_package}/../src")
endif()
if(NOT TARGET sm120::sm120)
    add_library(sm120::sm120 SHARED IMPORTED)
    set_target_properties(sm120::sm120 PROPERTIES
        IMPORTED_LOCATION "${_sm120_library}"
        IMPORTED_SONAME "libsm120.so.0"
        INTERFACE_INCLUDE_DIRECTORIES "${_sm120_include}")
endif()
unset(_sm120_package)
unset(_sm120_library)
unset(_sm120_include)
