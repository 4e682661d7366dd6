/* Calls of compiled kernels with arrays of NumPy, without the interpreter in between: described in direct.py.
 *
 * Everything here runs under the interpreter's lock, but for the kernels themselves.
 */
#include "mirage_pool.h"
#include "mirage_python.h"

#include <stdint.h>
#include <string.h>

#define MOST_LAYOUTS 64 /* layouts that are known at a time */
#define MOST_ARRAYS 32
#define MOST_NUMBERS 256 /* of a layout: per array its rank, shape and strides */
#define COPIES_LOG2 8
#define MOST_COPIES (1 << COPIES_LOG2) /* packed copies that an argument of a layout knows the way to */
#define MOST_TOGETHER 4 /* constants that a tensor is made of */
#define LINE 64

typedef struct {
    const long *sizes;
    void **tensors;
    const long *strides;
} kernel_args;

typedef int kernels(const kernel_args *args, mi_pool_run_fn *pool, int threads);

typedef struct {
    long tensor, argument;
} place;

typedef struct {
    long low, high;
} span;

/* What was made of constant arguments, as a packed copy is of one: it lives, and is that of these addresses, as long as `changes`
 * is what was `seen`. */
typedef struct {
    void *packed;
    object *copy;
    long seen;
    const char *addresses[MOST_TOGETHER];
} known_copy;

/* A tensor that is made of constant arguments; `find` gives it, where `known`, of MOST_COPIES, does not. */
typedef struct {
    long tensor, n_arguments, arguments[MOST_TOGETHER];
    const long *changes;
    object *find;
    known_copy *known;
} packed_argument;

/* What a call needs at one layout, as direct.py fills it in; add() makes a copy. */
typedef struct {
    long n_key, n_sizes, n_strides, n_tensors, n_places, n_own, n_packed, n_functions, n_shapes, n_spans, need;
    const long *key, *sizes, *strides;
    const place *places, *own; /* `own`: tensors between operators, and their offsets in the workspace */
    const packed_argument *packed;
    kernels *const *functions;
    object *const *shapes; /* of results that are not given */
    const span *spans;     /* bytes of each argument and result from its address on; for results that are given */
} layout;

typedef struct {
    layout l;
    uint64_t hash;
    kernel_args args;
    packed_argument *packed;
    object **held; /* copies, by the call that is under way */
} entry;

/* Objects of the interpreter's own. */
static struct {
    object *none, *array_type, *tuple_type, *empty, *address_name;
} own;

/* The calls of one program. The first fields are filled in by direct.py. */
typedef struct {
    object *const *dtypes;  /* of the arguments, then of the results */
    const long *alignments; /* bits of an address that have to be 0, of the same */
    mi_pool_run_fn *pool;
    long threads, n_arguments, n_results;
    entry *entries[MOST_LAYOUTS];
    int n_entries, oldest, last; /* `last`: which was found last */
    int busy;
    void *workspace;
    size_t workspace_bytes;
} state;

static uint64_t hash_of(const long *key, long n)
{
    uint64_t h = (uint64_t)n;
    for (long i = 0; i < n; i++) h = (h ^ (uint64_t)key[i]) * 0x9e3779b97f4a7c15u, h ^= h >> 32;
    return h;
}

static void drop(entry *e)
{
    if (!e) return;
    for (long i = 0; i < e->l.n_packed; i++) py.decref(e->packed[i].find);
    for (long i = 0; i < e->l.n_shapes; i++) py.decref(e->l.shapes[i]);
    free(e);
}

/* A place for so many bytes in a piece of memory of which `used` are taken; NULL memory only counts. */
static void *part(char *memory, size_t *used, const void *from, size_t bytes)
{
    char *const to = memory ? memory + *used : NULL;
    *used += (bytes + 15) / 16 * 16;
    if (to && from && bytes) memcpy(to, from, bytes);
    return to;
}

