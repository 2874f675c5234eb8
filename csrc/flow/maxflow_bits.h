/* maxflow_bits.h: the names that one source for two widths is written in. Included once it defines
 * them for CB_FLOW_BITS, included again it takes them back. */
#ifdef FLOW
#undef CB_FLOW_BITS
#undef FLOW
#undef FLOW_FN
#undef CAPACITY
#undef INF
#undef MOST
#elif CB_FLOW_BITS == 64
#define FLOW cb_flow
#define FLOW_FN(name) cb_flow_##name
#define CAPACITY int64_t
#define INF CB_FLOW_INF
#define MOST CB_FLOW_MOST
#else
#define FLOW cb_flow128
#define FLOW_FN(name) cb_flow128_##name
#define CAPACITY cb_int128
#define INF CB_FLOW128_INF
#define MOST CB_FLOW128_MOST
#endif
