/* Checks a program before it touches memory. Everything is recomputed from the program itself, so a
 * bug in the planner, in placement or in lowering is found here rather than as a wrong number. */
#include <inttypes.h>

#include "../fuse/reads.h"
#include "../fuse/steps.h"
#include "alone.h"
#include "verify_updates.h"

typedef struct check {
    const cb_program *p;
    cb_arena scratch;
    cb_error *err;
    uint8_t *written;                  /* [n_buffer] */
    uint8_t *output_written;           /* [n_output] */
    uint8_t *local_written;            /* [n_local] */
    uint8_t *is_scratch;               /* [n_buffer] true if an instruction so far uses it as
                                          scratch */
    uint8_t *is_taken;                 /* [n_buffer] true if another buffer takes it over in its
                                          last group */
    uint8_t *made;                     /* [n_buffer + n_output + n_local] cb_made in the group */
    uint32_t *by_made, *by_last;       /* buffers in order of made, last */
    uint32_t *made_begin, *last_begin; /* [n_group + 2] */
    uint32_t *active;                  /* [n_active] live buffers with bytes, by offset */
    uint32_t n_active;
} check;

/* Computes the size of the memory that contains the operand. */
static cb_status room_of(const check *c, uint32_t id, const cb_operand *x, uint64_t *room) {
    const cb_program *p = c->p;
    const uint32_t sizes[] = {p->n_buffer, p->n_input, p->n_output, p->n_local};
    const uint32_t n = (unsigned)x->space <= CB_SPACE_LOCAL ? sizes[x->space] : 0;
    if (x->buffer >= n) {
        return cb_fail(c->err, CB_INTERNAL,
                       "program: operand %" PRIu32 " refers to memory %" PRIu32
                       ", but there are %" PRIu32,
                       id, x->buffer, n);
    }
    switch (x->space) {
        case CB_SPACE_ARENA: *room = p->buffer[x->buffer].bytes; break;
        case CB_SPACE_INPUT: *room = p->input[x->buffer].bytes; break;
        case CB_SPACE_OUTPUT: *room = p->output[x->buffer].bytes; break;
        case CB_SPACE_LOCAL: *room = p->locals[x->buffer].bytes; break;
    }
    return CB_OK;
}

static cb_status check_operand(const check *c, uint32_t id) {
    const cb_operand *x = &c->p->operand[id];
    uint64_t room = 0;
    CB_TRY(room_of(c, id, x, &room));
    int64_t low = x->offset, high = x->offset, reach;
    if (cb_numel(&x->shape) == 0) return CB_OK;
    for (int32_t k = 0; k < x->shape.rank; k++) {
        if (__builtin_mul_overflow(x->shape.dim[k] - 1, x->stride[k], &reach) ||
            (reach < 0 ? __builtin_add_overflow(low, reach, &low)
                       : __builtin_add_overflow(high, reach, &high))) {
            return cb_fail(c->err, CB_INTERNAL,
                           "program: operand %" PRIu32 " has strides beyond any memory", id);
        }
    }
    uint64_t elements = room / cb_dtype_size(x->dtype);
    if (low >= 0 && high >= 0 && (uint64_t)high < elements) return CB_OK;
    return cb_fail(c->err, CB_INTERNAL,
                   "program: operand %" PRIu32 " covers elements %" PRId64 "..%" PRId64
                   " of memory with %" PRIu64,
                   id, low, high, elements);
}

/* Lists the buffers by their group `of`, with a counting sort. */
static void list_by(const cb_program *p, bool last, uint32_t *begin, uint32_t *order) {
    for (uint32_t b = 0; b < p->n_buffer; b++)
        begin[(last ? p->buffer[b].last : p->buffer[b].made) + 1]++;
    for (uint32_t g = 0; g <= p->n_group; g++) begin[g + 1] += begin[g];
    for (uint32_t b = p->n_buffer; b-- > 0;) {
        uint32_t g = last ? p->buffer[b].last : p->buffer[b].made;
        order[--begin[g + 1]] = b;
    }
    /* Filling from the back has turned each end into the beginning of its group. */
    for (uint32_t g = 0; g <= p->n_group; g++) begin[g] = begin[g + 1];
    begin[p->n_group + 1] = p->n_buffer;
}

