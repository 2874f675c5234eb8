/* numbers_of.h: numbers.c for one type, given by macros: CB_REAL, its keys (kern_rows.h) and
 * fields. */

static void CB_TYPED(compute)(const cb_x_table *table, const cb_x_number *n, cb_x_context *c) {
    CB_REAL *s = c->NUM_FIELD(s);
    switch ((int)n->op) {
        case CB_X_ACC: s[n->dst] = NUM_SUM_OF(&c->sum[n->a]); break;
        case CB_X_AMAX: table->largest(c, n->a, n->dst, false); break;
        case CB_X_AMIN: table->largest(c, n->a, n->dst, true); break;
        default: s[n->dst] = NUM_SCALAR(n->op, s[n->a], s[n->b], s[n->c]);
    }
}

static void CB_TYPED(start)(const cb_microcode *m, cb_x_context *c, const cb_x_context *shared) {
    memcpy(c->NUM_FIELD(s), shared->NUM_FIELD(s), (size_t)m->n_scalar * sizeof(CB_REAL));
    for (int k = 0; k < m->n_acc; k++) {
        NUM_KEY empty = m->acc_kind[k] == CB_X_LARGEST ? NUM_KEY_MIN : 0;
        for (int lane = 0; lane < CB_X_LANES; lane++)
            memcpy(&c->NUM_FIELD(acc)[k][lane], &empty, sizeof empty);
    }
}

static CB_REAL CB_TYPED(total_of)(const CB_REAL *leaf, int64_t count) {
    const int64_t segment = cb_segment_of(count);
    cb_x_pairs all = {.count = 0};
    for (int64_t first = 0; first < count; first += segment) {
        cb_x_pairs part = {.count = 0};
        for (int64_t at = first; at < min_i64(first + segment, count); at += CB_X_LEAF)
            NUM_PUSH(&part, leaf[at / CB_X_LEAF]);
        if (count <= segment) return NUM_SUM_OF(&part);
        NUM_PUSH(&all, NUM_SUM_OF(&part));
    }
    return NUM_SUM_OF(&all);
}

static void CB_TYPED(put_sums)(const cb_tensor *out, int64_t at, int64_t n, CB_REAL *sum,
                               CB_REAL divisor) {
    for (int64_t i = 0; i < n && divisor != 0; i++) sum[i] /= divisor;
    NUM_PUT_ROW(out, at, n, sum);
}

static void CB_TYPED(combine)(const cb_x_fused *f, const cb_tensor *out, int64_t at, int64_t n,
                              const char *from, CB_REAL divisor) {
    CB_REAL sum[CB_TILE] = {0};
    for (int64_t block = 0; block < f->n_task; block++)
        f->table->add(sum, from + block * f->m.columns * f->real, n);
    CB_TYPED(put_sums)(out, at, n, sum, divisor);
}
