#include "streams.h"

#include <string.h>

#include "../../packed_bits.h"

char *cb_x_tile(const cb_executor *e, int thread, int32_t tile) {
    return e->tile + (size_t)thread * e->thread_bytes + (size_t)tile * e->f->tile_bytes;
}

static void fill_triangle(const cb_instr *instr, const cb_tensor *t, int64_t at, int64_t n,
                          uint8_t *out) {
    int64_t columns = t->shape.dim[t->shape.rank - 1], rows = t->shape.dim[t->shape.rank - 2];
    for (int64_t i = 0; i < n; i++) {
        int64_t column = (at + i) % columns, row = (at + i) / columns % rows;
        out[i] = column <= row + instr->attrs.i[0];
    }
}

/* Unpacks bits at..at+n. Rows may begin within a byte. */
static void fill_bits(const uint8_t *packed, int64_t at, int64_t n, uint8_t *out) {
    for (; n > 0 && at % 8; at++, n--) *out++ = packed[at / 8] >> at % 8 & 1;
    cb_unpack_bits(packed + at / 8, (uint64_t)n, out);
}

void cb_x_fill(cb_executor *e, const cb_x_stream *s, int k, int64_t at, int64_t n, void *out) {
    const cb_tensor *t = &e->x->tensor[s->tensor];
    const cb_instr *instr = &e->x->program->instr[s->instr];
    if (s->source == CB_X_GATHERED) {
        const cb_walk *w = &e->f->walk[k];
        cb_walk_copy(w, cb_walk_to(w, at), 0, t->data, s->size, out, n);
    } else if (s->source == CB_X_KEPT) {
        cb_philox philox = e->random;
        philox.stream = (uint32_t)instr->attrs.i[0];
        e->f->table->keep(&philox, (uint64_t)at, cb_dropout_threshold(instr->attrs.f[0]), out, n);
    } else if (s->source == CB_X_TRIANGLE) {
        fill_triangle(instr, t, at, n, out);
    } else if (s->source == CB_X_BITS && s->is_read) {
        fill_bits(t->data, at, n, out);
    }
}

void cb_x_pack(const cb_executor *e, const cb_x_context *c, int64_t at, int64_t first, int64_t n) {
    const cb_microcode *m = &e->f->m;
    for (int k = 0; k < m->n_stream; k++) {
        const cb_x_stream *s = &m->stream[k];
        if (s->source != CB_X_BITS || !s->is_written) continue;
        uint8_t *out = e->x->tensor[s->tensor].data;
        cb_pack_bits((const uint8_t *)c->p[k] + first, (uint64_t)n, out + at / 8);
    }
}

void cb_x_gather_across(cb_executor *e, int k, int64_t row, int64_t n, char *to, int64_t pitch) {
    const cb_x_fused *f = e->f;
    const cb_walk *w = &f->walk[k];
    const size_t size = f->m.stream[k].size;
    const char *from = e->x->tensor[f->m.stream[k].tensor].data;
    const int axis = w->rank - 2; /* the axis along which memory is contiguous */
    for (int64_t done = 0, some; done < n; done += some) {
        const cb_position at = cb_walk_to(w, (row + done) * f->m.columns);
        some = min_i64(n - done, w->dim[axis] - at.index[axis]);
        cb_copy_across(from + at.offset[0] * (int64_t)size, w->stride[0][axis + 1], size,
                       to + done * pitch * (int64_t)size, pitch, some, f->m.columns);
    }
}

char *cb_x_sums_of_block(const cb_executor *e, const cb_x_stream *s, int64_t block) {
    const cb_x_fused *f = e->f;
    const cb_instr *instr = &e->x->program->instr[s->instr];
    int64_t blocks = f->n_task;
    if (f->column[s - f->m.stream]) return f->column[s - f->m.stream];
    if (blocks == 1) return e->x->tensor[s->tensor].data;
    int64_t at = ((int64_t)s->part * blocks + block) * f->m.columns;
    return e->x->address[instr->scratch] + at * f->real;
}

void cb_x_clear_sums(cb_executor *e, int64_t block, int thread) {
    const cb_microcode *m = &e->f->m;
    size_t bytes = (size_t)(m->columns * e->f->real);
    for (int k = 0; k < m->n_columns; k++) {
        const cb_x_stream *s = &m->stream[m->column[k].stream];
        memset(cb_x_sums_of_block(e, s, block), 0, bytes);
        if (s->tile >= 0) memset(cb_x_tile(e, thread, s->tile), 0, bytes);
    }
}

void cb_x_end_run(cb_executor *e, int64_t block, int thread) {
    const cb_microcode *m = &e->f->m;
    for (int k = 0; k < m->n_columns; k++) {
        const cb_x_stream *s = &m->stream[m->column[k].stream];
        if (s->tile < 0) continue;
        char *tile = cb_x_tile(e, thread, s->tile);
        e->f->table->add(cb_x_sums_of_block(e, s, block), tile, m->columns);
        memset(tile, 0, (size_t)(m->columns * e->f->real));
    }
}
