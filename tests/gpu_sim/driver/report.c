/* report.c: the last 64 KiB of reports; once the buffer is full, reports go only to stderr. */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "entries.h"
#include "hooks.h"

static char kept[1 << 16];
static size_t n_kept;

void sim_report(const char *format, ...) {
    char line[1024];
    va_list values;
    va_start(values, format);
    int n = vsnprintf(line, sizeof line - 1, format, values);
    va_end(values);
    if (n < 0) return;
    size_t length = (size_t)n < sizeof line - 1 ? (size_t)n : sizeof line - 2;
    line[length++] = '\n';
    line[length] = '\0';
    if (n_kept + length < sizeof kept) {
        memcpy(kept + n_kept, line, length + 1);
        n_kept += length;
    }
    if (!sim_device.is_quiet) fprintf(stderr, "stand-in driver: %s", line);
}

size_t sim_reports(char *text, size_t n) {
    pthread_mutex_lock(&sim_device.lock);
    const size_t length = n_kept;
    if (n > 0) snprintf(text, n, "%s", kept);
    n_kept = 0;
    kept[0] = '\0';
    pthread_mutex_unlock(&sim_device.lock);
    return length;
}