static entry *lay_out(const layout *l, char *memory, size_t *used)
{
    entry *const e = part(memory, used, NULL, sizeof *e);
    void *const key = part(memory, used, l->key, (size_t)l->n_key * sizeof *l->key);
    void *const sizes = part(memory, used, l->sizes, (size_t)l->n_sizes * sizeof *l->sizes);
    void *const strides = part(memory, used, l->strides, (size_t)l->n_strides * sizeof *l->strides);
    void *const places = part(memory, used, l->places, (size_t)l->n_places * sizeof *l->places);
    void *const own = part(memory, used, l->own, (size_t)l->n_own * sizeof *l->own);
    void *const packed = part(memory, used, l->packed, (size_t)l->n_packed * sizeof *l->packed);
    void *const functions = part(memory, used, l->functions, (size_t)l->n_functions * sizeof *l->functions);
    void *const shapes = part(memory, used, l->shapes, (size_t)l->n_shapes * sizeof *l->shapes);
    void *const spans = part(memory, used, l->spans, (size_t)l->n_spans * sizeof *l->spans);
    void *const held = part(memory, used, NULL, (size_t)l->n_packed * sizeof(object *));
    void *const tensors = part(memory, used, NULL, (size_t)l->n_tensors * sizeof(void *));
    known_copy *const known = part(memory, used, NULL, (size_t)l->n_packed * MOST_COPIES * sizeof(known_copy));
    if (!memory) return NULL;
    e->l = *l;
    e->l.key = key, e->l.sizes = sizes, e->l.strides = strides, e->l.places = places, e->l.own = own;
    e->l.functions = functions, e->l.shapes = shapes, e->l.spans = spans, e->packed = packed, e->held = held;
    for (long i = 0; i < l->n_packed; i++) e->packed[i].known = known + i * MOST_COPIES;
    e->args = (kernel_args){sizes, tensors, strides};
    e->hash = hash_of(key, l->n_key);
    return e;
}

/* Before all else: fills in what is called, the bytes of the header of objects, and `own`. */
void mi_direct_start(const python *functions, long bytes, const void *from)
{
    begin(functions, bytes);
    memcpy(&own, from, sizeof own);
}

size_t mi_direct_state_bytes(void) { return sizeof(state); }

/* Keeps a layout; 0 where it cannot, as a call is under way, or for want of memory. */
int mi_direct_add(state *s, const layout *l)
{
    if (s->busy || l->n_key > MOST_NUMBERS) return 0;
    if (s->workspace_bytes < (size_t)l->need) {
        const size_t bytes = ((size_t)l->need + LINE - 1) / LINE * LINE;
        void *const workspace = aligned_alloc(LINE, bytes);
        if (!workspace) return 0;
        free(s->workspace);
        s->workspace = workspace;
        s->workspace_bytes = bytes;
    }
    size_t used = 0;
    lay_out(l, NULL, &used);
    char *const memory = calloc(1, used);
    if (!memory) return 0;
    used = 0;
    entry *const e = lay_out(l, memory, &used);
    for (long i = 0; i < l->n_packed; i++) py.incref(e->packed[i].find);
    for (long i = 0; i < l->n_shapes; i++) py.incref(e->l.shapes[i]);
    const int at = s->n_entries < MOST_LAYOUTS ? s->n_entries++ : s->oldest++ % MOST_LAYOUTS;
    entry *const before = s->entries[at];
    s->entries[at] = e;
    s->last = at;
    drop(before);
    return 1;
}

void mi_direct_free(state *s)
{
    for (int i = 0; i < s->n_entries; i++) drop(s->entries[i]);
    free(s->workspace);
}

/* Appends the layout of array k, an argument or a result, to the key; 0 where it is none that kernels can read. */
static int look_at(const state *s, long k, object *o, int flags, long *key, long *n_key, char **data)
{
    if (type_of(o) != own.array_type) return 0;
    const array *const a = array_of(o);
    if (a->dtype != s->dtypes[k] || (a->flags & flags) != flags || (uintptr_t)a->data & (uintptr_t)s->alignments[k]) return 0;
    if (*n_key + 1 + 2 * (long)a->nd > MOST_NUMBERS) return 0;
    long n = *n_key;
    key[n++] = a->nd;
    for (int d = 0; d < a->nd; d++) key[n++] = a->dims[d];
    for (int d = 0; d < a->nd; d++) key[n++] = a->strides[d];
    *n_key = n;
    *data = a->data;
    return 1;
}

