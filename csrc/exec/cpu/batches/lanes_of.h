/* lanes_of.h: lanes.c for one type, with the macros of numbers_of.h: CB_REAL, its keys and
 * fields. */

/* Returns the address of number `id`. `*has_lanes`: true if each row has its own. */
static const CB_REAL *CB_TYPED(operand)(const cb_x_lanes *l, int id, bool *has_lanes) {
    const int vector = l->f->m.number_lanes[id];
    *has_lanes = vector >= 0;
    return vector >= 0 ? (const CB_REAL *)cb_x_lane_vector(l, vector) : &l->c->NUM_FIELD(s)[id];
}

static void CB_TYPED(compute)(const cb_x_lanes *l, const cb_x_number *number) {
    bool step[3];
    const CB_REAL *a = CB_TYPED(operand)(l, number->a, &step[0]),
                  *b = CB_TYPED(operand)(l, number->b, &step[1]),
                  *c = CB_TYPED(operand)(l, number->c, &step[2]);
    CB_REAL *to = (CB_REAL *)cb_x_lane_vector(l, l->f->m.number_lanes[number->dst]);
    if (l->f->table->numbers_of_rows(number->op, to, (const void *[]){a, b}, step, l->n)) return;
    for (int64_t i = 0; i < l->n; i++)
        to[i] = NUM_SCALAR(number->op, a[i * step[0]], b[i * step[1]], c[i * step[2]]);
}

/* Finishes a sum, or converts the key of an extreme to a number. The minimum is the extreme of the
 * negatives. */
static void CB_TYPED(finish)(const cb_x_lanes *l, const cb_x_number *number) {
    const int first = l->f->m.acc_lanes[number->a];
    CB_REAL *to = (CB_REAL *)cb_x_lane_vector(l, l->f->m.number_lanes[number->dst]);
    if (number->op == CB_X_ACC) {
        memcpy(to, cb_x_lane_vector(l, first + CB_X_ALL), (size_t)l->n * sizeof *to);
        return;
    }
    const NUM_KEY *keys = (const NUM_KEY *)(const void *)cb_x_lane_vector(l, first);
    for (int64_t i = 0; i < l->n; i++) {
        NUM_KEY key = keys[i];
        for (int64_t k = 1; k < l->f->band_lines; k++)
            key = keys[k * l->n + i] > key ? keys[k * l->n + i] : key;
        key ^= (key >> (8 * sizeof key - 1)) & ~NUM_KEY_MIN;
        memcpy(&to[i], &key, sizeof key);
        if (number->op == CB_X_AMIN) to[i] = -to[i];
    }
}

static void CB_TYPED(clear)(const cb_x_lanes *l, int acc) {
    const cb_microcode *m = &l->f->m;
    NUM_KEY *to = (NUM_KEY *)(void *)cb_x_lane_vector(l, m->acc_lanes[acc]);
    const bool is_sum = m->acc_kind[acc] == CB_X_ROW_SUM;
    const int64_t n = (is_sum ? CB_X_SUM_VECTORS : 1) * l->f->pitch;
    if (is_sum) memset(to, 0, (size_t)n * sizeof *to);
    else
        for (int64_t i = 0; i < n; i++) to[i] = NUM_KEY_MIN;
}
