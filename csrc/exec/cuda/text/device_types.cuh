/* device_types.cuh: the types and macros that the core's headers need from C headers, which NVRTC
 * does not have. */
#ifndef CB_EXEC_CUDA_DEVICE_TYPES
#define CB_EXEC_CUDA_DEVICE_TYPES

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define INT32_MAX 2147483647
#define INT32_MIN (-INT32_MAX - 1)
#define INT64_MAX 9223372036854775807ll
#define UINT32_MAX 0xFFFFFFFFu
#define UINT32_C(x) x##u
#define INFINITY __int_as_float(0x7F800000)
#define NAN __int_as_float(0x7FFFFFFF)

#endif