static entry *find_entry(state *s, const long *key, long n_key)
{
    const uint64_t hash = hash_of(key, n_key);
    for (int i = 0; i < s->n_entries; i++) {
        const int at = i ? i - (i <= s->last) : s->last;
        entry *const e = s->entries[at];
        if (e->hash == hash && e->l.n_key == n_key && !memcmp(e->l.key, key, (size_t)n_key * sizeof *key)) {
            s->last = at;
            return e;
        }
    }
    return NULL;
}

/* Whether the memory of a given result has bytes of another array's. */
static int overlaps(const state *s, const entry *e, char *const *data)
{
    const span *const spans = e->l.spans;
    for (long k = s->n_arguments; k < s->n_arguments + s->n_results; k++) {
        for (long j = 0; j < k; j++) {
            if (data[k] + spans[k].low < data[j] + spans[j].high && data[j] + spans[j].low < data[k] + spans[k].high) return 1;
        }
    }
    return 0;
}

/* Where what was made of arguments is known, if it is: the weights of each layer of a model have a place of their own. */
static known_copy *place_of(const packed_argument *p, char *const *data)
{
    /* by the golden ratio, which spreads places at equal distances evenly (Knuth, volume 3, 6.4) */
    uint64_t h = 0;
    for (long j = 0; j < p->n_arguments; j++) h = (h ^ (uintptr_t)data[p->arguments[j]] / LINE) * 0x9e3779b97f4a7c15u;
    return p->known + (h >> (64 - COPIES_LOG2));
}

static int is_known(const packed_argument *p, const known_copy *k, char *const *data)
{
    if (!k->copy || k->seen != *p->changes) return 0;
    for (long j = 0; j < p->n_arguments; j++) {
        if (k->addresses[j] != data[p->arguments[j]]) return 0;
    }
    return 1;
}

/* Finds what is made of arguments; 0 with an exception. */
static int find_copy(const packed_argument *p, known_copy *k, object *const *arguments, char *const *data)
{
    k->copy = NULL;
    const long changes = *p->changes;
    /* the addresses, and then the arguments; nothing ends them */
    object *given[2 * MOST_TOGETHER] = {NULL};
    int failed = 0;
    for (long j = 0; j < p->n_arguments; j++) {
        given[j] = py.from_pointer(data[p->arguments[j]]);
        given[p->n_arguments + j] = arguments[p->arguments[j]];
        failed |= !given[j];
    }
    object *const copy = failed ? NULL : py.call_objects(p->find, given[0], given[1], given[2], given[3], given[4], given[5], given[6], given[7], (object *)NULL);
    object *const packed = copy ? py.attribute(copy, own.address_name) : NULL;
    if (packed) {
        *k = (known_copy){py.as_pointer(packed), copy, changes, {NULL}};
        for (long j = 0; j < p->n_arguments; j++) k->addresses[j] = data[p->arguments[j]];
        py.decref(packed);
    } else if (copy) {
        py.decref(copy);
    }
    for (long j = 0; j < p->n_arguments; j++) {
        if (given[j]) py.decref(given[j]);
    }
    return packed != NULL;
}

/* Fills in the packed copies and holds them; 0 with an exception. */
static int hold_packed(entry *e, object *const *arguments, char *const *data)
{
    for (long i = 0; i < e->l.n_packed; i++) {
        e->held[i] = NULL;
        __builtin_prefetch(place_of(e->packed + i, data), 1);
    }
    for (long i = 0; i < e->l.n_packed; i++) {
        const packed_argument *const p = e->packed + i;
        known_copy *const k = place_of(p, data);
        if (is_known(p, k, data)) py.incref(k->copy);
        else if (!find_copy(p, k, arguments, data)) return 0;
        e->held[i] = k->copy;
        e->args.tensors[p->tensor] = k->packed;
    }
    return 1;
}

static int run(state *s, entry *e, char *const *data)
{
    for (long i = 0; i < e->l.n_places; i++) e->args.tensors[e->l.places[i].tensor] = data[e->l.places[i].argument];
    for (long i = 0; i < e->l.n_own; i++) e->args.tensors[e->l.own[i].tensor] = (char *)s->workspace + e->l.own[i].argument;
    int failed = 0;
    void *const thread = py.unlock();
    for (long i = 0; !failed && i < e->l.n_functions; i++) failed = e->l.functions[i](&e->args, s->pool, (int)s->threads);
    py.lock(thread);
    return failed;
}

