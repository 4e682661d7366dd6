/* Functions whose calls are on a stack of the machine's own: those that call themselves, or functions that are values.
 *
 * They only move values, make data and decide what is called next; what is computed is in functions of Python's, which launch
 * compiled code. A call that is the last thing a function does takes its place on the stack. mirage/runtime/stacked.py writes the
 * code: words, of which each instruction has those below, registers as their numbers and sizes as those of their slots. Lists begin
 * with their lengths. */
#include "mirage_recorder.h"

/* All begin with this, the register of the result, and the number of words. `last` is whether the result is that of the function. */
enum {
    OP_RETURN,        /* register */
    OP_CALL,          /* last, function, [arguments], [sizes] */
    OP_CALL_VALUE,    /* last, register, [arguments] */
    OP_IF,            /* last, condition, then, else, [arguments], [sizes] */
    OP_MATCH,         /* last, register, [arguments], [sizes], number of clauses: function, [pattern] each */
    OP_LOOP,          /* body, slot of the count or -1, register of it or -1, slot of the bound or -1, [carried], [invariant], [sizes] */
    OP_CONSTRUCT,     /* data type, constructor, [fields] */
    OP_TUPLE,         /* [items] */
    OP_GET_ITEM,      /* register, index */
    OP_CLOSE,         /* function, [arguments], [sizes] */
    OP_NEW_REFERENCE, /* register */
    OP_READ,          /* register */
    OP_WRITE,         /* reference, register */
    OP_SIZES,         /* [sizes] */
    OP_SHAPE_OF,      /* register */
    OP_FREE,          /* [registers] */
    OP_STEP,          /* number of a step of Python's, [registers] that it reads */
    OP_CHECK,         /* number of a step of Python's that looks at the shapes in the register of the result */
};

/* A pattern in words: a value that is dropped or bound, or the constructor and number of fields, or the number of fields, with the
 * patterns of these behind. */
enum { DROP, BIND, CASE_OF, FIELDS_OF };

enum { TICKS = 1 << 16, ENTRIES = 8 };

/* A call: its arguments, which it holds, and sizes. */
typedef struct {
    long function;
    vector args, sizes;
} request;

static void release_entry(entry *e)
{
    if (!e || --e->refs) return;
    py.decref(e->slots);
    free(e->key);
    free(e);
}

static void forget_entries(function *f)
{
    for (entry *next; f->entries; f->entries = next) {
        next = f->entries->next;
        release_entry(f->entries);
    }
    f->n_entries = 0;
}

static frame *top(run *r) { return (frame *)r->frames.data + r->frames.count - 1; }

static value **registers(run *r) { return (value **)r->registers.data + top(r)->base; }

static int wrong(run *r) { return fail(r, MALFORMED, r->frames.count ? top(r)->function : -1, 0); }

static int add_arg(run *r, request *q, value *v)
{
    if (!v) return wrong(r);
    value **to = pushed(&q->args, 1, sizeof(value *));
    if (!to) return -1;
    *to = retained(v);
    return 0;
}

/* Add the values of a list of registers; the words behind it, NULL after an error. */
static const long *add_args(run *r, request *q, const long *w)
{
    const long n = *w++;
    for (long k = 0; k < n; k++) {
        if (add_arg(r, q, registers(r)[w[k]])) return NULL;
    }
    return w + n;
}

static int size_at(run *r, long slot, long *found)
{
    const entry *e = top(r)->entry;
    if (!e || slot < 0 || slot >= e->count) return wrong(r);
    *found = e->at[slot];
    return 0;
}

static const long *add_sizes(run *r, request *q, const long *w)
{
    const long n = *w++;
    for (long k = 0; k < n; k++) {
        long size = 0;
        if (size_at(r, w[k], &size)) return NULL;
        long *to = pushed(&q->sizes, 1, sizeof(long));
        if (!to) return NULL;
        *to = size;
    }
    return w + n;
}

static void forget(request *q)
{
    for (long k = 0; k < q->args.count; k++) release(((value **)q->args.data)[k]);
    q->args.count = q->sizes.count = 0;
}

static object *numbers(const long *sizes, long n)
{
    object *tuple = py.tuple_new(n);
    for (long k = 0; tuple && k < n; k++) py.tuple_set(tuple, k, py.number(sizes[k]));
    return tuple;
}

