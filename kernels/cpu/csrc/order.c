/* The largest elements of rows: described in order.py. */

/* Keeps the best elements so far in order: each one that beats the last moves up to its place, behind its equals. */
#define TOPK(name, type, beats) \
    static void name(const type *x, long count, long k, type *values, long *places) \
    { \
        long kept = 0; \
        for (long i = 0; i < count; i++) { \
            const type v = x[i]; \
            if (kept == k) { \
                const type last = values[k - 1]; \
                if (!(beats(v, last))) continue; \
            } else { \
                kept++; \
            } \
            long j = kept - 1; \
            for (; j > 0; j--) { \
                const type before = values[j - 1]; \
                if (!(beats(v, before))) break; \
                values[j] = before; \
                places[j] = places[j - 1]; \
            } \
            values[j] = v; \
            places[j] = i; \
        } \
    }

/* NaN is the largest. */
#define LARGER(a, b) ((a) > (b) || ((a) != (a) && (b) == (b)))
#define SMALLER(a, b) ((a) < (b) || ((b) != (b) && (a) == (a)))

#define TOPK_OF(type, suffix) \
    TOPK(largest_##suffix, type, LARGER) \
    TOPK(smallest_##suffix, type, SMALLER) \
    void mi_topk_##suffix(const type *x, long rows, long count, long k, int largest, type *values, long *places) \
    { \
        for (long r = 0; k > 0 && r < rows; r++, x += count, values += k, places += k) \
            (largest ? largest_##suffix : smallest_##suffix)(x, count, k, values, places); \
    }

TOPK_OF(float, float32)
TOPK_OF(double, float64)
TOPK_OF(int, int32)
TOPK_OF(long, int64)
