/* Stores past the caches.
 *
 * A store to a line that no cache holds reads the line first. A non-temporal store does not, which saves a third of the
 * traffic of a kernel that reads as much as it writes; but it also takes the line out of the cache that holds it. So a kernel
 * looks where its memory is before it starts: what is in a cache answers several times as fast.
 */
#ifndef MIRAGE_STREAM_H
#define MIRAGE_STREAM_H

#include "mirage_vec.h"

#include <limits.h>
#include <stdint.h>

/* Bytes of a non-temporal store, at a multiple of which it has to be; four in order fill a line as well as a wider one does. */
#define MI_PIECE 16

#if defined(__x86_64__)

typedef float mi_piece __attribute__((vector_size(MI_PIECE)));

/* `bytes` are pieces; another thread sees them after mi_flush_stream. */
MI_INLINE void mi_stream(void *to, const void *from, int bytes)
{
    MI_UNROLL for (int i = 0; i < bytes; i += MI_PIECE)
    {
        mi_piece piece;
        __builtin_memcpy(&piece, (const char *)from + i, sizeof piece);
#if defined(__clang__)
        __builtin_nontemporal_store(piece, (mi_piece *)((char *)to + i));
#else
        __builtin_ia32_movntps((float *)((char *)to + i), piece);
#endif
    }
}

MI_INLINE void mi_flush_stream(void) { __builtin_ia32_sfence(); }

/* ---- where memory is ---- */

MI_INLINE long mi_ticks(void)
{
    __builtin_ia32_lfence();
    const long ticks = (long)__builtin_ia32_rdtsc();
    __builtin_ia32_lfence();
    return ticks;
}

/* Until a byte is there, of a page that was touched before. */
MI_INLINE long mi_latency(const volatile char *at)
{
    const long start = mi_ticks();
    (void)*at;
    return mi_ticks() - start;
}

/* The latency half-way from a cache to memory, measured once; none is as long where the two do not differ enough. */
MI_NOINLINE long mi_memory_latency(void)
{
    static long known;
    long found = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (found) return found;
    volatile char line[256] = {0};
    long cached = LONG_MAX, flushed = LONG_MAX;
    for (int i = 0; i < 8; i++) {
        const long hit = mi_latency(line + 128);
        __builtin_ia32_clflush((const void *)(line + 128));
        __builtin_ia32_mfence();
        const long miss = mi_latency(line + 128);
        cached = hit < cached ? hit : cached;
        flushed = miss < flushed ? miss : flushed;
    }
    found = flushed > 2 * cached ? (cached + flushed) / 2 : LONG_MAX;
    __atomic_store_n(&known, found, __ATOMIC_RELAXED);
    return found;
}

#define MI_PAGE 4096
/* A store past the caches gains twice what it loses to a line that is in one: so many lines of a sample in memory are enough. */
#define MI_SAMPLES 5
#define MI_ENOUGH 2

/* Whether much of this memory, of many pages, is in no cache: looked up where chance will have it, as lines that every call
 * looks at are those that caches keep. Pages that nobody has written are made as a store makes them, if it `may_write` (and
 * change nothing): a load would map the page of zeros, which the first store has to replace. */
MI_NOINLINE int mi_uncached(const void *memory, size_t bytes, int may_write)
{
    const long limit = mi_memory_latency();
    const char *touched[MI_SAMPLES];
    const size_t part = bytes / MI_SAMPLES, inside = part - 2 * MI_PAGE;
    uint64_t chance = (uint64_t)mi_ticks();
    for (int i = 0; i < MI_SAMPLES; i++) {
        chance = chance * 0x5851f42d4c957f2d + 0x14057b7ef767814f;
        const uintptr_t page = ((uintptr_t)memory + part * (size_t)i + MI_PAGE + (chance >> 32) % inside) / MI_PAGE * MI_PAGE;
        touched[i] = (const char *)page + (chance >> 27) % (MI_PAGE / 2 / MI_LINE) * MI_LINE;
        /* all at a time, as the tables of pages may be in memory, too */
        if (may_write) __builtin_prefetch(touched[i], 1);
        else __builtin_prefetch(touched[i]);
    }
    int late = 0;
    for (int i = 0; late < MI_ENOUGH && i < MI_SAMPLES; i++) {
        if (i - late > MI_SAMPLES - MI_ENOUGH) return 0;
        if (may_write) __asm__ volatile("lock orb $0, %0" : "+m"(*(volatile char *)touched[i]));
        else (void)*(const volatile char *)touched[i];
        /* far from what was touched, as processors fetch what is near */
        late += mi_latency(touched[i] + MI_PAGE / 2) > limit;
    }
    return late == MI_ENOUGH;
}

/* Whether to store a result at `to`, of many pages, past the caches: if neither it nor what is read `from` is in one, as after a
 * kernel that runs where its input is in a cache, its result is best there, too. */
#define MI_LEAST_STREAM (1 << 20)
MI_INLINE int mi_past_caches(const void *to, const void *from, size_t bytes)
{
    return bytes >= MI_LEAST_STREAM && (uintptr_t)to % MI_PIECE == 0 && mi_uncached(to, bytes, 1) && mi_uncached(from, bytes, 0);
}

#else

MI_INLINE void mi_stream(void *to, const void *from, int bytes) { __builtin_memcpy(to, from, (size_t)bytes); }
MI_INLINE void mi_flush_stream(void) {}
MI_INLINE int mi_past_caches(const void *to, const void *from, size_t bytes)
{
    (void)to, (void)from, (void)bytes;
    return 0;
}

#endif

/* Fetches what lies there into the second-level cache, where it is in none if results go `past` the caches. */
MI_INLINE void mi_fetch_line(const void *at, int past)
{
    if (past) __builtin_prefetch(at, 0, 2);
}

/* ---- stores that go `past` the caches or not; in the first case, to pieces that are whole ---- */

MI_INLINE void mi_put(mi_real *p, mi_vec v, int past)
{
    if (past) mi_stream(p, &v, sizeof v);
    else mi_store(p, v);
}

MI_INLINE void mi_put_n(mi_real *p, mi_vec v, int n, int past)
{
    if (past) {
        for (int i = 0; i < n; i += MI_PIECE / MI_REAL_BYTES) mi_stream(p + i, (const mi_real *)&v + i, MI_PIECE);
    } else {
        mi_store_n(p, v, n);
    }
}

#if defined(MI_NARROW) && !MI_IS_BYTE
/* Vectors of 16-bit elements may be smaller than a piece. */
#define MI_NARROW_PIECES (2 * MI_W / MI_PIECE)
#define mi_put_narrow MI_OF(mi_put_narrow)
#define mi_put_narrow_n MI_OF(mi_put_narrow_n)

MI_INLINE void mi_put_narrow(mi_narrow *p, mi_vec v, int past)
{
    const mi_narrow_vec h = mi_to_narrow(v);
    if (past && MI_NARROW_PIECES) mi_stream(p, &h, sizeof h);
    else mi_store_narrow(p, v);
}

MI_INLINE void mi_put_narrow_n(mi_narrow *p, mi_vec v, int n, int past)
{
    const mi_narrow_vec h = mi_to_narrow(v);
    if (past && MI_NARROW_PIECES) {
        for (int i = 0; i < n; i += MI_PIECE / 2) mi_stream(p + i, (const mi_narrow *)&h + i, MI_PIECE);
    } else {
        mi_store_narrow_n(p, v, n);
    }
}
#endif

#endif