static value *sizes_value(const long *sizes, long n)
{
    value *v = new_value(TUPLE, 0, n);
    for (long k = 0; v && k < n; k++) {
        if (!(v->fields[k] = new_number(sizes[k]))) {
            release(v);
            v = NULL;
        }
    }
    return v;
}

/* What only has the shapes of a value: nobody reads the elements. */
static object *stand_in(run *r, value *v)
{
    shape s;
    if (v->kind == PENDING && has_shape(v, &s)) return empty(r, s, -1);
    if (v->kind != TUPLE) return v->kind <= ARRAY ? object_of(r, v, 0) : kept(r->m->ellipsis);
    object *tuple = py.tuple_new(v->count);
    for (long k = 0; tuple && k < v->count; k++) put(&tuple, py.tuple_set, k, v->fields[k] ? stand_in(r, v->fields[k]) : NULL);
    return tuple;
}

/* Append the shapes in a value. */
static int shapes_in(vector *key, const value *v)
{
    const int found = shape_key(key, v);
    if (found) return found < 0 ? -1 : 0;
    long *to = pushed(key, 2, sizeof(long));
    if (!to) return -1;
    to[0] = -1;
    to[1] = v->kind == TUPLE ? v->count : -1;
    for (long k = 0; v->kind == TUPLE && k < v->count; k++) {
        if (!v->fields[k] || shapes_in(key, v->fields[k])) return -1;
    }
    return 0;
}

/* The sizes of a call, which are kept for others with the same shapes unless the function changes them. NULL after an error. */
static entry *entry_of(run *r, const request *q)
{
    function *f = r->m->functions + q->function;
    value *const *args = q->args.data;
    vector *key = &r->scratch;
    key->count = 0;
    for (const long *k = f->shaped; *k >= 0; k++) {
        if (shapes_in(key, args[*k])) return NULL;
    }
    long *to = pushed(key, q->sizes.count, sizeof(long));
    if (!to) return NULL;
    memcpy(to, q->sizes.data ? q->sizes.data : to, (size_t)q->sizes.count * sizeof(long));
    for (entry *e = f->entries; e && !f->copies; e = e->next) {
        if (same_key(e->key, e->n_key, key)) {
            e->refs++;
            return e;
        }
    }
    entry *e = calloc(1, sizeof(entry));
    long *own = room((size_t)key->count * sizeof(long));
    if (!e || !own) {
        free(e);
        free(own);
        py.no_memory();
        return NULL;
    }
    memcpy(own, key->data, (size_t)key->count * sizeof(long));
    *e = (entry){.refs = 1, .key = own, .n_key = key->count};
    object *list = py.list_new(f->parameters);
    for (long k = 0; list && k < f->parameters; k++) put(&list, py.list_set, k, stand_in(r, args[k]));
    object *given[] = {py.number(q->function), list, numbers(q->sizes.data, q->sizes.count)};
    object *found = host(r, SLOTS, 3, given);
    if (!found) {
        free(own);
        free(e);
        return NULL;
    }
    e->slots = kept(py.tuple_item(found, 0));
    e->at = (const long *)py.value(py.tuple_item(found, 1));
    e->count = py.value(py.tuple_item(found, 2));
    py.decref(found);
    if (!f->copies) {
        if (f->n_entries == ENTRIES) forget_entries(f);
        e->refs++;
        e->next = f->entries;
        f->entries = e;
        f->n_entries++;
    }
    return e;
}

static void leave(run *r)
{
    frame *fr = top(r);
    value **x = registers(r);
    for (long k = 0, n = r->m->functions[fr->function].registers; k < n; k++) release(x[k]);
    r->registers.count = fr->base;
    release_entry(fr->entry);
    release(fr->carried);
    r->frames.count--;
}