static cb_status check_buffers(check *c) {
    const cb_program *p = c->p;
    if (p->align == 0 || (p->align & (p->align - 1))) {
        return cb_fail(c->err, CB_INTERNAL, "program: align is %" PRIu64 ", not a power of two",
                       p->align);
    }
    for (uint32_t b = 0; b < p->n_buffer; b++) {
        const cb_buffer *x = &p->buffer[b];
        if (x->made >= p->n_group || x->last < x->made || x->last > p->n_group) {
            return cb_fail(c->err, CB_INTERNAL,
                           "program: buffer %" PRIu32 " is live in groups %" PRIu32 "..%" PRIu32
                           " of %" PRIu32,
                           b, x->made, x->last, p->n_group);
        }
        if (x->offset % p->align || x->bytes > p->arena_bytes ||
            x->offset > p->arena_bytes - x->bytes) {
            return cb_fail(c->err, CB_INTERNAL,
                           "program: buffer %" PRIu32 " of %" PRIu64 " bytes at %" PRIu64
                           " is not in the arena of %" PRIu64,
                           b, x->bytes, x->offset, p->arena_bytes);
        }
    }
    return CB_OK;
}

/* Returns the position of `buffer` among the active ones. */
static uint32_t place_in(const check *c, uint32_t buffer) {
    uint64_t offset = c->p->buffer[buffer].offset;
    uint32_t low = 0, high = c->n_active;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (c->p->buffer[c->active[middle]].offset < offset) low = middle + 1;
        else high = middle;
    }
    return low;
}

static cb_status overlap(const check *c, uint32_t a, uint32_t b) {
    const cb_buffer *x = &c->p->buffer[a], *y = &c->p->buffer[b];
    return cb_fail(c->err, CB_INTERNAL,
                   "program: buffers %" PRIu32 " (%" PRIu64 " bytes at %" PRIu64 ") and %" PRIu32
                   " (%" PRIu64 " bytes at %" PRIu64 ") are live at the same time and overlap",
                   a, x->bytes, x->offset, b, y->bytes, y->offset);
}

static cb_status taken_wrong(const check *c, uint32_t b, const char *what) {
    return cb_fail(c->err, CB_INTERNAL,
                   "program: buffer %" PRIu32 " takes over buffer %" PRIu32 ": %s", b,
                   c->p->buffer[b].over, what);
}

/* True if group `g` copies the buffer to the host after it runs (`leaving`), or back before it
 * runs. */
static bool moves_in(const cb_program *p, uint32_t g, uint32_t buffer, bool leaving) {
    if (!p->move_begin) return false;
    for (uint32_t m = p->move_begin[g]; m < p->move_begin[g + 1]; m++) {
        if (p->move[m].buffer == buffer && (p->move[m].from == CB_NONE) == leaving) return true;
    }
    return false;
}

/* Checks that each buffer is taken over at most once, in its last group, and by a buffer of the
 * same size. It must have begun in an earlier group, or come back from the host for this one. */
static cb_status check_taken(check *c) {
    const cb_program *p = c->p;
    for (uint32_t b = 0; b < p->n_buffer; b++) {
        const cb_buffer *to = &p->buffer[b];
        if (!to->takes_over) continue;
        if (to->over >= p->n_buffer || to->over == b)
            return taken_wrong(c, b, "there is no such buffer");
        const cb_buffer *from = &p->buffer[to->over];
        if (c->is_taken[to->over]) return taken_wrong(c, b, "another buffer also takes it over");
        const bool is_earlier = from->made < to->made || (from->made == to->made && to->over < b &&
                                                          moves_in(p, to->made, to->over, false));
        if (from->last != to->made || !is_earlier)
            return taken_wrong(c, b, "its life does not end in the group where the new one begins");
        if (from->bytes != to->bytes || from->offset != to->offset)
            return taken_wrong(c, b, "the two differ in size or offset");
        c->is_taken[to->over] = 1;
    }
    return CB_OK;
}

