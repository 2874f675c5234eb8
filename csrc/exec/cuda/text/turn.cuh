/* turn.cuh: arrays whose rows lie across memory: neighbours in memory are neighbours of a column.
 * A tile of them is read along memory, turned in registers, W x W elements at a time, and lies in
 * shared memory by rows, in words of W elements:
 *
 *     memory      j ->          tile        l ->
 *              l  . . . .                j  . . . .
 *              |  . . . .                |  . . . .
 *
 * Words are the widest accesses that the types allow, 16 bytes at most. Words of a row are put in
 * another order in every W rows, so that those that threads of a warp write at a time, below each
 * other, lie in different banks, as those do that they read, beside each other. */

/* W x W elements, from p on and further `across`, of which there are rows x columns. `even`: whole
 * words may be read. */
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

/* Of ROWS x COLUMNS elements; a row has PITCH, a multiple of 128 bytes. */
template <class T, int W, int ROWS, int COLUMNS, int PITCH> struct turned {
    typedef typename word_of<W * sizeof(T)>::type word;
    enum {
        HEIGHT = ROWS / W,
        WIDTH = (COLUMNS + W - 1) / W,
        BANKS = 128 / (W * (int)sizeof(T)), /* words that lie in different banks */
        STEP = HEIGHT < BANKS ? BANKS / HEIGHT : 1
    };
    T at[ROWS * PITCH];

    /* Where the word is that begins with element (row, column). */
    static inline int place(int row, int column) {
        return row * PITCH + (column / W ^ (row / W * STEP & (BANKS - 1))) * W;
    }

    /* Element (j, l) is p[j + l * across], for rows x columns of them. By `threads` threads, of
     * which this is number t. */
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

    /* V elements of a row, a multiple of W, from `column` on, which is one, too. */
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

/* V elements as they are; `even`: in one access. */
template <int V, class T> inline void put(T *p, const T (&from)[V], bool even) {
    if (even) {
        typename word_of<V * sizeof(T)>::type all;
        memcpy(&all, from, sizeof all);
        *(decltype(all) *)p = all;
    } else {
        EACH p[j] = from[j];
    }
}
