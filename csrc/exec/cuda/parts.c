/* NVRTC compiles a source in one thread, and most of its time is spent per kernel, so several
 * sources compile faster if there are processors for them. Each source costs a few extra
 * milliseconds, so a small number of kernels stays in one source. The distribution depends only on
 * the texts, and so do the names in the cache. */
#include "parts.h"

#include <stdio.h>

#include "text/text.h"

enum { KERNELS_AT_LEAST = 10 }; /* average kernels per source, if there are several sources */

typedef struct job {
    const cb_cu_gpu *d;
    cb_str source[CB_CU_PARTS];
    cb_cu_image image[CB_CU_PARTS];
    cb_status status[CB_CU_PARTS];
    cb_error error[CB_CU_PARTS];
    uint32_t n;
    uint32_t *part; /* [kernels] */
} job;

/* Adds each kernel to the source that is shortest so far, because compile time is proportional to
 * length. */
static cb_status share_out(job *j, const cb_cu_code *code, cb_arena *texts, cb_error *err) {
    const size_t n = code->kernels.len, wanted = n / KERNELS_AT_LEAST;
    j->n = wanted > CB_CU_PARTS ? CB_CU_PARTS : wanted > 1 ? (uint32_t)wanted : 1;
    CB_TRY_NEW(j->part, texts, n, err);
    for (uint32_t i = 0; i < j->n; i++) {
        cb_str_init(&j->source[i], texts);
        cb_str_add(&j->source[i], code->includes.at, code->includes.len);
    }
    for (size_t k = 0; k < n; k++) {
        const cb_cu_kernel *kernel = &code->kernels.at[k];
        uint32_t shortest = 0;
        for (uint32_t i = 1; i < j->n; i++)
            if (j->source[i].len < j->source[shortest].len) shortest = i;
        j->part[k] = shortest;
        cb_str_add(&j->source[shortest], code->source.at + kernel->begin, kernel->size);
    }
    for (uint32_t i = 0; i < j->n; i++)
        if (j->source[i].failed) return cb_no_memory(err);
    return CB_OK;
}

static void compile(void *user, int64_t i, int thread) {
    job *j = user;
    const cb_runtime *runtime = j->d->runtime;
    const cb_cuda_options *o = &runtime->cuda;
    const cb_cu_source source = {.text = j->source[i].at,
                                 .headers = cb_cu_headers,
                                 .n_header = cb_cu_n_header,
                                 .capability = j->d->capability,
                                 .as_ptx = o->as_ptx,
                                 .is_kept = o->keep_sources};
    (void)thread;
    j->status[i] =
        cb_cu_compile(&j->d->nvrtc, &source, o->cache, runtime->alloc, &j->image[i], &j->error[i]);
}

static cb_status load(cb_cu_parts *p, const job *j, size_t n, void **function, cb_error *err) {
    const cb_cu_driver *driver = &j->d->driver;
    for (uint32_t i = 0; i < j->n; i++)
        CB_CU(driver,
              cuLibraryLoadData(&p->library[i], j->image[i].code, NULL, NULL, 0, NULL, NULL, 0));
    for (size_t k = 0; k < n; k++) {
        char name[32];
        void *kernel;
        (void)snprintf(name, sizeof name, "cb_k%zu", k);
        CB_CU(driver, cuLibraryGetKernel(&kernel, p->library[j->part[k]], name));
        CB_CU(driver, cuKernelGetFunction(&function[k], kernel));
    }
    return CB_OK;
}

cb_status cb_cu_parts_make(cb_cu_parts *p, const cb_cu_code *code, const cb_cu_gpu *d,
                           cb_arena *texts, void **function, cb_error *err) {
    job *j = CB_NEW(texts, job, 1);
    if (!j) return cb_no_memory(err);
    *j = (job){.d = d};
    CB_TRY(share_out(j, code, texts, err));
    cb_parallel(d->runtime->pool, j->n, compile, j);
    cb_status status = CB_OK;
    for (uint32_t i = 0; i < j->n && status == CB_OK; i++) {
        status = j->status[i];
        if (status != CB_OK && err) *err = j->error[i];
    }
    if (status == CB_OK) status = load(p, j, code->kernels.len, function, err);
    for (uint32_t i = 0; i < j->n; i++) cb_free(d->runtime->alloc, j->image[i].code);
    return status;
}

void cb_cu_parts_release(cb_cu_parts *p, const cb_cu_gpu *d) {
    for (int i = 0; i < CB_CU_PARTS; i++)
        if (p->library[i]) (void)d->driver.cuLibraryUnload(p->library[i]);
}