/* Begin a call of a stacked function, in the place of the one on top if that is its `last` call. */
static int enter(run *r, request *q, int last)
{
    const function *f = r->m->functions + q->function;
    if (q->args.count != f->parameters) return wrong(r);
    entry *e = NULL;
    if (f->sized && !(e = entry_of(r, q))) return -1;
    if (last) {
        leave(r);
    } else if (r->frames.count > r->deepest) {
        release_entry(e);
        return fail(r, TOO_DEEP, q->function, 0);
    }
    const long base = r->registers.count;
    value **x = pushed(&r->registers, f->registers, sizeof(value *));
    frame *fr = x ? pushed(&r->frames, 1, sizeof(frame)) : NULL;
    if (!fr) {
        r->registers.count = base;
        release_entry(e);
        return -1;
    }
    *fr = (frame){.function = q->function, .base = base, .entry = e};
    memcpy(x, q->args.data ? q->args.data : x, (size_t)f->parameters * sizeof(value *));
    q->args.count = q->sizes.count = 0;
    for (long k = f->parameters; k < f->registers; k++) x[k] = f->constants[k] ? retained(f->constants[k]) : NULL;
    return 0;
}

static long words_of(const long *form)
{
    const long *w = form;
    for (long open = 1; open; open--) open += *w > 0 ? *w : 0, w++;
    return w - form;
}

/* Whether a value has tensors and shapes alone, all of which are there. */
static int is_ready(const value *v)
{
    if (v->kind != TUPLE) return v->kind == ARRAY || v->kind == NUMBER;
    for (long k = 0; k < v->count; k++) {
        if (!v->fields[k] || !is_ready(v->fields[k])) return 0;
    }
    return 1;
}

/* The rows of arrays, which are the states after all rounds, as a list. */
static value *listed(run *r, const list_loop *loop, object *arrays, long rows)
{
    machine *m = r->m;
    const long width = py.tuple_size(arrays), n = words_of(loop->state);
    vector words = {0}, found = {0};
    long *w = pushed(&words, n, sizeof(long));
    object **each = w ? pushed(&found, width, sizeof(object *)) : NULL;
    value *list = NULL;
    if (each) {
        memcpy(w, loop->state, (size_t)n * sizeof(long));
        for (long k = 0; k < width; k++) each[k] = py.tuple_item(arrays, k);
        kind_of *kind = new_kind(r, &words, each, width, 1);
        group *g = kind ? new_group(-1, kind, 0) : NULL;
        release_kind(kind);
        if (g && deliver_results(g, kept(arrays))) {
            release_group(g);
            g = NULL;
        }
        list = g ? new_cell(m, (int)m->nil, 0) : NULL;
        for (long k = rows - 1; list && k >= 0; k--) {
            value *cell = new_cell(m, (int)m->cons, 2), *head = cell ? placeholder(g, k) : NULL;
            if (cell) cell->fields[0] = head, cell->fields[1] = list;
            list = cell;
            if (cell && !head) {
                release(cell);
                list = NULL;
            }
        }
        if (g) release_group(g);
    }
    free(words.data);
    free(found.data);
    return list;
}

/* The result of a function over a list as a loop; 1 where it goes item by item, -1 after an error. */
static int over_list(run *r, const request *q, value **result)
{
    machine *m = r->m;
    const function *f = m->functions + q->function;
    const list_loop *loop = f->loop;
    value *const *args = q->args.data;
    vector *all = &r->given;
    all->count = 0;
    if (q->args.count != f->parameters) return 1;
    for (long k = 1; k < f->parameters; k++) {
        if (!is_ready(args[k])) return 1;
    }
    long n = 0, width = 0;
    for (const value *c = args[0]; c->kind == RECORD && c->tag == m->cons && c->count == 2; c = c->fields[1], n++) {
        const long before = all->count;
        if (!flattened(loop->item, c->fields[0], all)) return py.occurred() ? -1 : 1;
        if (!n) width = all->count;
        value **items = all->data;
        for (long k = before; k < all->count; k++) {
            if (items[k]->kind != ARRAY) return 1;
            if (!same_shape(shape_of_array(items[k]->of.object), shape_of_array(items[k - before]->of.object))) return 1;
        }
    }
    if (n < loop->fewest) return 1;
    value **items = all->data;
    for (long k = 0; loop->most_bytes >= 0 && k < width; k++) {
        if (bytes_of(r, items[k]->of.object) > loop->most_bytes) return 1;
    }
    object *columns = py.tuple_new(width);
    for (long k = 0; columns && k < width; k++) {
        object *column = py.list_new(n);
        if (!column) {
            py.decref(columns);
            columns = NULL;
            break;
        }
        for (long i = 0; i < n; i++) py.list_set(column, i, kept(items[i * width + k]->of.object));
        py.tuple_set(columns, k, column);
    }
    object *given[] = {py.number(q->function), columns, arguments(r, args + 1, f->parameters - 1)};
    object *found = host(r, LOOP, 3, given);
    if (!found) {
        if (!py.matches(m->error)) return -1;
        /* item by item, what is wrong has its name */
        py.clear();
        return 1;
    }
    int unfit;
    *result = loop->scans ? listed(r, loop, found, n) : value_of(r, UNTYPED, found, 0, &unfit);
    py.decref(found);
    return *result ? 0 : -1;
}

