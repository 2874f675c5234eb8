/* Names and files of compiled kernels:
 *
 *     FOLDER/ab/cdef....bin     "cutback kernel 2\n", SHA-256 of name and code, the code
 *     FOLDER/sources/abcdef....cu            if sources are kept
 *     FOLDER/failed/abcdef....cu, .log
 *
 * The digest covers the name, so a renamed or copied file is not run as another kernel. Subfolders
 * are opened without following links, and files are opened relative to them, so a link named `ab`
 * cannot lead reads, writes or deletions out of the folder. A process that dies while writing
 * leaves a file named writing-..., which is never read. */
#include "cu_jit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sha256.h"

static const char magic[] = "cutback kernel 2\n";
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

static void hash(const char *name, const void *code, size_t bytes, uint8_t digest[32]) {
    cb_sha256 s;
    cb_sha256_init(&s);
    add_text(&s, name);
    cb_sha256_add(&s, code, bytes);
    cb_sha256_end(&s, digest);
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* Makes the folder and its parents, accessible only to the user. */
static void make_folders(const char *folder) {
    char path[PATH];
    const size_t n = strlen(folder);
    if (n >= sizeof path) return;
    for (size_t i = 1; i <= n; i++) {
        if (folder[i] != '/' && folder[i] != 0) continue;
        memcpy(path, folder, i);
        path[i] = 0;
        (void)mkdir(path, 0700); /* the caller's stat() reports failures */
    }
}

cb_status cb_cu_check_folder(const char *folder, cb_error *err) {
    struct stat is;
    make_folders(folder);
    if (stat(folder, &is) != 0)
        return cb_fail(err, CB_UNSUPPORTED, "%s: %s", folder, strerror(errno));
    if (!S_ISDIR(is.st_mode)) return cb_fail(err, CB_UNSUPPORTED, "%s is not a folder", folder);
    if (is.st_uid != geteuid())
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s belongs to another user: code in it would be executed", folder);
    if (is.st_mode & (S_IWGRP | S_IWOTH))
        return cb_fail(
            err, CB_UNSUPPORTED,
            "%s may be written by others, and code in it would be executed: run chmod 700", folder);
    return CB_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* The location of a file: an open subfolder and a name in it. */
typedef struct location {
    int folder; /* descriptor; -1: no such subfolder */
    char name[96];
} location;

/* Returns the descriptor of a subfolder that the user owns and nobody else may write, or -1. */
static int open_subfolder(const char *folder, const char *sub, bool make) {
    struct stat is;
    const int outer = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (outer < 0) return -1;
    if (make) (void)mkdirat(outer, sub, 0700);
    int inner = openat(outer, sub, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    (void)close(outer);
    if (inner < 0) return -1;
    if (fstat(inner, &is) == 0 && is.st_uid == geteuid() && !(is.st_mode & (S_IWGRP | S_IWOTH)))
        return inner;
    (void)close(inner);
    return -1;
}

/* Finds the location of a file. If `sub` is NULL, the file is compiled code, in a subfolder named
 * after the first two letters of its name. */
static bool locate(const char *folder, const char *sub, const char *name, const char *suffix,
                   bool make, location *out) {
    const char first[3] = {name[0], name[0] ? name[1] : '\0', '\0'};
    const char *rest = sub ? name : name + strlen(first);
    const int n = snprintf(out->name, sizeof out->name, "%s%s", rest, suffix);
    out->folder = -1;
    if (n <= 0 || (size_t)n >= sizeof out->name) return false;
    out->folder = open_subfolder(folder, sub ? sub : first, make);
    return out->folder >= 0;
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

static bool read_file(int file, const char *name, cb_alloc *alloc, cb_cu_image *out) {
    struct stat is;
    uint8_t head[HEAD], digest[32];
    if (fstat(file, &is) != 0 || !S_ISREG(is.st_mode) || is.st_uid != geteuid()) return false;
    if (is.st_size < HEAD || is.st_size > LARGEST || !read_all(file, head, HEAD)) return false;
    const size_t bytes = (size_t)is.st_size - HEAD;
    char *code = cb_malloc(alloc, bytes + 1);
    if (!code) return false;
    code[bytes] = 0; /* PTX is text */
    const bool whole = read_all(file, code, bytes);
    if (whole) hash(name, code, bytes, digest);
    if (!whole || memcmp(head, magic, MAGIC) != 0 || memcmp(head + MAGIC, digest, 32) != 0) {
        cb_free(alloc, code);
        return false;
    }
    *out = (cb_cu_image){.code = code, .bytes = bytes, .was_cached = true};
    return true;
}

bool cb_cu_read(const char *folder, const char *name, cb_alloc *alloc, cb_cu_image *out) {
    location at;
    if (!locate(folder, NULL, name, ".bin", false, &at)) return false;
    const int file = openat(at.folder, at.name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool whole = false;
    if (file >= 0) {
        whole = read_file(file, name, alloc, out);
        (void)close(file);
        if (!whole) (void)unlinkat(at.folder, at.name, 0);
    }
    (void)close(at.folder);
    return whole;
}

/* Writes a temporary file and renames it, so that readers see the whole file or none. `kernel` is
 * the name that goes into the digest of compiled code; NULL for a text. */
static void write_file(const char *folder, const location *at, const char *kernel, const void *data,
                       size_t bytes) {
    char aside[PATH];
    uint8_t digest[32];
    if (snprintf(aside, sizeof aside, "%s/writing-XXXXXX", folder) >= (int)sizeof aside) return;
    const int file = mkstemp(aside);
    if (file < 0) return;
    bool whole = true;
    if (kernel) {
        hash(kernel, data, bytes, digest);
        whole = write_all(file, magic, MAGIC) && write_all(file, digest, 32);
    }
    whole = whole && write_all(file, data, bytes);
    whole = close(file) == 0 && whole;
    if (!whole || renameat(AT_FDCWD, aside, at->folder, at->name) != 0) (void)unlink(aside);
}

void cb_cu_write(const char *folder, const char *name, const cb_cu_image *image) {
    location at;
    if (!locate(folder, NULL, name, ".bin", true, &at)) return;
    write_file(folder, &at, name, image->code, image->bytes);
    (void)close(at.folder);
}

void cb_cu_write_text(const char *folder, const char *sub, const char *name, const char *suffix,
                      const char *text) {
    location at;
    if (!locate(folder, sub, name, suffix, true, &at)) return;
    write_file(folder, &at, NULL, text, strlen(text));
    (void)close(at.folder);
}
