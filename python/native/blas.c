/* blas.c: finds the matrix product that NumPy has loaded.
 *
 * NumPy's wheels carry an OpenBLAS whose symbols have a prefix and, for 64-bit integers, a suffix
 * (scipy_cblas_sgemm64_); distributions use the plain names; MKL adds _64. Searches the loaded
 * objects for a BLAS by file name, preferring NumPy's copy to SciPy's, and tries each spelling. */
#include "state.h"

#include <dlfcn.h>
#include <link.h>

typedef struct search { /* a search of the loaded objects */
    char *path;         /* path of the best file so far; "": none */
    size_t size;
    int rank;
} search;

/* Ranks how likely a file is the BLAS that NumPy uses; 0: it is not a BLAS. */
static int rank_of(const char *path) {
    const char *file = strrchr(path, '/');
    file = file ? file + 1 : path;
    bool is_blas = strstr(file, "openblas") || strstr(file, "mkl_rt") || strstr(file, "libcblas") ||
                   strstr(file, "libblas") || strstr(file, "libblis");
    if (!is_blas) return 0;
    if (strstr(path, "numpy")) return 3;
    return strstr(path, "scipy.libs") ? 1 : 2;
}

static int look_at(struct dl_phdr_info *object, size_t Py_UNUSED(size), void *user) {
    search *best = user;
    const char *path = object->dlpi_name;
    if (!path) return 0;
    int rank = rank_of(path);
    size_t length = strlen(path) + 1;
    if (rank <= best->rank || length > best->size) return 0;
    best->rank = rank;
    memcpy(best->path, path, length);
    return 0;
}

typedef struct spelling {
    const char *prefix, *suffix;
    int int_bits;
} spelling;

static const spelling spellings[] = {
    {"scipy_", "64_", 64}, {"", "64_", 64}, {"", "_64", 64}, {"scipy_", "", 32}, {"", "", 32},
};

static void *symbol(void *library, const spelling *s, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "%s%s%s", s->prefix, name, s->suffix);
    return dlsym(library, full);
}

/* Looks up the spelled name, then the plain name, because OpenBLAS does not rename all symbols. */
static void *symbol_or_plain(void *library, const spelling *s, const char *name) {
    void *found = symbol(library, s, name);
    return found ? found : dlsym(library, name);
}

static void describe(void *library, const spelling *s, const char *path, char *name, size_t size) {
    void *entry = symbol_or_plain(library, s, "openblas_get_config");
    char *(*get_config)(void);
    memcpy(&get_config, &entry, sizeof entry);
    const char *config = entry ? get_config() : NULL;
    const char *file = strrchr(path, '/');
    snprintf(name, size, "%.60s", config ? config : file ? file + 1 : path);
    char *second_space =
        config ? strchr(name, ' ') : NULL; /* keeps two words of "OpenBLAS 0.3.31 USE64BITINT
                                              ..." */
    if (second_space) second_space = strchr(second_space + 1, ' ');
    if (second_space) *second_space = 0;
}

/* Returns the vector width of the kernels that OpenBLAS has chosen for this processor; 0 if
 * unknown. OpenBLAS falls back to older kernels on processors that it does not know. */
static int vector_bits_of(void *library, const spelling *s) {
    static const struct {
        const char *core;
        int bits;
    } cores[] = {{"Prescott", 128}, {"Core2", 128},     {"Nehalem", 128}, {"Sandybridge", 256},
                 {"Haswell", 256},  {"Excavator", 256}, {"Zen", 256}};
    void *entry = symbol_or_plain(library, s, "openblas_get_corename");
    char *(*get_core)(void);
    memcpy(&get_core, &entry, sizeof entry);
    const char *core = entry ? get_core() : "";
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++) {
        if (strcmp(core, cores[i].core) == 0) return cores[i].bits;
    }
    return 0;
}

/* Returns the bits of the BLAS's integers. An OpenBLAS built for 64-bit integers without a suffix
 * says so in its configuration. */
static int int_bits_of(void *library, const spelling *s) {
    void *entry = symbol_or_plain(library, s, "openblas_get_config");
    char *(*get_config)(void);
    memcpy(&get_config, &entry, sizeof entry);
    return entry && strstr(get_config(), "USE64BITINT") ? 64 : s->int_bits;
}

void cb_py_find_blas(cb_blas *out, char *name, size_t name_size, char *path, size_t path_size) {
    memset(out, 0, sizeof *out);
    name[0] = path[0] = 0;
    search best = {path, path_size, 0};
    dl_iterate_phdr(look_at, &best);
    if (!best.rank) return;
    void *library =
        dlopen(path, RTLD_NOW | RTLD_NOLOAD); /* never closed: the pointers stay valid */
    for (size_t i = 0; library && i < sizeof spellings / sizeof *spellings; i++) {
        const spelling *s = &spellings[i];
        void *sgemm = symbol(library, s, "cblas_sgemm"), *dgemm = symbol(library, s, "cblas_dgemm");
        if (!sgemm || !dgemm) continue;
        describe(library, s, path, name, name_size);
        out->name = name;
        out->int_bits = int_bits_of(library, s);
        out->vector_bits = vector_bits_of(library, s);
        out->sgemm = sgemm;
        out->dgemm = dgemm;
        out->set_threads_local = symbol_or_plain(library, s, "openblas_set_num_threads_local");
        if (!out->set_threads_local)
            out->set_threads_local = dlsym(library, "MKL_Set_Num_Threads_Local");
        out->set_threads = symbol_or_plain(library, s, "openblas_set_num_threads");
        out->get_threads = symbol_or_plain(library, s, "openblas_get_num_threads");
        return;
    }
    path[0] = 0;
}