/* The result of a call of a function of Python's, or a placeholder for it. */
static value *call_plain(run *r, request *q)
{
    function *f = r->m->functions + q->function;
    value *const *args = q->args.data;
    vector key = {0};
    value *result = NULL;
    int status = 1;
    if (q->args.count != f->parameters) {
        wrong(r);
        return NULL;
    }
    if (f->batched >= 0 && r->sites) status = record(r, q->function, args, &key, &result);
    if (status > 0) {
        object *given = arguments(r, args, q->args.count);
        object *found = given ? call_python(r, q->function, given, numbers(q->sizes.data, q->sizes.count)) : NULL;
        int unfit;
        result = found ? value_of(r, UNTYPED, found, 0, &unfit) : NULL;
        if (found) py.decref(found);
        if (result && key.count && learn(r, f, &key, result)) {
            release(result);
            result = NULL;
        }
    }
    free(key.data);
    forget(q);
    return result;
}

/* What a call returns, which this takes, goes to the function on top. */
static int deliver(run *r, value *result)
{
    if (!result) return -1;
    frame *fr = top(r);
    const long *w = r->m->functions[fr->function].code + fr->at;
    if (w[0] == OP_LOOP) {
        const long many = w[7];
        if (many == 1) {
            value *one = new_value(TUPLE, 0, 1);
            if (!one) {
                release(result);
                return -1;
            }
            one->fields[0] = result;
            result = one;
        }
        release(fr->carried);
        fr->carried = result;
        fr->round++;
        return result->kind == TUPLE && result->count == many ? 0 : wrong(r);
    }
    value **x = registers(r) + w[1];
    release(*x);
    *x = result;
    fr->at += w[2];
    return 0;
}

/* The number in a tensor of rank 0: whether a condition is true, or (`count`) an integer. */
static int scalar(run *r, value *v, int count, long *found)
{
    if (!v) return wrong(r);
    object *o = object_of(r, v, 0);
    if (!o) return -1;
    const array *a = array_of(o);
    if (!count && is_array(r->m, o) && !a->nd && a->dtype == r->m->boolean) {
        *found = *a->data;
        py.decref(o);
        return 0;
    }
    object *args[] = {o, py.number(count)}, *n = host(r, TRUTH, 2, args);
    if (!n) return -1;
    *found = py.value(n);
    py.decref(n);
    return *found == -1 && py.occurred() ? -1 : 0;
}

/* Whether a value matches a pattern: 1 with what it binds among the arguments, 0 without, -1 after an error. */
static int matched(run *r, const long *pattern, long n, value *v, request *q)
{
    const long *end = pattern + n;
    const long before = q->args.count;
    vector *left = &r->given;
    left->count = 0;
    value **first = pushed(left, 1, sizeof(value *));
    if (!first) return -1;
    *first = v;
    while (pattern < end) {
        if (!left->count) return wrong(r);
        v = ((value **)left->data)[--left->count];
        if (!v) return wrong(r);
        const long form = *pattern++;
        if (form == BIND && add_arg(r, q, v)) return -1;
        if (form == DROP || form == BIND) continue;
        if (v->kind != (form == CASE_OF ? RECORD : TUPLE)) return wrong(r);
        if (form == CASE_OF && v->tag != *pattern++) {
            while (q->args.count > before) release(((value **)q->args.data)[--q->args.count]);
            return 0;
        }
        const long fields = *pattern++;
        value **to = pushed(left, fields, sizeof(value *));
        if (!to) return -1;
        if (v->count != fields) return wrong(r);
        for (long k = 0; k < fields; k++) to[k] = v->fields[fields - 1 - k];
    }
    return 1;
}