/* Sweeps forward in time; live buffers stay sorted by offset, so a new one is compared only with
 * its two neighbours. */
static cb_status enter(check *c, uint32_t buffer) {
    const cb_buffer *x = &c->p->buffer[buffer];
    if (x->bytes == 0) return CB_OK;
    uint32_t at = place_in(c, buffer);
    if (at < c->n_active && c->p->buffer[c->active[at]].offset < x->offset + x->bytes)
        return overlap(c, buffer, c->active[at]);
    if (at > 0) {
        const cb_buffer *below = &c->p->buffer[c->active[at - 1]];
        if (below->offset + below->bytes > x->offset) return overlap(c, buffer, c->active[at - 1]);
    }
    memmove(c->active + at + 1, c->active + at, (c->n_active - at) * sizeof *c->active);
    c->active[at] = buffer;
    c->n_active++;
    return CB_OK;
}

static void leave(check *c, uint32_t buffer) {
    if (c->p->buffer[buffer].bytes == 0) return;
    uint32_t at = place_in(c, buffer);
    c->n_active--;
    memmove(c->active + at, c->active + at + 1, (c->n_active - at) * sizeof *c->active);
}

static cb_status check_overlaps(check *c) {
    const cb_program *p = c->p;
    uint64_t live = 0, peak = 0;
    list_by(p, false, c->made_begin, c->by_made);
    list_by(p, true, c->last_begin, c->by_last);
    for (uint32_t g = 0; g < p->n_group; g++) {
        for (uint32_t i = c->made_begin[g]; i < c->made_begin[g + 1]; i++) {
            const cb_buffer *x = &p->buffer[c->by_made[i]];
            if (x->takes_over) leave(c, x->over);
            else live += x->bytes;
            CB_TRY(enter(c, c->by_made[i]));
        }
        if (live > peak) peak = live;
        for (uint32_t i = c->last_begin[g]; i < c->last_begin[g + 1]; i++) {
            if (c->is_taken[c->by_last[i]]) continue;
            leave(c, c->by_last[i]);
            live -= p->buffer[c->by_last[i]].bytes;
        }
    }
    if (peak == p->live_bytes) return CB_OK;
    return cb_fail(c->err, CB_INTERNAL,
                   "program: at most %" PRIu64
                   " bytes are live at once, but live_bytes is %" PRIu64,
                   peak, p->live_bytes);
}

static bool lives_in(const cb_buffer *x, uint32_t group) {
    return x->made <= group && group <= x->last;
}

static cb_status check_read(const check *c, uint32_t group, uint32_t id) {
    const cb_operand *x = &c->p->operand[id];
    bool good = true;
    if (x->space == CB_SPACE_ARENA)
        good = lives_in(&c->p->buffer[x->buffer], group) && c->written[x->buffer];
    if (x->space == CB_SPACE_OUTPUT) good = c->output_written[x->buffer];
    if (x->space == CB_SPACE_LOCAL)
        good = c->p->locals[x->buffer].group == group && c->local_written[x->buffer];
    if (good) return CB_OK;
    return cb_fail(c->err, CB_INTERNAL,
                   "program: group %" PRIu32 " reads operand %" PRIu32 ", which is not in memory",
                   group, id);
}

