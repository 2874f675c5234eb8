/* cu_jit.h: compiles CUDA C for a device with NVRTC, or takes the code from a cache folder.
 *
 * The cache is addressed by content: a file is named after everything that its code depends on, and
 * holds the code and its hash. Files are written to a temporary name and renamed. A folder that
 * others may write, or that belongs to another user, is not used, because code from it would run. A
 * file that does not match its hash is deleted. */
#ifndef CB_CUDA_CU_JIT_H
#define CB_CUDA_CU_JIT_H

#include "base/alloc.h"
#include "cu_api.h"

typedef struct cb_cu_header { /* a file that the source may include */
    const char *name, *text;
} cb_cu_header;

typedef struct cb_cu_source {
    const char *text;
    const cb_cu_header *headers;
    int n_header;   /* at most CB_CU_HEADERS */
    int capability; /* compute capability of the device: 90 for 9.0 */
    bool as_ptx;    /* make PTX instead of a cubin */
    bool is_kept;   /* write the text to FOLDER/sources */
} cb_cu_source;
#define CB_CU_HEADERS 40

typedef struct cb_cu_image { /* code for the driver to load; `code` is a block of the allocator */
    void *code;
    size_t bytes;
    bool was_cached;
} cb_cu_image;

/* Compiles a source. If `folder` is NULL, there is no cache. An error contains the beginning of the
 * compiler's log. If there is a folder, source and log are written to FOLDER/failed, and the error
 * names them. */
CB_MUST_CHECK cb_status cb_cu_compile(const cb_cu_nvrtc *nvrtc, const cb_cu_source *source,
                                      const char *folder, cb_alloc *alloc, cb_cu_image *out,
                                      cb_error *err);

/* The functions below are in cu_cache.c. This one sets the name of a source's code: 64 hexadecimal
 * digits. */
void cb_cu_name_of(const cb_cu_nvrtc *nvrtc, const cb_cu_source *source, char name[65]);
/* Checks that the folder may be used; makes it if it does not exist. */
CB_MUST_CHECK cb_status cb_cu_check_folder(const char *folder, cb_error *err);
/* Reads code from the cache; returns false if it is not there or cannot be used. */
bool cb_cu_read(const char *folder, const char *name, cb_alloc *alloc, cb_cu_image *out);
/* Writes code to the cache; failures are ignored. */
void cb_cu_write(const char *folder, const char *name, const cb_cu_image *image);
/* Writes FOLDER/sub/name.suffix, for people to read. */
void cb_cu_write_text(const char *folder, const char *sub, const char *name, const char *suffix,
                      const char *text);

#endif
