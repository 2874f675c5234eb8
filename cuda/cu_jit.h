/* cu_jit.h: CUDA C becomes code for a device, by NVRTC or out of a folder.
 *
 * The folder is a cache by content: a file is named after everything that its code depends on,
 * holds the code and a hash of it, and is put there whole (written aside, then renamed). A folder
 * that others may write, or that is not the user's, is not used, as code from there would run; a
 * file that does not fit its hash is deleted. */
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
    int capability; /* of the device: 90 for 9.0 */
    bool as_ptx;    /* PTX in place of a cubin */
    bool is_kept;   /* the text is written to FOLDER/sources */
} cb_cu_source;
#define CB_CU_HEADERS 40

typedef struct cb_cu_image { /* what a driver loads; `code` is a block of the allocator */
    void *code;
    size_t bytes;
    bool was_cached;
} cb_cu_image;

/* `folder` NULL: no cache. An error holds the compiler's first words; where there is a folder,
 * source and log lie in FOLDER/failed, and the error names them. */
CB_MUST_CHECK cb_status cb_cu_compile(const cb_cu_nvrtc *nvrtc, const cb_cu_source *source,
                                      const char *folder, cb_alloc *alloc, cb_cu_image *out,
                                      cb_error *err);

/* cu_cache.c. The name of a source's code: 64 hexadecimal digits. */
void cb_cu_name_of(const cb_cu_nvrtc *nvrtc, const cb_cu_source *source, char name[65]);
/* Whether the folder may be used; it is made where it is not there. */
CB_MUST_CHECK cb_status cb_cu_check_folder(const char *folder, cb_error *err);
/* false: it is not there, or cannot be used. */
bool cb_cu_read(const char *folder, const char *name, cb_alloc *alloc, cb_cu_image *out);
/* What cannot be written is not kept. */
void cb_cu_write(const char *folder, const char *name, const cb_cu_image *image);
/* Writes FOLDER/sub/name.suffix, for people to read. */
void cb_cu_write_text(const char *folder, const char *sub, const char *name, const char *suffix,
                      const char *text);

#endif
