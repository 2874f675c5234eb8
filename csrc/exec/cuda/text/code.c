/* Text is written into the body of a kernel. When the kernel ends, its parameters are known, and
 * the body is appended to the source. Kernels are deduplicated by comparing texts; there are a few
 * dozen. */
#include "code.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define GRAIN 256 /* bytes between blocks of extra memory */

void cb_cu_init(cb_cu_code *c, const cb_program *program, cb_arena *arena, cb_arena *texts) {
    *c = (cb_cu_code){.program = program, .arena = arena};
    cb_str_init(&c->includes, texts);
    cb_str_init(&c->source, texts);
    cb_str_init(&c->body, texts);
}

cb_status cb_cu_finish(const cb_cu_code *c, cb_error *err) {
    if (c->includes.failed || c->source.failed || c->body.failed) return cb_no_memory(err);
    if (c->status != CB_OK) {
        if (err) *err = c->error;
        return c->status;
    }
    if (!c->failed) return CB_OK;
    return cb_fail(err, CB_UNSUPPORTED, "cuda: a kernel has more than %d parameters", CB_CU_PARAMS);
}

void cb_cu_include(cb_cu_code *c, const char *file) {
    char line[64];
    (void)snprintf(line, sizeof line, "#include \"%s\"\n", file);
    if (!c->includes.at || !strstr(c->includes.at, line)) cb_str_addf(&c->includes, "%s\n", line);
}

void cb_cu_begin(cb_cu_code *c) {
    c->body.len = 0;
    c->shared = 0;
    c->n_param = 0;
}

void cb_cu_add(cb_cu_code *c, const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (n >= 0 && (size_t)n < sizeof line) cb_str_add(&c->body, line, (size_t)n);
    else if (c->status == CB_OK)
        c->status = cb_fail(&c->error, CB_INTERNAL,
                            "cuda: a piece of a kernel's text has %d characters; at most %zu fit",
                            n, sizeof line - 1);
}

static void fill_hole(cb_cu_code *c, const char *name, size_t length, const cb_cu_hole *hole) {
    const cb_cu_hole *h = hole;
    /* A hole's name ends in a zero or, in a list of operands, in '='. */
    while (h->name && (strncmp(h->name, name, length) != 0 || !strchr("=", h->name[length]))) h++;
    if (h->write) h->write(h->with);
    else if (h->text) cb_cu_template(c, h->text, hole);
    else if (h->is_count) cb_cu_add(c, "p%d", cb_cu_count(c, h->number));
    else if (h->name) cb_cu_add(c, h->is_param ? "p%lld" : "%lld", h->number);
    else if (c->status == CB_OK)
        c->status = cb_fail(&c->error, CB_INTERNAL, "cuda: nothing fills the hole $%.*s",
                            (int)length, name);
}

void cb_cu_template(cb_cu_code *c, const char *text, const cb_cu_hole *hole) {
    for (;;) {
        const size_t plain = strcspn(text, "$");
        if (plain) cb_str_add(&c->body, text, plain);
        if (!text[plain]) return;
        text += plain + 1;
        const bool is_closed = *text == '(';
        text += is_closed;
        const size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz_");
        fill_hole(c, text, length, hole);
        text += length + is_closed;
    }
}

/* ---- parameters ------------------------------------------------------------------------------ */

int cb_cu_param_of(cb_cu_code *c, cb_cu_param param, const char *type, bool writes) {
    for (int k = 0; k < c->n_param; k++) {
        const cb_cu_param *known = &c->param[k];
        if (known->place != param.place || known->index != param.index ||
            known->offset != param.offset || strcmp(c->type[k], type) != 0 ||
            (param.place == CB_CU_NUMBER && param.index == 0))
            continue; /* numbers that are equal here may differ for another batch size */
        c->writes[k] |= writes;
        return k;
    }
    if (c->n_param == CB_CU_PARAMS) {
        c->failed = true;
        return 0;
    }
    c->param[c->n_param] = param;
    c->type[c->n_param] = type;
    c->writes[c->n_param] = writes;
    c->looked_at[c->n_param] = 0;
    c->reads_step |= param.place == CB_CU_STEP;
    return c->n_param++;
}

int cb_cu_count(cb_cu_code *c, int64_t n) {
    return cb_cu_param_of(c, (cb_cu_param){CB_CU_NUMBER, 0, (uint64_t)n}, "uint64_t", false);
}

int cb_cu_constant(cb_cu_code *c, uint32_t name, float value) {
    cb_cu_param param = {.place = CB_CU_NUMBER, .index = name};
    memcpy(&param.offset, &value, sizeof value); /* a kernel reads as many bytes as its type has */
    return cb_cu_param_of(c, param, "float", false);
}

const char *cb_cu_type(cb_dtype dtype) {
    switch (dtype) {
        case CB_BOOL:
        case CB_U8: return "uint8_t";
        case CB_I32: return "int32_t";
        case CB_I64: return "int64_t";
        case CB_F16: return "half_t";
        case CB_BF16: return "bhalf_t";
        case CB_F64: return "double";
        default: return "float";
    }
}

