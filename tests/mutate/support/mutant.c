#include "mutant.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* N_MUTANT, texts[] (number, header, begin, length, replacement), templates[] */
#include "mutant_texts.h"

enum { UNKNOWN = -2, MOST_HEADERS = 64 };
static int chosen = UNKNOWN;
static char unseen[N_MUTANT + 1], *reached = unseen;

static void read_environment(void) {
    const char *number = getenv("CUTBACK_MUTANT"), *file = getenv("CUTBACK_MUTANT_REACHED");
    const int fd = file ? open(file, O_RDWR | O_CREAT, 0600) : -1;
    if (fd >= 0 && ftruncate(fd, N_MUTANT + 1) == 0) {
        void *at = mmap(NULL, N_MUTANT + 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at != MAP_FAILED) reached = at;
    }
    if (fd >= 0) close(fd);
    chosen = number ? atoi(number) : -1;
}

int cb_mutant(int number) {
    if (chosen == UNKNOWN) read_environment();
    reached[number] = 1;
    return chosen == number;
}

const char *cb_mutant_template(const char *text) {
    for (int k = 0; templates[k].number >= 0; k++)
        if (strcmp(templates[k].text, text) == 0 && cb_mutant(templates[k].number))
            return templates[k].to;
    return text;
}

static char *replaced(const char *text, const mutant_text *m) {
    const size_t end = strlen(m->to), rest = strlen(text) - m->begin - m->length;
    char *made = malloc(m->begin + end + rest + 1);
    if (!made) abort();
    memcpy(made, text, m->begin);
    memcpy(made + m->begin, m->to, end);
    memcpy(made + m->begin + end, text + m->begin + m->length, rest + 1);
    return made;
}

const cb_cu_header *cb_mutant_headers(void) {
    static cb_cu_header all[MOST_HEADERS];
    if (chosen == UNKNOWN) read_environment();
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
        if (texts[k].number != chosen) continue;
        if (all[0].name) return all;
        memcpy(all, cb_cu_headers, (size_t)cb_cu_n_header * sizeof *all);
        for (int i = 0; i < cb_cu_n_header; i++)
            if (strcmp(all[i].name, texts[k].header) == 0)
                all[i].text = replaced(all[i].text, &texts[k]);
        return all;
    }
    return cb_cu_headers;
}