/* New arrays for the results; 0 with an exception. */
static int make_results(const state *s, const entry *e, object **results, char **data)
{
    for (long k = 0; k < s->n_results; k++) {
        results[k] = py.call_objects(own.empty, e->l.shapes[k], s->dtypes[s->n_arguments + k], (object *)NULL);
        if (!results[k]) return 0;
        data[k] = array_of(results[k])->data;
    }
    return 1;
}

/* The result, or the tuple of results; takes them. */
static object *answer(const state *s, object **results)
{
    if (s->n_results == 1) return results[0];
    object *const all = py.tuple_new(s->n_results);
    for (long k = 0; k < s->n_results; k++) {
        if (all) py.tuple_set(all, k, results[k]);
        else py.decref(results[k]);
    }
    return all;
}

static object *nothing(void)
{
    py.incref(own.none);
    return own.none;
}

/* Asks for what a call is about to read of its arrays, as they may have to come from memory: all at once, not one by one. */
static void ask_for(object *const *arrays, long n)
{
    for (long k = 0; k < n; k++) {
        __builtin_prefetch(arrays[k], 1);
        __builtin_prefetch((const char *)arrays[k] + LINE);
    }
    for (long k = 0; k < n; k++) {
        if (type_of(arrays[k]) == own.array_type) __builtin_prefetch(array_of(arrays[k])->dims);
    }
}

/* A function of Python (METH_FASTCALL) of a tuple of arguments and the given results or None: what the call returns, or
 * None where it is not for this way. `self` is the address of the state. */
object *mi_direct_call(object *self, object *const *args, ptrdiff_t n_args)
{
    state *const s = py.as_pointer(self);
    if (n_args != 2 || s->busy || type_of(args[0]) != own.tuple_type || py.tuple_size(args[0]) != s->n_arguments) return nothing();
    object *const out = args[1] == own.none ? NULL : args[1];
    const int several = out && type_of(out) == own.tuple_type;
    if (out && (several ? py.tuple_size(out) : 1) != s->n_results) return nothing();
    object *arrays[MOST_ARRAYS], **const results = arrays + s->n_arguments;
    char *data[MOST_ARRAYS];
    long key[MOST_NUMBERS], n_key = 0;
    for (long k = 0; k < s->n_arguments; k++) arrays[k] = py.tuple_item(args[0], k);
    for (long k = 0; out && k < s->n_results; k++) results[k] = several ? py.tuple_item(out, k) : out;
    ask_for(arrays, s->n_arguments + (out ? s->n_results : 0));
    for (long k = 0; k < s->n_arguments; k++) {
        if (!look_at(s, k, arrays[k], 0, key, &n_key, data + k)) return nothing();
    }
    for (long k = 0; out && k < s->n_results; k++) {
        if (!look_at(s, s->n_arguments + k, results[k], WRITEABLE, key, &n_key, data + s->n_arguments + k)) return nothing();
    }
    entry *const e = find_entry(s, key, n_key);
    if (!e || (out && overlaps(s, e, data))) return nothing();
    /* from here on, code of Python may run, which may call this again */
    s->busy = 1;
    object *found = NULL;
    if (!out) memset(results, 0, (size_t)s->n_results * sizeof *results);
    if (hold_packed(e, arrays, data) && (out || make_results(s, e, results, data + s->n_arguments))) {
        const int failed = run(s, e, data);
        found = failed ? own.none : !out ? answer(s, results) : s->n_results == 1 ? results[0] : out;
        if (failed || out) py.incref(found);
        if (!failed && !out) memset(results, 0, (size_t)s->n_results * sizeof *results);
    }
    for (long i = 0; i < e->l.n_packed; i++) {
        if (e->held[i]) py.decref(e->held[i]);
    }
    for (long k = 0; !out && k < s->n_results; k++) {
        if (results[k]) py.decref(results[k]);
    }
    s->busy = 0;
    return found;
}
