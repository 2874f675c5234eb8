/* mixed.cuh: rows on their way from memory to shared memory. What is fetched stays in registers
 * until those before it are no longer needed, so that memory works while the block computes. */

/* Up to COUNT words of W elements for each of THREADS threads, one after another in memory. */
template <class T, int W, int COUNT, int THREADS> struct ahead {
    typedef typename word_of<W * sizeof(T)>::type word;
    word at[COUNT];

    /* The first n words from p on. `even`: whole words may be read. */
    inline void fetch(const T *p, int n, bool even) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int k = i * THREADS + threadIdx.x;
            if (k >= n) continue;
            if (even) {
                at[i] = *(const word *)(p + k * W);
            } else {
                T x[W];
#pragma unroll
                for (int q = 0; q < W; q++) x[q] = p[k * W + q];
                memcpy(&at[i], x, sizeof x);
            }
        }
    }
    inline void put(T *to, int n) const {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int k = i * THREADS + threadIdx.x;
            if (k < n) *(word *)(to + k * W) = at[i];
        }
    }
};
