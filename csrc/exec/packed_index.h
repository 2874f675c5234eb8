/* packed_index.h: arrays of indices in fewer bytes. Byte k of an index is its byte k from the
 * lowest. An index of a max pooling, which is a position in a plane, becomes the position in its
 * window. A plane has three axes, the first of which has one element if the pooling has two. */
#ifndef CB_EXEC_PACKED_INDEX_H
#define CB_EXEC_PACKED_INDEX_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cb_packed_index {
    bool is_wide;     /* an index is an int64_t, otherwise an int32_t */
    bool has_windows; /* false: the fields after `bytes` are not used */
    int64_t bytes;    /* of a packed index: 1, 2 or 4 */
    int64_t windows[3], plane[3], kernel[3], stride[3], pad[3], dilation[3];
} cb_packed_index;

/* Pack and unpack indices first..last of an array. Indices are below 2^32; those of windows are in
 * their windows. */
void cb_pack_index(const cb_packed_index *x, const void *indices, int64_t first, int64_t last,
                   uint8_t *packed);
void cb_unpack_index(const cb_packed_index *x, const uint8_t *packed, int64_t first, int64_t last,
                     void *indices);

#endif
