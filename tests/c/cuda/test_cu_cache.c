/* The cache of compiled kernels: names by content, files that are complete or missing, folders
 * writable by others left alone; and SHA-256 on the standard's examples. */
#include "check.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cu_jit.h"
#include "sha256.h"

static void hex_of(const char *data, size_t n, size_t times, char out[65]) {
    cb_sha256 s;
    uint8_t digest[32];
    cb_sha256_init(&s);
    for (size_t i = 0; i < times; i++) cb_sha256_add(&s, data, n);
    cb_sha256_end(&s, digest);
    for (int i = 0; i < 32; i++) (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

/* Tests the examples of FIPS 180-4, and lengths around a block boundary. */
TEST(sha256) {
    char a[65], b[65], data[300];
    hex_of("", 0, 0, a);
    CHECK(strcmp(a, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855") == 0);
    hex_of("abc", 3, 1, a);
    CHECK(strcmp(a, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad") == 0);
    hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, 1, a);
    CHECK(strcmp(a, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1") == 0);
    hex_of("a", 1, 1000000, a);
    CHECK(strcmp(a, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0") == 0);
    memset(data, 'x', sizeof data);
    for (size_t n = 1; n < sizeof data; n++) {
        hex_of(data, n, 1, a);
        hex_of(data, 1, n, b);
        CHECK(strcmp(a, b) == 0);
    }
}

static char all_folders[] = "/tmp/cutback-XXXXXX", folder[64];

static void new_folder(void) {
    static int n;
    (void)snprintf(folder, sizeof folder, "%s/%d", all_folders, n++);
    CHECK(mkdir(folder, 0700) == 0);
}

static int remove_entry(const char *path, const struct stat *is, int type, struct FTW *at) {
    (void)is, (void)type, (void)at;
    return remove(path);
}

static cb_cu_source source_of(const char *text, int capability, bool as_ptx) {
    static const cb_cu_header headers[] = {{"a.h", "int a;"}};
    return (cb_cu_source){.text = text,
                          .headers = headers,
                          .n_header = 1,
                          .capability = capability,
                          .as_ptx = as_ptx};
}

TEST(names_depend_on_all_that_code_depends_on) {
    const cb_cu_nvrtc one = {.version = 13000}, two = {.version = 13010};
    const cb_cu_header other = {"a.h", "int b;"};
    const cb_cu_source same = source_of("x", 90, false), text = source_of("y", 90, false),
                       device = source_of("x", 80, false), ptx = source_of("x", 90, true);
    cb_cu_source header = same;
    char name[6][65];
    header.headers = &other;
    cb_cu_name_of(&one, &same, name[0]);
    cb_cu_name_of(&one, &text, name[1]);
    cb_cu_name_of(&one, &device, name[2]);
    cb_cu_name_of(&one, &ptx, name[3]);
    cb_cu_name_of(&two, &same, name[4]);
    cb_cu_name_of(&one, &header, name[5]);
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < i; k++) CHECK(strcmp(name[i], name[k]) != 0);
    cb_cu_name_of(&one, &same, name[1]);
    CHECK(strcmp(name[0], name[1]) == 0);
}

static const char name[] = "abcdef";

static void path_of(char path[128]) { (void)snprintf(path, 128, "%s/ab/cdef.bin", folder); }

/* Changes byte `at` of the file; at -1, removes the last byte. */
static void damage(long at) {
    char path[128];
    path_of(path);
    if (at < 0) {
        struct stat is;
        CHECK(stat(path, &is) == 0 && truncate(path, is.st_size - 1) == 0);
        return;
    }
    FILE *file = fopen(path, "r+b");
    CHECK(file && fseek(file, at, SEEK_SET) == 0);
    const int byte = fgetc(file);
    CHECK(fseek(file, at, SEEK_SET) == 0 && fputc(byte ^ 1, file) != EOF && fclose(file) == 0);
}

TEST(files_are_whole_or_not_there) {
    static const long damages[] = {0, 20, 49, 52, -1};
    cb_alloc alloc;
    char code[] = "some code", path[128];
    const cb_cu_image written = {.code = code, .bytes = 9};
    cb_cu_image image = {0};
    struct stat is;
    cb_alloc_init(&alloc);
    new_folder();
    CHECK_OK(cb_cu_check_folder(folder, &err));
    CHECK(!cb_cu_read(folder, name, &alloc, &image));
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        cb_cu_write(folder, name, &written);
        CHECK(cb_cu_read(folder, name, &alloc, &image));
        CHECK(image.bytes == 9 && memcmp(image.code, "some code", 10) == 0 && image.was_cached);
        cb_free(&alloc, image.code);
        damage(damages[i]);
        CHECK(!cb_cu_read(folder, name, &alloc, &image));
        path_of(path);
        CHECK(stat(path, &is) != 0); /* it is deleted */
    }
    cb_cu_write(folder, name, &written);
    cb_alloc_fail(&alloc, 1);
    CHECK(!cb_cu_read(folder, name, &alloc, &image));
    CHECK(cb_alloc_stats(&alloc).live_bytes == 0);
}

TEST(texts_are_for_people) {
    char path[128], text[8] = "";
    new_folder();
    cb_cu_write_text(folder, "failed", name, ".log", "oh no");
    (void)snprintf(path, sizeof path, "%s/failed/abcdef.log", folder);
    FILE *file = fopen(path, "r");
    CHECK(file && fgets(text, sizeof text, file) && strcmp(text, "oh no") == 0);
    if (file) (void)fclose(file);
}

/* A valid kernel stored under another kernel's name is rejected. */
TEST(a_renamed_file_is_not_another_kernel) {
    cb_alloc alloc;
    char code[] = "some code", from[128], to[128];
    const cb_cu_image written = {.code = code, .bytes = 9};
    cb_cu_image image = {0};
    cb_alloc_init(&alloc);
    new_folder();
    cb_cu_write(folder, name, &written);
    path_of(from);
    (void)snprintf(to, sizeof to, "%s/ab/cdee.bin", folder);
    CHECK(rename(from, to) == 0);
    CHECK(!cb_cu_read(folder, "abcdee", &alloc, &image));
    CHECK(access(to, F_OK) != 0); /* deleted, as any damaged file */
}

/* If a subfolder is replaced by a link, nothing outside is read, written or deleted. */
TEST(links_do_not_lead_out_of_the_folder) {
    cb_alloc alloc;
    char code[] = "some code", outside[64], path[128], link[128];
    const cb_cu_image written = {.code = code, .bytes = 9};
    cb_cu_image image = {0};
    cb_alloc_init(&alloc);
    new_folder();
    cb_cu_write(folder, name, &written);
    memcpy(outside, folder, sizeof outside);
    new_folder();
    (void)snprintf(path, sizeof path, "%s/ab", outside);
    (void)snprintf(link, sizeof link, "%s/ab", folder);
    CHECK(symlink(path, link) == 0);
    CHECK(!cb_cu_read(folder, name, &alloc, &image)); /* though it is a valid kernel */
    cb_cu_write(folder, "abffff", &written);
    (void)snprintf(path, sizeof path, "%s/ab/ffff.bin", outside);
    CHECK(access(path, F_OK) != 0);
    (void)snprintf(path, sizeof path, "%s/ab/cdef.bin", outside);
    CHECK(truncate(path, 20) == 0 && !cb_cu_read(folder, name, &alloc, &image));
    CHECK(access(path, F_OK) == 0);
    (void)snprintf(link, sizeof link, "%s/failed", folder);
    CHECK(symlink(outside, link) == 0);
    cb_cu_write_text(folder, "failed", name, ".log", "oh no");
    (void)snprintf(path, sizeof path, "%s/abcdef.log", outside);
    CHECK(access(path, F_OK) != 0);
}

/* A subfolder writable by others is treated as missing. */
TEST(subfolders_of_others_are_not_used) {
    cb_alloc alloc;
    char code[] = "some code", path[128];
    const cb_cu_image written = {.code = code, .bytes = 9};
    cb_cu_image image = {0};
    cb_alloc_init(&alloc);
    new_folder();
    cb_cu_write(folder, name, &written);
    (void)snprintf(path, sizeof path, "%s/ab", folder);
    CHECK(chmod(path, 0777) == 0);
    CHECK(!cb_cu_read(folder, name, &alloc, &image));
    CHECK(chmod(path, 0700) == 0);
    CHECK(cb_cu_read(folder, name, &alloc, &image));
    cb_free(&alloc, image.code);
}

TEST(folders_of_others_are_not_used) {
    char below[96];
    new_folder();
    (void)snprintf(below, sizeof below, "%s/one/two", folder);
    CHECK_OK(cb_cu_check_folder(below, &err)); /* the folder is created */
    struct stat is;
    CHECK(stat(below, &is) == 0 && (is.st_mode & 0777) == 0700);
    CHECK(chmod(below, 0770) == 0);
    CHECK_FAIL(cb_cu_check_folder(below, &err), CB_UNSUPPORTED, "may be written by others");
    CHECK(chmod(below, 0757) == 0);
    CHECK_FAIL(cb_cu_check_folder(below, &err), CB_UNSUPPORTED, "may be written by others");
    CHECK_FAIL(cb_cu_check_folder("/dev/null", &err), CB_UNSUPPORTED, "is not a folder");
    CHECK_FAIL(cb_cu_check_folder("/proc/nowhere", &err), CB_UNSUPPORTED, "/proc/nowhere");
    if (geteuid() != 0 || chown(below, 12345, 12345) != 0) return;
    CHECK(chmod(below, 0700) == 0);
    CHECK_FAIL(cb_cu_check_folder(below, &err), CB_UNSUPPORTED, "belongs to another user");
}

int main(void) {
    if (!mkdtemp(all_folders)) return 1;
    RUN(sha256);
    RUN(names_depend_on_all_that_code_depends_on);
    RUN(files_are_whole_or_not_there);
    RUN(texts_are_for_people);
    RUN(a_renamed_file_is_not_another_kernel);
    RUN(links_do_not_lead_out_of_the_folder);
    RUN(subfolders_of_others_are_not_used);
    RUN(folders_of_others_are_not_used);
    CHECK(nftw(all_folders, remove_entry, 8, FTW_DEPTH | FTW_PHYS) == 0);
    return check_report();
}
