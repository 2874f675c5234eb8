/* Runs a fuzz target without libFuzzer:
 *
 *     fuzz_TARGET PATH...           once with each file, and with each file of each folder
 *     fuzz_TARGET --random COUNT    with this many random inputs, the same each time
 *
 * A missing path counts as an empty folder, because a target without regressions has none. */
#include <dirent.h>
#include <sys/stat.h>

#include "target.h"

#define MOST_BYTES ((size_t)1 << 20)
#define PATH_ROOM 4096

/* Defined by targets that write seeds or prepare shared data. */
__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);

static int run_file(const char *path) {
    FILE *f = fopen(path, "rb");
    uint8_t *data = f ? malloc(MOST_BYTES) : NULL;
    if (!data) {
        fprintf(stderr, "%s: cannot be read\n", path);
        if (f) fclose(f);
        return 0;
    }
    size_t n = fread(data, 1, MOST_BYTES, f);
    fclose(f);
    uint8_t *exact = realloc(data, n ? n : 1); /* so that reading past the end is detected */
    printf("%s: %zu bytes\n", path, n);
    fflush(stdout);
    LLVMFuzzerTestOneInput(exact ? exact : data, n);
    free(exact ? exact : data);
    return 1;
}

static int run_path(const char *path) {
    struct stat about;
    int n = 0;
    if (stat(path, &about) != 0) return 0;
    if (!S_ISDIR(about.st_mode)) return run_file(path);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char inside[PATH_ROOM];
        if (entry->d_name[0] == '.') continue;
        (void)snprintf(inside, sizeof inside, "%s/%s", path, entry->d_name);
        n += run_file(inside);
    }
    if (folder) closedir(folder);
    return n;
}

static uint64_t draw(uint64_t *state) { /* splitmix64 */
    uint64_t x = *state += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static void run_random(unsigned long count) {
    uint8_t data[512];
    for (unsigned long i = 0; i < count; i++) {
        uint64_t state = (uint64_t)i << 32; /* input i depends only on i */
        size_t n = draw(&state) % sizeof data;
        for (size_t k = 0; k < n; k++) data[k] = (uint8_t)draw(&state);
        if (getenv("CB_FUZZ_VERBOSE")) fprintf(stderr, "random input %lu: %zu bytes\n", i, n);
        LLVMFuzzerTestOneInput(data, n);
    }
    printf("%lu random inputs\n", count);
}

int main(int argc, char **argv) {
    int n = 0, i = 1;
    if (LLVMFuzzerInitialize) LLVMFuzzerInitialize(&argc, &argv);
    if (argc > 2 && strcmp(argv[1], "--random") == 0) {
        run_random(strtoul(argv[2], NULL, 10));
        i = 3;
    }
    for (; i < argc; i++) n += run_path(argv[i]);
    printf("%d files\n", n);
    return 0;
}