int cb_cu_operand(cb_cu_code *c, uint32_t operand, bool writes) {
    const cb_operand *o = &c->program->operand[operand];
    const uint64_t offset = (uint64_t)o->offset * cb_dtype_size(o->dtype);
    cb_cu_param param = {CB_CU_ARENA, 0, offset};
    switch (o->space) {
        case CB_SPACE_ARENA: param.offset += c->program->buffer[o->buffer].offset; break;
        case CB_SPACE_INPUT: param = (cb_cu_param){CB_CU_INPUT, o->buffer, offset}; break;
        default: param = (cb_cu_param){CB_CU_OUTPUT, o->buffer, offset};
    }
    if (param.place == CB_CU_OUTPUT && o->buffer >= c->program->n_output) {
        const uint64_t at = c->local_at[o->buffer - c->program->n_output];
        param = (cb_cu_param){CB_CU_EXTRA, 0, at + offset}; /* a local of a group run op by op */
    }
    return cb_cu_param_of(c, param, cb_cu_type(o->dtype), writes);
}

bool cb_cu_is_even(const cb_cu_code *c, int param, uint64_t bytes) {
    const cb_cu_param *p = &c->param[param];
    return (p->place == CB_CU_ARENA || p->place == CB_CU_EXTRA) && p->offset % bytes == 0;
}

const char *cb_cu_looked_at(cb_cu_code *c, int param, uint64_t bytes) {
    if (bytes < 2) return "true";
    if (c->looked_at[param] < bytes) c->looked_at[param] = (uint8_t)bytes;
    return "all_even";
}

uint64_t cb_cu_extra(cb_cu_code *c, uint64_t bytes) {
    const uint64_t at = c->extra_bytes;
    c->extra_bytes += (bytes + GRAIN - 1) / GRAIN * GRAIN;
    return at;
}

/* ---- the end of a kernel --------------------------------------------------------------------- */

/* Writes the kernel's parameters. An output that takes over an input's memory shares its parameter,
 * which is not const. */
static void add_signature(const cb_cu_code *c, cb_str *out) {
    for (int k = 0; k < c->n_param; k++) {
        const cb_cu_place place = c->param[k].place;
        const char *comma = k ? ", " : "";
        if (place == CB_CU_SEED || place == CB_CU_NUMBER)
            cb_str_addf(out, "%s%s p%d", comma, c->type[k], k);
        else if (place == CB_CU_STEP)
            cb_str_addf(out, "%sconst %s *__restrict__ p%d_at", comma, c->type[k], k);
        else if (c->writes[k]) cb_str_addf(out, "%s%s *p%d", comma, c->type[k], k);
        else cb_str_addf(out, "%sconst %s *__restrict__ p%d", comma, c->type[k], k);
    }
}

/* Writes `all_even`: addresses that need the same alignment are checked together. */
static void add_looks(const cb_cu_code *c, cb_str *out) {
    const char *begin = "const bool all_even = (";
    for (int bytes = 16; bytes > 1; bytes /= 2) {
        const char *more = "((";
        for (int k = 0; k < c->n_param; k++) {
            if (c->looked_at[k] != bytes) continue;
            cb_str_addf(out, "%s%s(size_t)p%d", begin, more, k);
            begin = "";
            more = " | ";
        }
        if (more[0] == ' ') cb_str_addf(out, ") & %d)", bytes - 1), begin = " | ";
    }
    if (begin[0] == ' ') cb_str_addf(out, ") == 0;\n");
}

/* Writes the bounds of a kernel's launch. If shared memory leaves room for one block only, saving
 * registers for more blocks would have no use, so the compiler is told that one is enough. */
static void add_bounds(const cb_cu_code *c, cb_str *s, uint32_t threads) {
    enum { HALF_OF_LARGEST = 114 << 10 }; /* half of the shared memory of compute capability 9.0 */
    cb_str_addf(s, "extern \"C\" __global__ void __launch_bounds__(%u%s)", threads,
                c->shared > HALF_OF_LARGEST ? ", 1" : "");
}

/* Returns the kernel with this text; adds one if there is none. */
static uint32_t kernel_of(cb_cu_code *c, uint32_t threads) {
    cb_str *s = &c->source;
    const size_t begin = s->len;
    const uint32_t number = (uint32_t)c->kernels.len;
    add_bounds(c, s, threads);
    cb_str_addf(s, " cb_k%u", number);
    const size_t at = s->len;
    cb_str_addf(s, "(");
    add_signature(c, s);
    cb_str_addf(s, ") {\n");
    add_looks(c, s);
    for (int k = 0; k < c->n_param; k++)
        if (c->param[k].place == CB_CU_STEP)
            cb_str_addf(s, "const %s p%d = *p%d_at;\n", c->type[k], k, k);
    cb_str_add(s, c->body.at ? c->body.at : "", c->body.len);
    cb_str_addf(s, "}\n/* %u */\n\n", threads);
    if (s->failed) return 0;
    const size_t length = s->len - at;
    for (uint32_t k = 0; k < number; k++) {
        const cb_cu_kernel *known = &c->kernels.at[k];
        if (known->length != length || memcmp(s->at + known->at, s->at + at, length) != 0) continue;
        s->len = begin;
        s->at[begin] = 0;
        return k;
    }
    const cb_cu_kernel kernel = {
        .begin = begin, .size = s->len - begin, .at = at, .length = length, .shared = c->shared};
    if (!CB_PUSH(c->arena, c->kernels, kernel)) s->failed = true;
    return number;
}

