/* Wraps NVRTC: compiles with line numbers, removes them from the PTX, and appends the lines of our
 * own files ("prelude.cuh 12") to the file named by CUTBACK_MUTANT_LINES. This shows which lines of
 * text a program's kernels come from, without changing the PTX. CUTBACK_MUTANT_NVRTC is NVRTC
 * itself. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static void *entry(const char *name) {
    static void *library;
    if (!library) library = dlopen(getenv("CUTBACK_MUTANT_NVRTC"), RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) abort();
    return found;
}
#define CALL(name, types, ...) ((int(*) types)entry(#name))(__VA_ARGS__)

EXPORT int nvrtcVersion(int *a, int *b) { return CALL(nvrtcVersion, (int *, int *), a, b); }
EXPORT int nvrtcGetNumSupportedArchs(int *n) { return CALL(nvrtcGetNumSupportedArchs, (int *), n); }
EXPORT int nvrtcGetSupportedArchs(int *all) { return CALL(nvrtcGetSupportedArchs, (int *), all); }
EXPORT int nvrtcCreateProgram(void **program, const char *source, const char *name, int n,
                              const char *const *text, const char *const *header) {
    return CALL(
        nvrtcCreateProgram,
        (void **, const char *, const char *, int, const char *const *, const char *const *),
        program, source, name, n, text, header);
}
EXPORT int nvrtcDestroyProgram(void **program) {
    return CALL(nvrtcDestroyProgram, (void **), program);
}
EXPORT int nvrtcCompileProgram(void *program, int n, const char *const *options) {
    const char *more[32];
    if (n > 31) abort();
    memcpy(more, options, (size_t)n * sizeof *more);
    more[n] = "-lineinfo";
    return CALL(nvrtcCompileProgram, (void *, int, const char *const *), program, n + 1, more);
}
EXPORT int nvrtcGetProgramLogSize(void *program, size_t *bytes) {
    return CALL(nvrtcGetProgramLogSize, (void *, size_t *), program, bytes);
}
EXPORT int nvrtcGetProgramLog(void *program, char *log) {
    return CALL(nvrtcGetProgramLog, (void *, char *), program, log);
}
EXPORT int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    return CALL(nvrtcGetCUBINSize, (void *, size_t *), program, bytes);
}
EXPORT int nvrtcGetCUBIN(void *program, char *code) {
    return CALL(nvrtcGetCUBIN, (void *, char *), program, code);
}

enum { FILES = 64, LINES = 4096 };

static void write_lines(const char *ptx, const char *tail) {
    static char seen[FILES][LINES];
    char name[FILES][64] = {{0}};
    const char *to = getenv("CUTBACK_MUTANT_LINES");
    FILE *out = to ? fopen(to, "a") : NULL;
    if (!out) return;
    memset(seen, 0, sizeof seen);
    for (const char *at = tail; at && (at = strstr(at, ".file")); at++) {
        int k;
        char path[64];
        if (sscanf(at, ".file %d \"%63[^\"]\"", &k, path) == 2 && k < FILES)
            strcpy(name[k], strrchr(path, '/') ? strrchr(path, '/') + 1 : path);
    }
    for (const char *at = ptx; (at = strstr(at, ".loc")); at++) {
        int k, line;
        if (sscanf(at, ".loc %d %d", &k, &line) != 2 || k >= FILES || line >= LINES) continue;
        if (!seen[k][line] && strstr(name[k], ".cuh")) fprintf(out, "%s %d\n", name[k], line);
        seen[k][line] = 1;
    }
    fclose(out);
}

static char *code_of(void *program, size_t *bytes) {
    if (CALL(nvrtcGetPTXSize, (void *, size_t *), program, bytes) != 0) return NULL;
    char *text = calloc(1, *bytes + 1), *to = text;
    if (!text || CALL(nvrtcGetPTX, (void *, char *), program, text) != 0) return free(text), NULL;
    char *tail = strstr(text, "\n\t.file");
    write_lines(text, tail);
    if (tail) strcpy(tail, "\n\n"); /* the end of a PTX without line numbers */
    for (char *line = text, *next; *line; line = next) {
        next = strchr(line, '\n');
        next = next ? next + 1 : line + strlen(line);
        if (strncmp(line, "\t.loc\t", 6) == 0) continue; /* .local is a different directive */
        memmove(to, line, (size_t)(next - line));
        to += next - line;
    }
    *to = 0;
    *bytes = (size_t)(to - text) + 1;
    return text;
}
EXPORT int nvrtcGetPTXSize(void *program, size_t *bytes) {
    char *text = code_of(program, bytes);
    free(text);
    return text ? 0 : 1;
}
EXPORT int nvrtcGetPTX(void *program, char *code) {
    size_t bytes;
    char *text = code_of(program, &bytes);
    if (!text) return 1;
    memcpy(code, text, bytes);
    free(text);
    return 0;
}
