/* Names and files of compiled kernels:
 *
 *     FOLDER/ab/cdef....bin     "cutback kernel 1\n", SHA-256 of the code, the code
 *     FOLDER/sources/abcdef....cu, where sources are kept
 *     FOLDER/failed/abcdef....cu, .log
 *
 * A process that dies while it writes leaves a file with another name, which nobody reads. */
#include "cu_jit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sha256.h"

static const char magic[] = "cutback kernel 1\n";
enum { MAGIC = sizeof magic - 1, HEAD = MAGIC + 32, PATH = 4096, LARGEST = 256 << 20 };

/* ---- names ----------------------------------------------------------------------------------- */

static void add_text(cb_sha256 *s, const char *text) { cb_sha256_add(s, text, strlen(text) + 1); }

void cb_cu_name_of(const cb_cu_nvrtc *nvrtc, const cb_cu_source *source, char name[65]) {
    cb_sha256 s;
    uint8_t digest[32];
    const int numbers[3] = {nvrtc->version, source->capability, source->as_ptx};
    cb_sha256_init(&s);
    add_text(&s, magic);
    cb_sha256_add(&s, numbers, sizeof numbers);
    for (int i = 0; i < source->n_header; i++) {
        add_text(&s, source->headers[i].name);
        add_text(&s, source->headers[i].text);
    }
    add_text(&s, source->text);
    cb_sha256_end(&s, digest);
    for (int i = 0; i < 32; i++) snprintf(name + 2 * i, 3, "%02x", digest[i]);
}

static void hash(const void *code, size_t bytes, uint8_t digest[32]) {
    cb_sha256 s;
    cb_sha256_init(&s);
    cb_sha256_add(&s, code, bytes);
    cb_sha256_end(&s, digest);
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* Makes the folder and those above it, for the user alone. */
static void make_folders(const char *folder) {
    char path[PATH];
    const size_t n = strlen(folder);
    if (n >= sizeof path) return;
    for (size_t i = 1; i <= n; i++) {
        if (folder[i] != '/' && folder[i] != 0) continue;
        memcpy(path, folder, i);
        path[i] = 0;
        (void)mkdir(path, 0700); /* what cannot be made is found missing below */
    }
}

cb_status cb_cu_check_folder(const char *folder, cb_error *err) {
    struct stat is;
    make_folders(folder);
    if (stat(folder, &is) != 0)
        return cb_fail(err, CB_UNSUPPORTED, "%s: %s", folder, strerror(errno));
    if (!S_ISDIR(is.st_mode)) return cb_fail(err, CB_UNSUPPORTED, "%s is no folder", folder);
    if (is.st_uid != geteuid())
        return cb_fail(err, CB_UNSUPPORTED, "%s belongs to another user: code from there would run",
                       folder);
    if (is.st_mode & (S_IWGRP | S_IWOTH))
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s may be written by others, and code from there would run: chmod 700",
                       folder);
    return CB_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* `place` NULL: code. */
static bool path_of(char path[PATH], const char *folder, const char *place, const char *name,
                    const char *suffix) {
    const int n = place ? snprintf(path, PATH, "%s/%s/%s%s", folder, place, name, suffix)
                        : snprintf(path, PATH, "%s/%.2s/%s%s", folder, name, name + 2, suffix);
    return n > 0 && n < PATH;
}

static bool read_all(int file, void *to, size_t bytes) {
    char *at = to;
    while (bytes > 0) {
        const ssize_t n = read(file, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool write_all(int file, const void *from, size_t bytes) {
    const char *at = from;
    while (bytes > 0) {
        const ssize_t n = write(file, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        bytes -= (size_t)n;
    }
    return true;
}

static bool read_file(int file, cb_alloc *alloc, cb_cu_image *out) {
    struct stat is;
    uint8_t head[HEAD], digest[32];
    if (fstat(file, &is) != 0 || !S_ISREG(is.st_mode) || is.st_uid != geteuid()) return false;
    if (is.st_size < HEAD || is.st_size > LARGEST || !read_all(file, head, HEAD)) return false;
    const size_t bytes = (size_t)is.st_size - HEAD;
    char *code = cb_malloc(alloc, bytes + 1);
    if (!code) return false;
    code[bytes] = 0; /* PTX is text */
    const bool whole = read_all(file, code, bytes);
    if (whole) hash(code, bytes, digest);
    if (!whole || memcmp(head, magic, MAGIC) != 0 || memcmp(head + MAGIC, digest, 32) != 0) {
        cb_free(alloc, code);
        return false;
    }
    *out = (cb_cu_image){.code = code, .bytes = bytes, .was_cached = true};
    return true;
}

bool cb_cu_read(const char *folder, const char *name, cb_alloc *alloc, cb_cu_image *out) {
    char path[PATH];
    if (!path_of(path, folder, NULL, name, ".bin")) return false;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) return false;
    const bool whole = read_file(file, alloc, out);
    (void)close(file);
    if (!whole) (void)unlink(path);
    return whole;
}

static void write_file(const char *folder, char *path, const void *data, size_t bytes,
                       bool is_code) {
    char aside[PATH], *last = strrchr(path, '/');
    uint8_t digest[32];
    if (snprintf(aside, sizeof aside, "%s/writing-XXXXXX", folder) >= (int)sizeof aside) return;
    *last = 0;
    (void)mkdir(path, 0700);
    *last = '/';
    const int file = mkstemp(aside);
    if (file < 0) return;
    hash(data, bytes, digest);
    bool whole = !is_code || (write_all(file, magic, MAGIC) && write_all(file, digest, 32));
    whole = whole && write_all(file, data, bytes);
    whole = close(file) == 0 && whole;
    if (!whole || rename(aside, path) != 0) (void)unlink(aside);
}

void cb_cu_write(const char *folder, const char *name, const cb_cu_image *image) {
    char path[PATH];
    if (path_of(path, folder, NULL, name, ".bin"))
        write_file(folder, path, image->code, image->bytes, true);
}

void cb_cu_write_text(const char *folder, const char *place, const char *name, const char *suffix,
                      const char *text) {
    char path[PATH];
    if (path_of(path, folder, place, name, suffix))
        write_file(folder, path, text, strlen(text), false);
}
