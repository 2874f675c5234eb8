/* code.h: builds the CUDA C of a program and the list of its launches.
 *
 *     cb_cu_begin(&code);                        begins a kernel
 *     int x = cb_cu_operand(&code, id, false);   the address of an operand is parameter p<x>
 *     cb_cu_add(&code, "p%d[i] = 0;\n", x);      adds text
 *     cb_cu_end(&code, grid, 256);               ends it and adds a launch, in this order
 *
 * Kernels with the same text are merged. So that equal layers of a model share kernels, even with
 * another batch size, numbers that do not change the structure of a kernel are parameters, like
 * addresses: the number of rows, constants, the stream of a dropout. The text contains only the
 * axes within a row and the properties that determine the code: the widths of accesses, and whether
 * offsets have 32 bits. A parameter has eight bytes, whose value comes from a block of memory, the
 * run, or the program. After an out-of-memory error, additions are ignored; cb_cu_finish reports
 * it. */
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
    CB_CU_EXTRA,   /* extra memory of the executable */
    CB_CU_FAILURE, /* the executable's failure word */
    CB_CU_SEED,
    CB_CU_STEP,  /* step of the random generator, read from memory, where replays advance it */
    CB_CU_COUNT, /* the address of that memory */
    CB_CU_NUMBER /* a number of the program */
} cb_cu_place;

typedef struct cb_cu_param {
    cb_cu_place place;
    uint32_t index;  /* INPUT, OUTPUT: index of the argument; NUMBER: its name, or 0 */
    uint64_t offset; /* bytes; NUMBER: the bits of its value */
} cb_cu_param;

typedef struct cb_cu_grid {
    uint32_t x, y, z;
} cb_cu_grid;

typedef struct cb_cu_call { /* a call of cuBLASLt in place of a kernel */
    cb_cu_product product;
    int x, y, out, room; /* indices of parameters; room -1: none */
} cb_cu_call;

typedef struct cb_cu_launch {
    uint32_t kernel; /* named cb_k<kernel> */
    uint32_t call;   /* index of the call; CB_NONE: this launches a kernel */
    uint32_t group;
    cb_cu_grid grid;
    uint32_t threads, shared; /* shared: bytes of shared memory that are set at the launch */
    uint32_t param_begin, n_param;
} cb_cu_launch;

typedef struct cb_cu_kernel { /* its text in `source`, and the part of it after the name */
    size_t begin, size, at, length;
    uint32_t shared; /* bytes of shared memory that a launch requests */
} cb_cu_kernel;

typedef struct cb_cu_code {
    const cb_program *program;
    cb_arena *arena; /* results */
    cb_str includes; /* text before the kernels */
    cb_str source;   /* all kernels */
    CB_VEC(cb_cu_kernel) kernels;
    CB_VEC(cb_cu_launch) launches;
    CB_VEC(cb_cu_call) calls;
    CB_VEC(cb_cu_param) params;
    uint64_t extra_bytes;
    bool reads_step;      /* some kernel has CB_CU_STEP */
    uint64_t *local_at;   /* [n_local] offsets in EXTRA of the locals of groups run op by op */
    uint32_t group;       /* the group that is being written */
    uint32_t first_instr; /* index of program->instr[0] in the whole program */
    int capability;       /* compute capability of the device */
    const cb_cu_blaslt *blaslt;
    void *products;   /* handle of cuBLASLt; NULL: every product is a kernel */
    cb_status status; /* if not CB_OK, writing text or preparing a product failed; see `error` */
    cb_error error;
    bool failed; /* a kernel has too many parameters */
    /* the kernel that is being written */
    cb_str body;
    uint32_t shared; /* bytes of `extern __shared__` memory; the text must determine them */
    cb_cu_param param[CB_CU_PARAMS];
    const char *type[CB_CU_PARAMS];
    bool writes[CB_CU_PARAMS];
    uint8_t looked_at[CB_CU_PARAMS]; /* alignment in bytes that the kernel checks; 0: none */
    int n_param;
} cb_cu_code;

/* `texts` holds the text, which is not needed after compiling. */
void cb_cu_init(cb_cu_code *c, const cb_program *program, cb_arena *arena, cb_arena *texts);
/* Reports what has failed: CB_NOMEM; `status`; CB_UNSUPPORTED: a kernel has too many parameters. */
CB_MUST_CHECK cb_status cb_cu_finish(const cb_cu_code *c, cb_error *err);

/* Includes a file of text.h, unless it is already included. */
void cb_cu_include(cb_cu_code *c, const char *file);
void cb_cu_begin(cb_cu_code *c);
void cb_cu_add(cb_cu_code *c, const char *format, ...) CB_PRINTF(2, 3);

/* A template is the text of a kernel with holes, `$name` or `$(name)` in lower case. A hole is
 * filled with a number, a parameter, a text, which may have holes too, or the output of a function.
 * A count becomes a new parameter (cb_cu_count) at its hole. */
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

/* These return the index of a parameter. Equal places of the same type share a parameter. */
int cb_cu_param_of(cb_cu_code *c, cb_cu_param param, const char *type, bool writes);
int cb_cu_operand(cb_cu_code *c, uint32_t operand, bool writes);
/* These add a uint64_t, always as a new parameter, and a float constant, as one parameter for each
 * name. */
int cb_cu_count(cb_cu_code *c, int64_t n);
int cb_cu_constant(cb_cu_code *c, uint32_t name, float value);
void cb_cu_end(cb_cu_code *c, cb_cu_grid grid, uint32_t threads);
/* Ends the current kernel as a call of cuBLASLt instead; false: out of memory. */
bool cb_cu_end_call(cb_cu_code *c, const cb_cu_call *call);

/* Prints the launches, with the place of each parameter, and then the kernels. */
void cb_cu_print(const cb_cu_code *c, cb_str *out);

/* Reserves extra memory, aligned to 256 bytes; returns its offset. */
uint64_t cb_cu_extra(cb_cu_code *c, uint64_t bytes);

const char *cb_cu_type(cb_dtype dtype); /* returns the C type of an element in memory */
/* True if element 0 of a parameter is known to be aligned to `bytes` bytes. If not, the kernel must
 * check it. */
bool cb_cu_is_even(const cb_cu_code *c, int param, uint64_t bytes);
/* Makes the kernel check this alignment. Returns the name of a bool that is true if all alignments
 * that the kernel checks hold. There is one bool for all arrays, so a kernel has two code paths
 * instead of one for each combination. */
const char *cb_cu_looked_at(cb_cu_code *c, int param, uint64_t bytes);
int64_t cb_cu_div_up(int64_t a, int64_t b);
/* Writes `I name = offset;`, the offset of element `at`, in row-major order, of a tensor with these
 * axes. Divisors are constants, so the compiler turns divisions into multiplications. */
void cb_cu_offset(cb_cu_code *c, int rank, const int64_t *dim, const int64_t *stride,
                  const char *name, const char *at);

#endif
