/* code.h: the CUDA C of a program while it is written, and what launches it.
 *
 *     cb_cu_begin(&code);                        a kernel
 *     int x = cb_cu_operand(&code, id, false);   an operand is a parameter p<x>, by its address
 *     cb_cu_add(&code, "p%d[i] = 0;\n", x);      its text
 *     cb_cu_end(&code, grid, 256);               it is launched once a run, here in the order
 *
 * Kernels of the same text are one. So that equal layers of a model are, and a batch of another
 * size, numbers which do not shape a kernel are parameters like addresses: how many rows there are,
 * constants, what tells one dropout from another. The text has the axes within a row, and what must
 * be known to make it: widths of accesses, whether offsets have 32 bits. A parameter has eight
 * bytes, and where they come from: a block, a number of the run, or one of the program. What is
 * added after memory ran out is thrown away; cb_cu_finish says so. */
#ifndef CB_EXEC_CUDA_TEXT_CODE_H
#define CB_EXEC_CUDA_TEXT_CODE_H

#include "../../../base/vec.h"
#include "../../../lower/program.h"
#include "cu_blaslt.h"

enum { CB_CU_PARAMS = 192 };

typedef enum cb_cu_place {
    CB_CU_ARENA = 0,
    CB_CU_INPUT,
    CB_CU_OUTPUT,
    CB_CU_EXTRA,   /* memory of the executable beside the arena */
    CB_CU_FAILURE, /* the executable's word for errors */
    CB_CU_SEED,
    CB_CU_STEP,  /* of the random generator: a number in memory, which a replay finds counted on */
    CB_CU_COUNT, /* that memory */
    CB_CU_NUMBER /* of the program */
} cb_cu_place;

typedef struct cb_cu_param {
    cb_cu_place place;
    uint32_t index;  /* INPUT, OUTPUT: of the argument; NUMBER: which, 0: it has no name */
    uint64_t offset; /* bytes; NUMBER: its bits */
} cb_cu_param;

typedef struct cb_cu_grid {
    uint32_t x, y, z;
} cb_cu_grid;

typedef struct cb_cu_call { /* of cuBLASLt, in place of a kernel; the rest are parameters */
    cb_cu_product product;
    int x, y, out, room; /* room -1: none */
} cb_cu_call;

typedef struct cb_cu_launch {
    uint32_t kernel; /* its name is cb_k<kernel> */
    uint32_t call;   /* CB_NONE: it is a kernel */
    uint32_t group;
    cb_cu_grid grid;
    uint32_t threads;
    uint32_t param_begin, n_param;
} cb_cu_launch;

typedef struct cb_cu_kernel { /* its text in `source`, and what of it is behind the name */
    size_t begin, size, at, length;
} cb_cu_kernel;

typedef struct cb_cu_code {
    const cb_program *program;
    cb_arena *arena; /* results */
    cb_str includes; /* what stands in front of any kernels */
    cb_str source;   /* all kernels */
    CB_VEC(cb_cu_kernel) kernels;
    CB_VEC(cb_cu_launch) launches;
    CB_VEC(cb_cu_call) calls;
    CB_VEC(cb_cu_param) params;
    uint64_t extra_bytes;
    bool reads_step;    /* some kernel has CB_CU_STEP */
    uint64_t *local_at; /* [n_local] where locals lie in EXTRA, of groups that run op by op */
    uint32_t group;     /* that is being written */
    uint32_t
        first_instr; /* number of the program's first instruction, where it is part of another */
    int capability;  /* of the device */
    const cb_cu_blaslt *blaslt;
    void *products;   /* handle of cuBLASLt; NULL: every product is a kernel */
    cb_status status; /* of a request for a product, or of the text; not CB_OK: `error` */
    cb_error error;
    bool failed; /* a kernel has too many parameters */
    /* the kernel that is being written */
    cb_str body;
    cb_cu_param param[CB_CU_PARAMS];
    const char *type[CB_CU_PARAMS];
    bool writes[CB_CU_PARAMS];
    uint8_t looked_at[CB_CU_PARAMS]; /* the kernel looks whether it lies at a multiple of this */
    int n_param;
} cb_cu_code;