static cb_status check_write(check *c, uint32_t group, uint32_t id) {
    const cb_operand *x = &c->p->operand[id];
    bool good = x->space != CB_SPACE_INPUT;
    if (x->space == CB_SPACE_ARENA) {
        good = lives_in(&c->p->buffer[x->buffer], group) && !c->written[x->buffer];
        c->written[x->buffer] = 1;
    } else if (x->space == CB_SPACE_OUTPUT) {
        good = !c->output_written[x->buffer]; /* the caller may have read it by then */
        c->output_written[x->buffer] = 1;
    } else if (x->space == CB_SPACE_LOCAL) {
        good = c->p->locals[x->buffer].group == group && !c->local_written[x->buffer] &&
               cb_group_fuses(&c->p->group[group]) && x->offset == 0;
        c->local_written[x->buffer] = 1;
    }
    if (good && cb_is_contiguous(&x->shape, x->stride)) return CB_OK;
    return cb_fail(c->err, CB_INTERNAL, "program: group %" PRIu32 " may not write operand %" PRIu32,
                   group, id);
}

static cb_status check_instr(check *c, uint32_t group, const cb_instr *instr) {
    const uint32_t *ins = c->p->operand_id + instr->in_begin,
                   *outs = c->p->operand_id + instr->out_begin;
    for (uint32_t k = 0; k < instr->n_in; k++) CB_TRY(check_read(c, group, ins[k]));
    for (uint32_t k = 0; k < instr->n_out; k++) {
        CB_TRY(check_write(c, group, outs[k]));
        for (uint32_t j = 0; j < instr->n_in; j++) {
            const cb_operand *in = &c->p->operand[ins[j]], *out = &c->p->operand[outs[k]];
            if (in->space != out->space || in->buffer != out->buffer) continue;
            return cb_fail(c->err, CB_INTERNAL,
                           "program: group %" PRIu32 " reads and writes the same memory", group);
        }
    }
    return CB_OK;
}

/* ---- groups of several ----------------------------------------------------------------------- */

static uint8_t *made_at(const check *c, uint32_t id) {
    const cb_operand *x = &c->p->operand[id];
    switch (x->space) {
        case CB_SPACE_ARENA: return &c->made[x->buffer];
        case CB_SPACE_OUTPUT: return &c->made[c->p->n_buffer + x->buffer];
        case CB_SPACE_LOCAL: return &c->made[c->p->n_buffer + c->p->n_output + x->buffer];
        case CB_SPACE_INPUT: break;
    }
    return NULL;
}

static cb_status part_wrong(const check *c, uint32_t group, const cb_instr *instr,
                            const char *what) {
    return cb_fail(c->err, CB_INTERNAL, "program: %s does not belong in group %" PRIu32 ": %s",
                   cb_op_def_of(instr->code)->name, group, what);
}

/* Checks the part of the instruction in the group's domain, and how it reads values of the
 * group. */
static cb_status check_part(const check *c, uint32_t g, const cb_instr *instr, cb_parts *parts) {
    const cb_program *p = c->p;
    const uint32_t *ins = p->operand_id + instr->in_begin, *outs = p->operand_id + instr->out_begin;
    const cb_domain *domain = &p->group[g].domain;
    const cb_shaped shaped = cb_shaped_instr(p, instr);
    const cb_part part = cb_part_of(&shaped, domain);
    bool late = false;
    if (part == CB_PART_NONE || part != instr->part)
        return part_wrong(c, g, instr, "its part is not the one that its op has");
    for (uint32_t k = 0; k < instr->n_in; k++) {
        const uint8_t *at = made_at(c, ins[k]);
        const cb_operand *x = &p->operand[ins[k]];
        const cb_made made = at ? (cb_made)*at : CB_MADE_OUTSIDE;
        cb_parts_add_dtype(parts, x->dtype);
        late |= made == CB_MADE_LATE;
        if (!cb_may_read(instr->code, part, k, made, cb_view_of(&x->shape, x->stride, domain)))
            return part_wrong(c, g, instr,
                              "it reads a value before it is complete, or in another order");
    }
    for (uint32_t k = 0; k < instr->n_out; k++) {
        cb_parts_add_dtype(parts, p->operand[outs[k]].dtype);
        *made_at(c, outs[k]) = (uint8_t)cb_made_by(instr->code, part, k, late);
    }
    cb_parts_add(parts, instr->code, part);
    return CB_OK;
}

