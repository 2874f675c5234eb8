/* sanitize.h: detects AddressSanitizer and ThreadSanitizer. The poisoning macros do nothing in a
 * plain build. */
#ifndef CB_BASE_SANITIZE_H
#define CB_BASE_SANITIZE_H

#if defined(__has_feature)
#define CB_HAS_FEATURE(x) __has_feature(x)
#else
#define CB_HAS_FEATURE(x) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || CB_HAS_FEATURE(address_sanitizer)
#include <sanitizer/asan_interface.h>
#define CB_ASAN 1
#define CB_POISON(at, bytes) ASAN_POISON_MEMORY_REGION((at), (bytes))
#define CB_UNPOISON(at, bytes) ASAN_UNPOISON_MEMORY_REGION((at), (bytes))
#else
#define CB_ASAN 0
#define CB_POISON(at, bytes) ((void)(at), (void)(bytes))
#define CB_UNPOISON(at, bytes) ((void)(at), (void)(bytes))
#endif

#if defined(__SANITIZE_THREAD__) || CB_HAS_FEATURE(thread_sanitizer)
#define CB_TSAN 1
#else
#define CB_TSAN 0
#endif

#endif