static int request_match(run *r, const long *w, request *q)
{
    value *v = registers(r)[w[4]];
    const long *args = w + 5, *sizes = args + 1 + *args, *clause = sizes + 1 + *sizes;
    for (long left = *clause++; left > 0; left--, clause += 2 + clause[1]) {
        const int found = v ? matched(r, clause + 2, clause[1], v, q) : wrong(r);
        if (found < 0) return -1;
        if (!found) continue;
        q->function = clause[0];
        return add_args(r, q, args) && add_sizes(r, q, sizes) ? 0 : -1;
    }
    return fail(r, NO_CLAUSE, top(r)->function, 0);
}

static int request_value(run *r, const long *w, request *q)
{
    const value *called = registers(r)[w[4]];
    if (!called || called->kind != CLOSURE) return wrong(r);
    if (!add_args(r, q, w + 5)) return -1;
    for (long k = 1; k < called->count; k++) {
        if (add_arg(r, q, called->fields[k])) return -1;
    }
    const value *sizes = called->fields[0];
    long *to = pushed(&q->sizes, sizes->count, sizeof(long));
    if (!to) return -1;
    for (long k = 0; k < sizes->count; k++) to[k] = sizes->fields[k]->count;
    q->function = called->tag;
    return 0;
}

/* The next round of a loop; 1 behind the last one, whose result then is in its register. */
static int request_round(run *r, const long *w, request *q)
{
    frame *fr = top(r);
    value **x = registers(r);
    const long *carried = w + 7, *invariant = carried + 1 + *carried, *sizes = invariant + 1 + *invariant;
    long n, bound;
    if (w[5] >= 0 ? scalar(r, x[w[5]], 1, &n) : size_at(r, w[4], &n)) return -1;
    if (w[6] >= 0) {
        if (size_at(r, w[6], &bound)) return -1;
        if (n > bound) return fail(r, OVER_BOUND, n, bound);
    }
    if (!fr->carried) {
        value *v = new_value(TUPLE, 0, *carried);
        if (!v) return -1;
        fr->carried = v;
        for (long k = 0; k < *carried; k++) {
            if (!x[carried[1 + k]]) return wrong(r);
            v->fields[k] = retained(x[carried[1 + k]]);
        }
    }
    if (fr->round >= n) {
        value *v = fr->carried;
        value *result = *carried == 1 ? retained(v->fields[0]) : retained(v);
        release(v);
        fr->carried = NULL;
        fr->round = 0;
        release(x[w[1]]);
        x[w[1]] = result;
        fr->at += w[2];
        return 1;
    }
    object *args[] = {py.number(fr->round)};
    value *index = new_object(ARRAY, host(r, INDEX, 1, args));
    if (!index) return -1;
    const int status = add_arg(r, q, index);
    release(index);
    if (status) return -1;
    for (long k = 0; k < *carried; k++) {
        if (add_arg(r, q, fr->carried->fields[k])) return -1;
    }
    q->function = w[3];
    return add_args(r, q, invariant) && add_sizes(r, q, sizes) ? 0 : -1;
}

/* The values of a list of registers as fields of a new value, behind `behind` others. */
static value *gather_fields(run *r, enum kind kind, int tag, const long *w, long behind)
{
    const long n = *w++;
    value *v = new_value(kind, tag, behind + n);
    for (long k = 0; v && k < n; k++) {
        value *f = registers(r)[w[k]];
        if (!f) {
            wrong(r);
            release(v);
            return NULL;
        }
        v->fields[behind + k] = retained(f);
    }
    return v;
}

static value *run_step(run *r, const long *w)
{
    const int check = w[0] == OP_CHECK;
    const long *read = check ? w + 1 : w + 5, n = check ? 1 : w[4];
    object *list = py.list_new(n);
    for (long k = 0; list && k < n; k++) {
        value *v = registers(r)[read[k]];
        object *one = !v ? NULL : check ? stand_in(r, v) : object_of(r, v, 0);
        if (one) {
            py.list_set(list, k, one);
        } else {
            if (!v) wrong(r);
            py.decref(list);
            list = NULL;
        }
    }
    entry *e = top(r)->entry;
    object *args[] = {py.number(top(r)->function), py.number(w[3]), list, kept(e ? e->slots : r->m->ellipsis)};
    object *found = host(r, STEP, 4, args);
    int unfit;
    value *v = !found ? NULL : check ? retained(registers(r)[*read]) : value_of(r, UNTYPED, found, 0, &unfit);
    if (found) py.decref(found);
    return v;
}

