/* both_reals.h: compiles code for float and double from one source. Including it includes CB_IMPL
 * for float and, unless CB_F32_ALONE is defined, for double. In CB_IMPL
 *
 *     real                           is the type,
 *     CB_TYPED(x)                    is x_f32 or x_f64,
 *     square_root(x), magnitude(x)   are sqrt and fabs of the type.
 *
 * CB_OF_TYPE(dtype, x, ...) then calls the function for `dtype`. Device code includes this file
 * too. */
#define real float
#define square_root sqrtf
#define magnitude fabsf
#define CB_TYPED(x) x##_f32
#include CB_IMPL
#undef real
#undef square_root
#undef magnitude
#undef CB_TYPED

#ifdef CB_F32_ALONE
#define CB_OF_TYPE(dtype, x, ...) x##_f32(__VA_ARGS__)
#else
#define real double
#define square_root sqrt
#define magnitude fabs
#define CB_TYPED(x) x##_f64
#include CB_IMPL
#undef real
#undef square_root
#undef magnitude
#undef CB_TYPED
#define CB_OF_TYPE(dtype, x, ...) ((dtype) == CB_F32 ? x##_f32(__VA_ARGS__) : x##_f64(__VA_ARGS__))
#endif
#undef CB_IMPL