/* Adds a launch with the parameters of the current kernel or call. */
static void add_launch(cb_cu_code *c, cb_cu_launch *launch) {
    launch->group = c->group;
    launch->param_begin = (uint32_t)c->params.len;
    launch->n_param = (uint32_t)c->n_param;
    bool kept = CB_PUSH(c->arena, c->launches, *launch);
    for (int k = 0; kept && k < c->n_param; k++) kept = CB_PUSH(c->arena, c->params, c->param[k]);
    if (!kept) c->source.failed = true;
}

void cb_cu_end(cb_cu_code *c, cb_cu_grid grid, uint32_t threads) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return; /* nothing to do */
    const uint32_t kernel = kernel_of(c, threads);
    add_launch(c, &(cb_cu_launch){.kernel = kernel,
                                  .call = CB_NONE,
                                  .grid = grid,
                                  .threads = threads,
                                  .shared = c->shared});
}

bool cb_cu_end_call(cb_cu_code *c, const cb_cu_call *call) {
    const uint32_t at = (uint32_t)c->calls.len;
    if (!CB_PUSH(c->arena, c->calls, *call)) {
        c->source.failed = true;
        return false;
    }
    add_launch(c, &(cb_cu_launch){.call = at});
    return true;
}

/* ---- numbers --------------------------------------------------------------------------------- */

int64_t cb_cu_div_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

void cb_cu_offset(cb_cu_code *c, int rank, const int64_t *dim, const int64_t *stride,
                  const char *name, const char *at) {
    cb_cu_add(c, "I %s = 0;\n{ I rest = %s;\n", name, at);
    for (int k = rank - 1; k >= 0; k--) {
        const long long n = (long long)dim[k], step = (long long)stride[k];
        if (k == 0) {
            if (step) cb_cu_add(c, "%s += rest * (I)%lld;\n", name, step);
        } else {
            if (step) cb_cu_add(c, "%s += rest %% (I)%lld * (I)%lld; ", name, n, step);
            cb_cu_add(c, "rest /= (I)%lld;\n", n);
        }
    }
    cb_cu_add(c, "}\n");
}

/* ---- printing -------------------------------------------------------------------------------- */

static void print_param(const cb_cu_param *p, cb_str *out) {
    const unsigned long long offset = (unsigned long long)p->offset;
    switch (p->place) {
        case CB_CU_ARENA: cb_str_addf(out, "arena+%llu", offset); break;
        case CB_CU_INPUT: cb_str_addf(out, "input %u+%llu", p->index, offset); break;
        case CB_CU_OUTPUT: cb_str_addf(out, "output %u+%llu", p->index, offset); break;
        case CB_CU_EXTRA: cb_str_addf(out, "extra+%llu", offset); break;
        case CB_CU_FAILURE: cb_str_addf(out, "failure"); break;
        case CB_CU_SEED: cb_str_addf(out, "seed"); break;
        case CB_CU_STEP: cb_str_addf(out, "step"); break;
        case CB_CU_COUNT: cb_str_addf(out, "count"); break;
        case CB_CU_NUMBER: cb_str_addf(out, "0x%llx", offset); break;
    }
}

void cb_cu_print(const cb_cu_code *c, cb_str *out) {
    cb_str_addf(out, "// compute capability %d.%d, %llu bytes beside the arena\n",
                c->capability / 10, c->capability % 10, (unsigned long long)c->extra_bytes);
    for (size_t k = 0; k < c->launches.len; k++) {
        const cb_cu_launch *l = &c->launches.at[k];
        if (l->call != CB_NONE) cb_str_addf(out, "// group %u: cublasLtMatmul(", l->group);
        else
            cb_str_addf(out, "// group %u: cb_k%u<<<(%u, %u, %u), %u", l->group, l->kernel,
                        l->grid.x, l->grid.y, l->grid.z, l->threads);
        if (l->call == CB_NONE && l->shared) cb_str_addf(out, ", %u", l->shared);
        if (l->call == CB_NONE) cb_str_addf(out, ">>>(");
        for (uint32_t i = 0; i < l->n_param; i++) {
            if (i) cb_str_addf(out, ", ");
            print_param(&c->params.at[l->param_begin + i], out);
        }
        cb_str_addf(out, ")\n");
    }
    cb_str_addf(out, "\n");
    if (c->includes.len) cb_str_add(out, c->includes.at, c->includes.len);
    if (c->source.len) cb_str_add(out, c->source.at, c->source.len);
}
