/* numbers_of.h: numbers.c for one type: REAL, its keys (kern_rows.h) and fields. */

static REAL F(largest_of)(cb_x_context *c, int acc, bool is_min) {
    KEY key[CB_X_LANES], best = KEY_MIN;
    memcpy(key, c->FIELD(acc)[acc], sizeof key);
    for (int k = 0; k < CB_X_LANES; k++) {
        best = key[k] > best ? key[k] : best;
        key[k] = KEY_MIN;
    }
    memcpy(c->FIELD(acc)[acc], key, sizeof key);
    KEY bits = best ^ ((best >> (8 * sizeof best - 1)) & KEY_MAX);
    REAL x;
    memcpy(&x, &bits, sizeof x);
    return is_min ? -x : x;
}

static void F(compute)(const cb_x_number *n, cb_x_context *c) {
    REAL *s = c->FIELD(s);
    switch ((int)n->op) {
        case CB_X_ACC: s[n->dst] = SUM_OF(&c->sum[n->a]); break;
        case CB_X_AMAX: s[n->dst] = F(largest_of)(c, n->a, false); break;
        case CB_X_AMIN: s[n->dst] = F(largest_of)(c, n->a, true); break;
        default: s[n->dst] = SCALAR(n->op, s[n->a], s[n->b], s[n->c]);
    }
}

static void F(start)(const cb_microcode *m, cb_x_context *c, const cb_x_context *shared) {
    memcpy(c->FIELD(s), shared->FIELD(s), sizeof c->FIELD(s));
    for (int k = 0; k < m->n_acc; k++) {
        KEY empty = m->acc_kind[k] == CB_X_LARGEST ? KEY_MIN : 0;
        for (int lane = 0; lane < CB_X_LANES; lane++)
            memcpy(&c->FIELD(acc)[k][lane], &empty, sizeof empty);
    }
}

static REAL F(total_of)(const REAL *leaf, int64_t count) {
    const int64_t segment = cb_segment_of(count);
    cb_x_pairs all = {.count = 0};
    for (int64_t first = 0; first < count; first += segment) {
        cb_x_pairs part = {.count = 0};
        for (int64_t at = first; at < min_i64(first + segment, count); at += CB_X_LEAF)
            PUSH(&part, leaf[at / CB_X_LEAF]);
        if (count <= segment) return SUM_OF(&part);
        PUSH(&all, SUM_OF(&part));
    }
    return SUM_OF(&all);
}

static void F(add_sums)(REAL *to, REAL *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
    memset(from, 0, (size_t)n * sizeof(REAL));
}

static void F(combine)(const cb_tensor *out, int64_t at, int64_t n, const char *from,
                       int64_t n_block, int64_t step, REAL divisor) {
    REAL sum[CB_TILE] = {0};
    for (int64_t block = 0; block < n_block; block++) {
        const REAL *sums = (const REAL *)(const void *)(from + block * step);
        for (int64_t i = 0; i < n; i++) sum[i] += sums[i];
    }
    for (int64_t i = 0; i < n && divisor != 0; i++) sum[i] /= divisor;
    PUT_ROW(out, at, n, sum);
}