static cb_status check_parts(const check *c, uint32_t g) {
    const cb_program *p = c->p;
    const cb_group *group = &p->group[g];
    const cb_instr *instr = &p->instr[group->instr_begin];
    cb_parts parts = {0};
    if (group->n_instr == 1 && !cb_group_fuses(group)) {
        if (instr->part == CB_PART_NONE && group->domain.count == 0 && group->domain.columns == 0)
            return CB_OK;
        return part_wrong(c, g, instr, "it is the only instruction of its group but has a part");
    }
    for (uint32_t i = 0; i < group->n_instr; i++) CB_TRY(check_part(c, g, &instr[i], &parts));
    for (uint32_t i = 0; i < group->n_instr; i++) {
        for (uint32_t k = 0; k < instr[i].n_out; k++)
            *made_at(c, p->operand_id[instr[i].out_begin + k]) = CB_MADE_OUTSIDE;
    }
    if (!cb_parts_agree(&parts))
        return part_wrong(c, g, instr, "another instruction computes in f64");
    if (cb_parts_fit(&parts, &group->domain)) return CB_OK;
    return part_wrong(c, g, instr, "its rows split what must stay together");
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* True if an earlier instruction of the group copies the same indices to the same place. */
static bool shares_scratch(const cb_program *p, uint32_t g, const cb_instr *instr) {
    const int input = cb_op_index_input(instr->code);
    for (const cb_instr *other = &p->instr[p->group[g].instr_begin]; other < instr; other++) {
        const int like = cb_op_index_input(other->code);
        if (other->scratch != instr->scratch || input < 0 || like < 0) continue;
        if (p->operand_id[instr->in_begin + (uint32_t)input] ==
            p->operand_id[other->in_begin + (uint32_t)like])
            return true;
    }
    return false;
}

static cb_status check_scratch(check *c, uint32_t g, const cb_instr *instr) {
    const uint32_t scratch = instr->scratch;
    if (scratch == CB_NONE || shares_scratch(c->p, g, instr)) return CB_OK;
    if (scratch < c->p->n_buffer && lives_in(&c->p->buffer[scratch], g) &&
        !c->is_scratch[scratch] && !c->written[scratch]) {
        c->is_scratch[scratch] = 1;
        return CB_OK;
    }
    return cb_fail(c->err, CB_INTERNAL, "program: group %" PRIu32 " has no valid scratch", g);
}

static cb_status move_wrong(const check *c, uint32_t m, const char *what) {
    return cb_fail(c->err, CB_INTERNAL, "program: move %" PRIu32 " of buffer %" PRIu32 ": %s", m,
                   c->p->move[m].buffer, what);
}

/* Checks that a value that comes back has left before, and that nothing overwrote its place on the
 * host. */
static cb_status check_return(const check *c, uint32_t m) {
    const cb_move *move = &c->p->move[m];
    const uint64_t bytes = c->p->buffer[move->buffer].bytes;
    if (move->from >= m || c->p->move[move->from].from != CB_NONE ||
        c->p->move[move->from].host != move->host ||
        c->p->buffer[c->p->move[move->from].buffer].bytes != bytes)
        return move_wrong(c, m, "it returns from the host but never left for that place");
    for (uint32_t k = move->from + 1; k < m; k++) {
        const cb_move *other = &c->p->move[k];
        if (other->from == CB_NONE && other->host < move->host + bytes &&
            move->host < other->host + c->p->buffer[other->buffer].bytes)
            return move_wrong(c, m, "another buffer was copied over it on the host");
    }
    if (c->written[move->buffer])
        return move_wrong(c, m, "it returns although it is on the device");
    c->written[move->buffer] = 1;
    return CB_OK;
}

/* Checks the moves of a group: values that come back, or that leave. */
static cb_status check_moves(const check *c, uint32_t g, bool leaving) {
    const cb_program *p = c->p;
    if (!p->move_begin) return CB_OK;
    for (uint32_t m = p->move_begin[g]; m < p->move_begin[g + 1]; m++) {
        const cb_move *move = &p->move[m];
        if ((move->from == CB_NONE) != leaving) continue;
        if (move->buffer >= p->n_buffer || !lives_in(&p->buffer[move->buffer], g) ||
            p->buffer[move->buffer].bytes > p->host_bytes ||
            move->host > p->host_bytes - p->buffer[move->buffer].bytes)
            return move_wrong(c, m, "its buffer or its place on the host does not exist");
        if (!leaving) CB_TRY(check_return(c, m));
        else if (!c->written[move->buffer]) return move_wrong(c, m, "it leaves before it is made");
    }
    return CB_OK;
}

/* ---- memory taken over ----------------------------------------------------------------------- */

typedef struct use { /* the use of a buffer in a group */
    uint32_t n_read;
    uint32_t reader, writer; /* the last instruction of each kind */
    const cb_operand *read;  /* NULL: no instruction reads it */
} use;

static use use_of(const cb_program *p, const cb_group *group, uint32_t buffer) {
    use u = {0};
    for (uint32_t i = group->instr_begin; i < group->instr_begin + group->n_instr; i++) {
        const cb_instr *instr = &p->instr[i];
        for (uint32_t k = 0; k < instr->n_in + instr->n_out; k++) {
            const bool reads = k < instr->n_in;
            const uint32_t at = reads ? instr->in_begin + k : instr->out_begin + k - instr->n_in;
            const cb_operand *x = &p->operand[p->operand_id[at]];
            if (x->space != CB_SPACE_ARENA || x->buffer != buffer) continue;
            if (!reads) u.writer = i;
            if (reads) u = (use){u.n_read + 1, i, u.writer, x};
        }
    }
    return u;
}

static bool is_pointwise(const cb_program *p, const cb_group *group) {
    bool is = true;
    for (uint32_t i = group->instr_begin; i < group->instr_begin + group->n_instr && is; i++)
        is = group->n_instr == 1 ? cb_op_def_of(p->instr[i].code)->flags & CB_OPF_POINTWISE
                                 : cb_part_may_take(p->instr[i].part);
    return is;
}

/* True for a product that is added to its base and is the only instruction of its group. */
static bool adds_to(const cb_program *p, const cb_group *group, const cb_operand *base) {
    const cb_instr *instr = &p->instr[group->instr_begin];
    return group->n_instr == 1 && instr->code == CB_OP_MATMUL_ADD &&
           &p->operand[p->operand_id[instr->in_begin + 2]] == base;
}

/* Checks that element i is read once, before element i is written. */
static cb_status check_take_over(const check *c, uint32_t b) {
    const cb_program *p = c->p;
    const cb_buffer *to = &p->buffer[b];
    const cb_group *group = &p->group[to->made];
    const use from = use_of(p, group, to->over);
    const cb_operand *x = from.read;
    if (!is_pointwise(p, group) && !adds_to(p, group, x))
        return taken_wrong(c, b, "the group is not pointwise");
    if (from.n_read != 1 || !x || from.reader > use_of(p, group, b).writer)
        return taken_wrong(
            c, b, "the group does not read the old buffer once before it writes the new one");
    if (x->offset != 0 || !cb_is_contiguous(&x->shape, x->stride) ||
        (uint64_t)cb_numel(&x->shape) * cb_dtype_size(x->dtype) != to->bytes)
        return taken_wrong(c, b, "the group reads it in a different order than it writes");
    if (moves_in(p, to->made, to->over, true)) return taken_wrong(c, b, "it is copied to the host");
    return CB_OK;
}

static cb_status check_groups(check *c) {
    const cb_program *p = c->p;
    uint32_t next = 0;
    for (uint32_t g = 0; g < p->n_group; g++) {
        const cb_group *group = &p->group[g];
        if (group->instr_begin != next || group->n_instr == 0 ||
            group->n_instr > p->n_instr - next) {
            return cb_fail(c->err, CB_INTERNAL,
                           "program: group %" PRIu32 " does not follow the one before it", g);
        }
        CB_TRY(check_moves(c, g, false));
        for (uint32_t i = 0; i < group->n_instr; i++) {
            CB_TRY(check_instr(c, g, &p->instr[next + i]));
            CB_TRY(check_scratch(c, g, &p->instr[next + i]));
        }
        CB_TRY(check_parts(c, g));
        CB_TRY(check_moves(c, g, true));
        next += group->n_instr;
    }
    if (next == p->n_instr) return CB_OK;
    return cb_fail(c->err, CB_INTERNAL,
                   "program: of %" PRIu32 " instructions, only %" PRIu32 " are in groups",
                   p->n_instr, next);
}

/* Checks that the promised outputs exist at the end. */
static cb_status check_outputs(const check *c) {
    const cb_program *p = c->p;
    for (uint32_t i = 0; i < p->n_output; i++) {
        const cb_operand *x = &p->operand[p->output[i].operand];
        const bool consumed = p->updates_inside && p->output[i].role_or_kind == CB_OUTPUT_GRAD;
        bool kept = x->space == CB_SPACE_ARENA && c->written[x->buffer] &&
                    (consumed || p->buffer[x->buffer].last == p->n_group);
        bool given = x->space == CB_SPACE_OUTPUT && x->buffer == i && c->output_written[i];
        if ((kept || given) && cb_is_contiguous(&x->shape, x->stride) && x->offset == 0) continue;
        return cb_fail(c->err, CB_INTERNAL, "program: output %" PRIu32 " (%s) is never made", i,
                       p->output[i].name);
    }
    return CB_OK;
}

static cb_status check_all(check *c) {
    const cb_program *p = c->p;
    CB_TRY_NEW(c->written, &c->scratch, p->n_buffer, c->err);
    CB_TRY_NEW(c->output_written, &c->scratch, p->n_output, c->err);
    CB_TRY_NEW(c->local_written, &c->scratch, p->n_local, c->err);
    CB_TRY_NEW(c->is_scratch, &c->scratch, p->n_buffer, c->err);
    CB_TRY_NEW(c->is_taken, &c->scratch, p->n_buffer, c->err);
    CB_TRY_NEW(c->made, &c->scratch, p->n_buffer + (size_t)p->n_output + p->n_local, c->err);
    CB_TRY_NEW(c->by_made, &c->scratch, p->n_buffer, c->err);
    CB_TRY_NEW(c->by_last, &c->scratch, p->n_buffer, c->err);
    CB_TRY_NEW(c->made_begin, &c->scratch, p->n_group + (size_t)2, c->err);
    CB_TRY_NEW(c->last_begin, &c->scratch, p->n_group + (size_t)2, c->err);
    CB_TRY_NEW(c->active, &c->scratch, p->n_buffer, c->err);
    for (uint32_t i = 0; i < p->n_operand; i++) CB_TRY(check_operand(c, i));
    CB_TRY(check_buffers(c));
    CB_TRY(check_taken(c));
    CB_TRY(check_overlaps(c));
    CB_TRY(check_groups(c));
    for (uint32_t b = 0; b < p->n_buffer; b++)
        if (p->buffer[b].takes_over) CB_TRY(check_take_over(c, b));
    CB_TRY(check_outputs(c));
    return p->updates_inside ? cb_verify_inner_updates(p, c->err) : CB_OK;
}

cb_status cb_program_verify(const cb_program *program, cb_error *err) {
    check c = {.p = program, .err = err};
    cb_arena_init(&c.scratch, program->arena.alloc);
    cb_status status = check_all(&c);
    cb_arena_free(&c.scratch);
    return status;
}
