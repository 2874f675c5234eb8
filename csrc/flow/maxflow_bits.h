/* maxflow_bits.h: macros that let one source serve both capacity widths. The first inclusion
 * defines them for CB_FLOW_BITS, the second one undefines them. */
#ifdef CB_NETWORK
#undef CB_FLOW_BITS
#undef CB_NETWORK
#undef CB_FLOW_FN
#undef CB_CAPACITY
#undef CB_CAPACITY_INF
#undef CB_CAPACITY_MOST
#elif CB_FLOW_BITS == 64
#define CB_NETWORK cb_flow
#define CB_FLOW_FN(name) cb_flow_##name
#define CB_CAPACITY int64_t
#define CB_CAPACITY_INF CB_FLOW_INF
#define CB_CAPACITY_MOST CB_FLOW_MOST
#else
#define CB_NETWORK cb_flow128
#define CB_FLOW_FN(name) cb_flow128_##name
#define CB_CAPACITY cb_int128
#define CB_CAPACITY_INF CB_FLOW128_INF
#define CB_CAPACITY_MOST CB_FLOW128_MOST
#endif