/* What an instruction that calls nothing makes; NULL after an error. */
static value *made(run *r, const long *w)
{
    value **x = registers(r), *v;
    switch (w[0]) {
    case OP_CONSTRUCT:
        if ((v = gather_fields(r, RECORD, (int)w[4], w + 5, 0))) v->of.data = w[3];
        return v;
    case OP_TUPLE:
        return gather_fields(r, TUPLE, 0, w + 3, 0);
    case OP_GET_ITEM: {
        value *whole = x[w[3]];
        if (!whole || whole->kind != TUPLE || w[4] < 0 || w[4] >= whole->count) break;
        return retained(whole->fields[w[4]]);
    }
    case OP_CLOSE: {
        request q = {0};
        if (add_sizes(r, &q, w + 5 + w[4]) && (v = gather_fields(r, CLOSURE, (int)w[3], w + 4, 1))) {
            if (!(v->fields[0] = sizes_value(q.sizes.data, q.sizes.count))) {
                release(v);
                v = NULL;
            }
        } else {
            v = NULL;
        }
        free(q.sizes.data);
        return v;
    }
    case OP_NEW_REFERENCE: {
        if (!x[w[3]] || !(v = new_value(REFERENCE, 0, 3))) break;
        v->fields[0] = retained(x[w[3]]);
        v->fields[1] = r->references;
        v->fields[2] = r->references->fields[2];
        if (v->fields[2]) v->fields[2]->fields[1] = v;
        r->references->fields[2] = v;
        return v;
    }
    case OP_READ: case OP_WRITE: {
        value *place = x[w[3]];
        if (!place || place->kind != REFERENCE) break;
        if (w[0] == OP_READ) return retained(place->fields[0]);
        if (!x[w[4]]) break;
        value *before = place->fields[0];
        place->fields[0] = retained(x[w[4]]);
        release(before);
        return retained(place);
    }
    case OP_SIZES: {
        request q = {0};
        v = add_sizes(r, &q, w + 3) ? sizes_value(q.sizes.data, q.sizes.count) : NULL;
        free(q.sizes.data);
        return v;
    }
    case OP_SHAPE_OF: {
        shape s;
        if (!x[w[3]] || !has_shape(x[w[3]], &s)) break;
        return sizes_value(s.dims, s.nd);
    }
    case OP_STEP: case OP_CHECK:
        return run_step(r, w);
    default: break;
    }
    if (!py.occurred()) wrong(r);
    return NULL;
}

/* Let signals and other threads have their turn. */
static int pause_for_others(void)
{
    if (py.signals()) return -1;
    py.lock(py.unlock());
    return 0;
}

/* The result of the call on top of the stack; NULL after an error. */
static value *execute(run *r, request *q)
{
    for (;;) {
        frame *fr = top(r);
        const long *w = r->m->functions[fr->function].code + fr->at;
        value **x = registers(r);
        int last = 0, status;
        if (++r->ticks >= TICKS) {
            r->ticks = 0;
            if (pause_for_others()) return NULL;
        }
        switch (w[0]) {
        case OP_RETURN: {
            value *result = x[w[3]];
            if (!result) {
                wrong(r);
                return NULL;
            }
            retained(result);
            if (r->frames.count == 1) return result;
            leave(r);
            if (deliver(r, result)) return NULL;
            continue;
        }
        case OP_FREE:
            for (long k = 0; k < w[3]; k++) {
                release(x[w[4 + k]]);
                x[w[4 + k]] = NULL;
            }
            fr->at += w[2];
            continue;
        case OP_CALL:
            q->function = w[4];
            last = (int)w[3];
            const long *sizes = add_args(r, q, w + 5);
            status = sizes && add_sizes(r, q, sizes) ? 0 : -1;
            break;
        case OP_CALL_VALUE:
            last = (int)w[3];
            status = request_value(r, w, q);
            break;
        case OP_IF: {
            long yes;
            last = (int)w[3];
            status = scalar(r, x[w[4]], 0, &yes);
            if (status) break;
            q->function = w[yes ? 5 : 6];
            const long *behind = add_args(r, q, w + 7);
            status = behind && add_sizes(r, q, behind) ? 0 : -1;
            break;
        }
        case OP_MATCH:
            last = (int)w[3];
            status = request_match(r, w, q);
            break;
        case OP_LOOP:
            status = request_round(r, w, q);
            if (status > 0) continue;
            break;
        default: {
            value *v = made(r, w);
            if (!v || deliver(r, v)) return NULL;
            continue;
        }
        }
        if (status) return NULL;
        const function *f = r->m->functions + q->function;
        if (f->loop) {
            value *result = NULL;
            status = over_list(r, q, &result);
            if (status < 0) return NULL;
            if (!status) {
                forget(q);
                if (deliver(r, result)) return NULL;
                continue;
            }
        }
        status = f->stacked ? enter(r, q, last) : deliver(r, call_plain(r, q));
        if (status) return NULL;
    }
}

