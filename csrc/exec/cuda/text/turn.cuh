/* turn.cuh: reads arrays with strided rows, whose columns are contiguous in memory. A tile is read
 * along memory, transposed in registers, W x W elements at a time, and stored in shared memory by
 * rows, in words of W elements:
 *
 *     memory      j ->          tile        l ->
 *              l  . . . .                j  . . . .
 *              |  . . . .                |  . . . .
 *
 * Words are as wide as the types allow, at most 16 bytes. Every W rows, the words of a row are
 * permuted differently. So the words that the threads of a warp write at a time, in one column, are
 * in different banks, and so are those that they read, in one row. */

/* Reads W x W elements from p on, with stride `across`, of which rows x columns exist. `even`:
 * whole words may be read. */
template <int W, class T, class I>
inline void take(T (&x)[W][W], const T *p, I across, int rows, int columns, bool even) {
#pragma unroll
    for (int i = 0; i < W; i++) {
        if (i >= columns) continue;
        if (even && W <= rows) {
            const auto all = *(const typename word_of<W * sizeof(T)>::type *)(p + i * across);
            memcpy(x[i], &all, sizeof all);
        } else {
#pragma unroll
            for (int k = 0; k < W; k++)
                if (k < rows) x[i][k] = p[k + i * across];
        }
    }
}

/* A tile of ROWS x COLUMNS elements; a row takes PITCH elements, a multiple of 128 bytes. */
template <class T, int W, int ROWS, int COLUMNS, int PITCH> struct turned {
    typedef typename word_of<W * sizeof(T)>::type word;
    enum {
        HEIGHT = ROWS / W,
        WIDTH = (COLUMNS + W - 1) / W,
        BANKS = 128 / (W * (int)sizeof(T)), /* words in different banks */
        STEP = HEIGHT < BANKS ? BANKS / HEIGHT : 1
    };
    T at[ROWS * PITCH];

    /* Returns the index in `at` of the word that begins with element (row, column). */
    static inline int place(int row, int column) {
        return row * PITCH + (column / W ^ (row / W * STEP & (BANKS - 1))) * W;
    }

    /* Fills the tile: element (j, l) is p[j + l * across], for rows x columns elements. It is
     * called by `threads` threads, of which this is number t. */
    template <class I>
    inline void fill(const T *p, I across, int rows, int columns, bool even, int t, int threads) {
        for (int b = t; b < HEIGHT * WIDTH; b += threads) {
            const int j = b % HEIGHT * W, l = b / HEIGHT * W;
            if (j >= rows) continue;
            T x[W][W] = {};
            take(x, p + j + l * across, across, rows - j, columns - l, even);
#pragma unroll
            for (int i = 0; i < W; i++) {
                T y[W];
                word all;
#pragma unroll
                for (int k = 0; k < W; k++) y[k] = x[k][i];
                memcpy(&all, y, sizeof all);
                *(word *)(at + place(j + i, l)) = all;
            }
        }
    }

    /* Reads V elements of a row from `column` on; both are multiples of W. */
    template <int V> inline void read(T (&to)[V], int row, int column) const {
#pragma unroll
        for (int q = 0; q < V; q += W) {
            const word all = *(const word *)(at + place(row, column + q));
            memcpy(to + q, &all, sizeof all);
        }
    }
    template <int V, class R> inline void load(R (&to)[V], int row, int column) const {
        T x[V];
        read(x, row, column);
        EACH to[j] = widen(x[j]);
    }
};

/* Stores V elements unchanged, in one access if `even`. */
template <int V, class T> inline void put(T *p, const T (&from)[V], bool even) {
    if (even) {
        typename word_of<V * sizeof(T)>::type all;
        memcpy(&all, from, sizeof all);
        *(decltype(all) *)p = all;
    } else {
        EACH p[j] = from[j];
    }
}
