/* A source has many kernels; compiling them one by one would take six times as long. No option
 * newer than CUDA 12.0 is required. --minimal saves a few milliseconds per source by leaving out
 * textures and dynamic parallelism. */
#include "cu_jit.h"

#include <stdio.h>
#include <string.h>

enum { HAS_MINIMAL = 12040 }; /* the first version of NVRTC with --minimal */

/* Returns the target. For a device newer than the compiler it is the newest PTX, which the driver
 * compiles. */
static int target_of(const cb_cu_nvrtc *nvrtc, const cb_cu_source *source, bool *as_ptx) {
    *as_ptx = source->as_ptx || source->capability > nvrtc->most;
    return source->capability < nvrtc->most ? source->capability : nvrtc->most;
}

static int compile(const cb_cu_nvrtc *nvrtc, void *program, int target, bool as_ptx) {
    char architecture[64];
    snprintf(architecture, sizeof architecture, "--gpu-architecture=%s_%d",
             as_ptx ? "compute" : "sm", target);
    const char *const options[] = {architecture, "--fmad=false", "--std=c++17",
                                   "--device-as-default-execution-space", "--minimal"};
    const int n = sizeof options / sizeof *options;
    return nvrtc->nvrtcCompileProgram(program, nvrtc->version >= HAS_MINIMAL ? n : n - 1, options);
}

/* Fetches a text or the code of the program; NULL if there is none, or if out of memory. */
static char *fetch(int (*size_of)(void *program, size_t *bytes),
                   int (*get)(void *program, char *to), void *program, cb_alloc *alloc,
                   size_t *bytes) {
    if (size_of(program, bytes) != 0 || *bytes == 0) return NULL;
    char *to = cb_malloc(alloc, *bytes + 1);
    if (!to) return NULL;
    to[*bytes] = 0;
    if (get(program, to) == 0) return to;
    cb_free(alloc, to);
    return NULL;
}

/* Returns the log from the first line that contains "error" on. */
static const char *first_error(const char *log) {
    const char *at = strstr(log, "error");
    while (at && at > log && at[-1] != '\n') at--;
    return at ? at : log;
}

static cb_status refuse(const cb_cu_nvrtc *nvrtc, void *program, const cb_cu_source *source,
                        const char *folder, const char *name, cb_alloc *alloc, cb_error *err) {
    size_t bytes = 0;
    char *log =
        fetch(nvrtc->nvrtcGetProgramLogSize, nvrtc->nvrtcGetProgramLog, program, alloc, &bytes);
    const char *text = log ? log : "NVRTC gives no reason";
    if (folder) {
        cb_cu_write_text(folder, "failed", name, ".cu", source->text);
        cb_cu_write_text(folder, "failed", name, ".log", text);
    }
    const cb_status status =
        folder ? cb_fail(err, CB_INTERNAL,
                         "cuda: NVRTC cannot compile a kernel; source and log are "
                         "%s/failed/%.12s*: %.300s",
                         folder, name, first_error(text))
               : cb_fail(err, CB_INTERNAL, "cuda: NVRTC cannot compile a kernel: %.400s",
                         first_error(text));
    cb_free(alloc, log);
    return status;
}

static cb_status build(const cb_cu_nvrtc *nvrtc, void *program, const cb_cu_source *source,
                       const char *folder, const char *name, cb_alloc *alloc, cb_cu_image *out,
                       cb_error *err) {
    bool as_ptx;
    const int target = target_of(nvrtc, source, &as_ptx);
    if (compile(nvrtc, program, target, as_ptx) != 0)
        return refuse(nvrtc, program, source, folder, name, alloc, err);
    cb_cu_image made = {0};
    made.code =
        as_ptx ? fetch(nvrtc->nvrtcGetPTXSize, nvrtc->nvrtcGetPTX, program, alloc, &made.bytes)
               : fetch(nvrtc->nvrtcGetCUBINSize, nvrtc->nvrtcGetCUBIN, program, alloc, &made.bytes);
    if (!made.code) return cb_no_memory(err);
    *out = made;
    return CB_OK;
}

static cb_status make(const cb_cu_nvrtc *nvrtc, const cb_cu_source *source, const char *folder,
                      const char *name, cb_alloc *alloc, cb_cu_image *out, cb_error *err) {
    const char *text[CB_CU_HEADERS], *header[CB_CU_HEADERS];
    void *program = NULL;
    if (source->n_header > CB_CU_HEADERS)
        return cb_fail(err, CB_INTERNAL, "cuda: a source has %d headers; at most %d are supported",
                       source->n_header, CB_CU_HEADERS);
    for (int i = 0; i < source->n_header; i++) {
        text[i] = source->headers[i].text;
        header[i] = source->headers[i].name;
    }
    if (nvrtc->nvrtcCreateProgram(&program, source->text, "cutback.cu", source->n_header, text,
                                  header) != 0)
        return cb_no_memory(err);
    const cb_status status = build(nvrtc, program, source, folder, name, alloc, out, err);
    (void)nvrtc->nvrtcDestroyProgram(&program);
    return status;
}

cb_status cb_cu_compile(const cb_cu_nvrtc *nvrtc, const cb_cu_source *source, const char *folder,
                        cb_alloc *alloc, cb_cu_image *out, cb_error *err) {
    char name[65];
    if (source->capability < nvrtc->least)
        return cb_fail(
            err, CB_UNSUPPORTED,
            "cuda: NVRTC of CUDA %d.%d compiles for compute capability %d.%d and newer, but this "
            "device has %d.%d: install NVRTC of CUDA 12 (pip install cutback[cuda12])",
            nvrtc->version / 1000, nvrtc->version % 1000 / 10, nvrtc->least / 10, nvrtc->least % 10,
            source->capability / 10, source->capability % 10);
    cb_cu_name_of(nvrtc, source, name);
    if (folder && cb_cu_check_folder(folder, NULL) != CB_OK) folder = NULL;
    if (folder && source->is_kept) cb_cu_write_text(folder, "sources", name, ".cu", source->text);
    if (folder && cb_cu_read(folder, name, alloc, out)) return CB_OK;
    CB_TRY(make(nvrtc, source, folder, name, alloc, out, err));
    if (folder) cb_cu_write(folder, name, out);
    return CB_OK;
}
