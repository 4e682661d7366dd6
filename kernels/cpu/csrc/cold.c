/* Flushing of caches: described in cold.py. */
#include <stddef.h>

#define LINE 64

#if defined(__x86_64__)
#define CAN_FLUSH 1
static void flush_line(const char *at) { __builtin_ia32_clflush(at); }
static void finish(void) { __builtin_ia32_mfence(); }
#elif defined(__aarch64__) && defined(__linux__)
#define CAN_FLUSH 1
static void flush_line(const char *at) { __asm__ volatile("dc civac, %0" : : "r"(at) : "memory"); }
static void finish(void) { __asm__ volatile("dsb sy" : : : "memory"); }
#else
#define CAN_FLUSH 0
static void flush_line(const char *at) { (void)at; }
static void finish(void) {}
#endif

/* Whether lines can be flushed here. */
int mi_can_flush(void) { return CAN_FLUSH; }

/* Leaves the bytes in no cache of any core; they are written to memory first where they have changed. */
void mi_flush(const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += LINE) flush_line(from + i);
    if (bytes) flush_line(from + bytes - 1);
    finish();
}