static object *run_from(run *r, long number, object *args, const long *nodes, long *failed)
{
    request q = {.function = number};
    object *found = NULL;
    value *result = NULL;
    for (long k = 0, n = py.tuple_size(args); k < n; k++) {
        int unfit;
        value *v = value_of(r, nodes ? nodes[k] : UNTYPED, py.tuple_item(args, k), 1, &unfit);
        if (unfit) found = kept(r->m->ellipsis);
        value **to = v ? pushed(&q.args, 1, sizeof(value *)) : NULL;
        if (!to) {
            release(v);
            goto end;
        }
        *to = v;
    }
    if (r->m->functions[number].loop) {
        const int status = over_list(r, &q, &result);
        if (status < 0) goto end;
    }
    if (!result && !enter(r, &q, 0)) result = execute(r, &q);
    if (result) found = object_of(r, result, 1);
end:
    if (r->frames.count) {
        failed[0] = top(r)->function;
        failed[1] = top(r)->at;
    }
    release(result);
    forget(&q);
    free(q.args.data);
    free(q.sizes.data);
    while (r->frames.count) leave(r);
    return found;
}

/* What a function returns for a tuple of arguments, read by these nodes, or, where that is NULL, as Python has converted them. The
 * ellipsis where they do not fit, NULL with an error of Python's, and in `failed` the function and place that it comes from. At most
 * `most` calls are recorded, none if that is negative, and `deepest` are nested. */
object *mi_run(machine *m, long number, object *args, const long *nodes, long most, long deepest, long *failed)
{
    run r = {.m = m, .most = most, .deepest = deepest};
    object *found = NULL;
    r.sizes = room((size_t)m->symbols * sizeof(long));
    if (most >= 0 && !(r.sites = calloc((size_t)m->n_functions + 1, sizeof(site *)))) py.no_memory();
    r.references = new_value(REFERENCE, 0, 3);
    failed[0] = -1;
    if (r.sizes && r.references && (most < 0 || r.sites)) {
        for (long k = 0; k < m->symbols; k++) r.sizes[k] = -1;
        found = run_from(&r, number, args, nodes, failed);
    }
    end_recording(&r);
    /* references may hold each other */
    for (value *v; r.references && (v = r.references->fields[2]);) {
        value *held = v->fields[0];
        r.references->fields[2] = v->fields[2];
        if (v->fields[2]) v->fields[2]->fields[1] = r.references;
        v->fields[0] = v->fields[1] = v->fields[2] = NULL;
        release(held);
    }
    release(r.references);
    free(r.sizes);
    free(r.scratch.data);
    free(r.spans.data);
    free(r.frames.data);
    free(r.registers.data);
    return found;
}

/* The value of a constant of a program. */
value *mi_constant(object *o)
{
    value *v = new_object(ARRAY, kept(o));
    if (v) v->tag = 1;
    return v;
}

/* Let go of all that a machine has kept. */
void mi_end(machine *m)
{
    for (long k = 0; k < m->n_functions; k++) {
        function *f = m->functions + k;
        forget_kinds(f);
        forget_entries(f);
        for (long i = f->parameters; f->stacked && i < f->registers; i++) release(f->constants[i]);
    }
}

/* The addresses of the elements of arrays in a list. */
void mi_addresses(object *list, char **found)
{
    for (long k = 0, n = py.list_size(list); k < n; k++) found[k] = array_of(py.list_item(list, k))->data;
}

/* The functions of Python's that all machines call, and the bytes of the header of objects. */
void mi_begin(const python *functions, long bytes)
{
    begin(functions, bytes);
}
