/* compile.c: runs the translator and the build's C compiler as separate processes and caches their
 * output under a hash of the PTX and of everything that affects the generated code. The folder must
 * belong to the user alone, because its files are executed. */
#include "compile.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "report.h"

extern char **environ;

enum { PATH = 4096, LONGER = PATH + 64 };

/* Two 64-bit hashes (FNV-1a with two starts). */
typedef struct hash {
    uint64_t a, b;
} hash;

static void hash_bytes(hash *h, const void *data, size_t n) {
    const unsigned char *at = data;
    for (size_t i = 0; i < n; i++) {
        h->a = (h->a ^ at[i]) * 0x100000001b3ull;
        h->b = (h->b ^ at[i]) * 0x100000001b3ull;
    }
}

static bool hash_file(hash *h, const char *path) {
    char buffer[8192];
    FILE *file = fopen(path, "rb");
    if (!file) return sim_report("%s cannot be read", path), false;
    for (size_t n; (n = fread(buffer, 1, sizeof buffer, file)) > 0;) hash_bytes(h, buffer, n);
    fclose(file);
    return true;
}

/* With -O1 a kernel takes 2.5 times as long to compile, and few of them run for long. */
#define OPTIMIZATION "-O0"

static const char *processor_flag(void) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("fma")) return "-mfma"; /* otherwise fma is a call, just as exact */
#endif
    return OPTIMIZATION;
}

static bool hash_of(const char *ptx, hash *h) {
    static const char *const parts[] = {SIM_PARTS};
    *h = (hash){0xcbf29ce484222325ull, 0x9e3779b97f4a7c15ull};
    hash_bytes(h, ptx, strlen(ptx));
    hash_bytes(h, SIM_COMPILER, sizeof SIM_COMPILER);
    hash_bytes(h, OPTIMIZATION, sizeof OPTIMIZATION);
    hash_bytes(h, processor_flag(), strlen(processor_flag()));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!hash_file(h, parts[i])) return false;
    return true;
}

/* Runs a program without libraries preloaded by a sanitizer; its error output goes to a file. */
static bool run_program(char *const arguments[], const char *said) {
    char **variables = NULL;
    size_t n = 0;
    while (environ[n]) n++;
    variables = calloc(n + 2, sizeof *variables);
    if (!variables) return false;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "LD_PRELOAD=", 11) && strncmp(environ[i], "PYTHONPATH=", 11))
            variables[kept++] = environ[i];
    variables[kept] = "PYTHONPATH=" SIM_SOURCE;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, said, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child;
    int status = -1;
    if (posix_spawnp(&child, arguments[0], &actions, NULL, arguments, variables) == 0)
        waitpid(child, &status, 0);
    posix_spawn_file_actions_destroy(&actions);
    free(variables);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static void report_file(const char *what, const char *path) {
    char text[900] = "";
    FILE *file = fopen(path, "rb");
    if (file) {
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
    }
    text[strcspn(text, "\n")] = '\0';
    sim_report("%s: %s", what, text);
}

static const char *folder(void) {
    const char *asked = getenv("CUTBACK_STAND_IN_CACHE");
    const char *path = asked && *asked ? asked : SIM_CACHE;
    struct stat found;
    (void)mkdir(path, 0700);
    if (stat(path, &found) || found.st_uid != getuid() || found.st_mode & 022) {
        sim_report("the cache %s must be this user's, and writable by nobody else", path);
        return NULL;
    }
    return path;
}

static bool write_text(const char *path, const char *text) {
    FILE *file = fopen(path, "wb");
    if (!file) return sim_report("%s cannot be written", path), false;
    const bool done = fputs(text, file) >= 0;
    return fclose(file) == 0 && done;
}

/* Writes `object`, using temporary files whose names start the same. */
static sim_result make(const char *ptx, const char *object) {
    char source[LONGER], c_text[LONGER], made[LONGER], said[LONGER];
    static unsigned n_made;
    const int process = (int)getpid();
    n_made++;
    snprintf(source, LONGER, "%s.%d.%u.ptx", object, process, n_made);
    snprintf(c_text, LONGER, "%s.%d.%u.c", object, process, n_made);
    snprintf(made, LONGER, "%s.%d.%u.so", object, process, n_made);
    snprintf(said, LONGER, "%s.%d.%u.txt", object, process, n_made);
    char *translate[] = {SIM_PYTHON, "-B", "-m", "translate", source, c_text, NULL};
    char flag[16];
    snprintf(flag, sizeof flag, "%s", processor_flag());
    char *compile[] = {SIM_COMPILER,
                       OPTIMIZATION,
                       flag,
                       "-w",
                       "-fPIC",
                       "-shared",
                       "-ffp-contract=off",
                       "-frounding-math",
                       "-fwrapv",
                       "-fno-strict-aliasing",
                       "-fno-math-errno",
                       "-I" SIM_SOURCE "/runtime",
                       "-o",
                       made,
                       c_text,
                       "-lm",
                       NULL};
    sim_result result = 0;
    if (!write_text(source, ptx)) {
        result = SIM_ERROR_UNKNOWN;
    } else if (!run_program(translate, said)) {
        report_file("PTX", said);
        result = SIM_ERROR_INVALID_PTX;
    } else if (!run_program(compile, said)) {
        report_file("the translated PTX", said);
        result = SIM_ERROR_INVALID_PTX;
    } else if (rename(made, object)) {
        result = SIM_ERROR_UNKNOWN;
    }
    (void)unlink(source);
    (void)unlink(c_text);
    (void)unlink(said);
    return result;
}

/* If a file is named, appends a line for each loaded kernel: the kernel without its name. The tests
 * count distinct ones. */
static void note_kernels(const char *ptx) {
    const char *path = getenv("CUTBACK_STAND_IN_LOADED");
    FILE *file = path && *path ? fopen(path, "ab") : NULL;
    if (!file) return;
    for (const char *at = ptx; (at = strstr(at, ".entry ")); at++) {
        const char *begin = strchr(at, '('), *end = strstr(at, "\n}");
        hash h = {0xcbf29ce484222325ull, 0x9e3779b97f4a7c15ull};
        if (!begin || !end || end < begin) break;
        while (begin < end) { /* variable names contain the kernel's: _ZZ5cb_k7E... */
            const char *name = strstr(begin, "_ZZ");
            if (!name || name > end) name = end;
            hash_bytes(&h, begin, (size_t)(name - begin));
            begin = name + strcspn(name, "E");
            if (name == end) break;
        }
        fprintf(file, "%016llx%016llx\n", (unsigned long long)h.a, (unsigned long long)h.b);
    }
    fclose(file);
}

sim_result sim_compile(const char *ptx, void **library) {
    char object[PATH];
    hash h;
    note_kernels(ptx);
    const char *path = folder();
    if (!path || !hash_of(ptx, &h)) return SIM_ERROR_UNKNOWN;
    snprintf(object, sizeof object, "%.4000s/%016llx%016llx", path, (unsigned long long)h.a,
             (unsigned long long)h.b);
    if (access(object, R_OK) != 0) {
        const sim_result result = make(ptx, object);
        if (result) return result;
    }
    *library = dlopen(object, RTLD_NOW | RTLD_LOCAL);
    if (*library) return 0;
    sim_report("%s", dlerror());
    return SIM_ERROR_UNKNOWN;
}