/* Texts lie in an arena of their own, as nobody needs them once they are compiled. */
void cb_cu_init(cb_cu_code *c, const cb_program *program, cb_arena *arena, cb_arena *texts);
/* CB_NOMEM, or CB_UNSUPPORTED: more parameters than a kernel may have. */
CB_MUST_CHECK cb_status cb_cu_finish(const cb_cu_code *c, cb_error *err);

/* A file of text.h that not every program needs; included once. */
void cb_cu_include(cb_cu_code *c, const char *file);
void cb_cu_begin(cb_cu_code *c);
void cb_cu_add(cb_cu_code *c, const char *format, ...) CB_PRINTF(2, 3);

/* A template shows a kernel as it will be. It has a hole, `$name` or `$(name)` in lower case, for
 * each number or text that differs, and for what other functions write. A text may have holes, too;
 * a count becomes a parameter (cb_cu_count) where its hole is. */
typedef struct cb_cu_hole {
    const char *name, *text;
    long long number;
    bool is_count, is_param;
    void (*write)(void *with);
    void *with;
} cb_cu_hole;
#define CB_CU_HOLE(hole, n) {.name = #hole, .number = (n)}
#define CB_CU_HOLE_PARAM(hole, n) {.name = #hole, .number = (n), .is_param = true}
#define CB_CU_HOLE_TEXT(hole, words) {.name = #hole, .text = (words)}
#define CB_CU_HOLE_COUNT(hole, n) {.name = #hole, .number = (n), .is_count = true}
#define CB_CU_HOLE_PART(hole, function, x) {.name = #hole, .write = (function), .with = (x)}
#define CB_CU_HOLES(...) ((const cb_cu_hole[]){__VA_ARGS__, {.name = NULL}})
void cb_cu_template(cb_cu_code *c, const char *text, const cb_cu_hole *hole);

/* The number of the parameter; the same place is the same parameter. */
int cb_cu_param_of(cb_cu_code *c, cb_cu_param param, const char *type, bool writes);
int cb_cu_operand(cb_cu_code *c, uint32_t operand, bool writes);
/* Numbers: one that counts (uint64_t), one of the named ones, which are a parameter each. */
int cb_cu_count(cb_cu_code *c, int64_t n);
int cb_cu_constant(cb_cu_code *c, uint32_t name, float value);
void cb_cu_end(cb_cu_code *c, cb_cu_grid grid, uint32_t threads);
/* Ends what was begun as a call in place of a kernel; false: there was no memory to keep it. */
bool cb_cu_end_call(cb_cu_code *c, const cb_cu_call *call);

/* Writes the kernels, and in front of them the launches with the place of each parameter. */
void cb_cu_print(const cb_cu_code *c, cb_str *out);

/* Memory beside the arena, 256-byte aligned: its offset. */
uint64_t cb_cu_extra(cb_cu_code *c, uint64_t bytes);

const char *cb_cu_type(cb_dtype dtype); /* of an element in memory */
/* Whether element 0 of a parameter is known to be aligned to so many bytes: if not, it is looked at
 * when the kernel runs. */
bool cb_cu_is_even(const cb_cu_code *c, int param, uint64_t bytes);
/* The name of what is true where this parameter does, and all others that the kernel asks for: one
 * question, so that there are two ways through a kernel and not one for each of its arrays. */
const char *cb_cu_looked_at(cb_cu_code *c, int param, uint64_t bytes);
int64_t cb_cu_div_up(int64_t a, int64_t b);
/* `I name = ` the offset of element number `at` of a tensor of these axes, in row-major order.
 * Divides by numbers that are known: multiplications, once they are compiled. */
void cb_cu_offset(cb_cu_code *c, int rank, const int64_t *dim, const int64_t *stride,
                  const char *name, const char *at);

#endif
