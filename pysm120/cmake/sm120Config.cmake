# find_package(sm120) gives the imported target sm120::sm120. In a wheel, the library and its header lie in the folder above
# this one; below a prefix, in lib and include; in the source tree, in build and src.
get_filename_component(_sm120_package "${CMAKE_CURRENT_LIST_DIR}/.." REALPATH)
set(_sm120_name "libsm120.so.0.2")
if(EXISTS "${_sm120_package}/${_sm120_name}")
    set(_sm120_library "${_sm120_package}/${_sm120_name}")
    set(_sm120_include "${_sm120_package}")
elseif(EXISTS "${_sm120_package}/../${_sm120_name}")
    set(_sm120_library "${_sm120_package}/../${_sm120_name}")
    set(_sm120_include "${_sm120_package}/../../include")
else()
    set(_sm120_library "${_sm120_package}/../build/${_sm120_name}")
    set(_sm120_include "${_sm120_package}/../src")
endif()
if(NOT TARGET sm120::sm120)
    add_library(sm120::sm120 SHARED IMPORTED)
    set_target_properties(sm120::sm120 PROPERTIES
        IMPORTED_LOCATION "${_sm120_library}"
        IMPORTED_SONAME "${_sm120_name}"
        INTERFACE_INCLUDE_DIRECTORIES "${_sm120_include}")
endif()
unset(_sm120_package)
unset(_sm120_name)
unset(_sm120_library)
unset(_sm120_include)
