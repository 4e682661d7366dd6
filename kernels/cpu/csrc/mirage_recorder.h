/* Calls of functions of tensors that are recorded, and run when something needs their results: equal ones as one batched call.
 *
 * The control flow goes on with placeholders. Calls wait in levels, each for results of lower ones alone; those of a level that are
 * of one function, with tensors of the same shapes and the same shared tensors, are one call of the function's batched form, whose
 * results they are rows of. Sources: TensorFlow Fold (Looks and others, 2017), DyNet (Neubig and others, 2017). */
#ifndef MIRAGE_RECORDER_H
#define MIRAGE_RECORDER_H

#include "mirage_convert.h"

/* Shapes of arguments of which a function remembers what it returns, at most. */
#define KINDS 64

/* Append the tensors and shapes in a value of a form; the words behind the form, NULL where the value has another. */
static const long *flattened(const long *form, value *v, vector *found)
{
    if (!v) return NULL;
    if (*form < 0) {
        value **to = pushed(found, 1, sizeof(value *));
        if (!to) return NULL;
        *to = v;
        return form + 1;
    }
    if (v->kind != TUPLE || v->count != *form) return NULL;
    const long n = *form++;
    for (long k = 0; k < n && form; k++) form = flattened(form, v->fields[k], found);
    return form;
}

/* The tensors and shapes in the arguments of a call, appended; whether they are of the function's forms. */
static int flat_arguments(const function *f, value *const *args, vector *found)
{
    const long *form = f->forms;
    const long before = found->count;
    for (long k = 0; k < f->parameters && form; k++) form = flattened(form, args[k], found);
    return form && found->count == before + f->leaves;
}

/* Whether two values are the same in all calls: shapes are made anew. */
static int is_same(const value *a, const value *b)
{
    if (a == b) return 1;
    if (a->kind != b->kind || a->count != b->count) return 0;
    if (a->kind == ARRAY) return a->of.object == b->of.object;
    if (a->kind == PENDING) return a->of.group == b->of.group && a->tag == b->tag;
    if (!is_sizes(a) || !is_sizes(b)) return 0;
    for (long k = 0; k < a->count; k++) {
        if (a->fields[k]->count != b->fields[k]->count) return 0;
    }
    return 1;
}

/* Append the form of a result, and its tensors, to words and shapes; 0 where it has other parts, -1 after an error. */
static int form_of(const value *v, vector *words, vector *tensors)
{
    long *to = pushed(words, 1, sizeof(long));
    if (!to) return -1;
    *to = v->kind == TUPLE ? v->count : -1;
    if (v->kind == ARRAY) {
        const value **t = pushed(tensors, 1, sizeof(value *));
        if (!t) return -1;
        *t = v;
        return 1;
    }
    if (v->kind != TUPLE) return 0;
    int status = 1;
    for (long k = 0; k < v->count && status > 0; k++) status = form_of(v->fields[k], words, tensors);
    return status;
}

/* A kind of results of these forms, whose words it takes, and with the shapes of these arrays but for `skip` leading dims. */
static kind_of *new_kind(run *r, vector *words, object *const *arrays, long width, int skip)
{
    kind_of *k = calloc(1, sizeof(kind_of));
    shape *shapes = calloc((size_t)width + 1, sizeof(shape));
    long *bytes = calloc((size_t)width + 1, sizeof(long));
    if (!k || !shapes || !bytes) {
        free(k);
        free(shapes);
        free(bytes);
        py.no_memory();
        return NULL;
    }
    *k = (kind_of){.refs = 1, .words = words->data, .n_words = words->count, .shapes = shapes, .bytes = bytes};
    *words = (vector){0};
    for (; k->width < width; k->width++) {
        const shape s = shape_of_array(arrays[k->width]);
        const long whole = bytes_of(r, arrays[k->width]);
        long *dims = whole < 0 ? NULL : room((size_t)s.nd * sizeof(long));
        if (!dims) {
            release_kind(k);
            return NULL;
        }
        for (int i = 0; i < s.nd - skip; i++) dims[i] = s.dims[i + skip];
        shapes[k->width] = (shape){kept(s.dtype), s.nd - skip, dims};
        bytes[k->width] = skip && s.dims[0] ? whole / s.dims[0] : whole;
    }
    return k;
}

static void forget_kinds(function *f)
{
    for (kind_of *next; f->kinds; f->kinds = next) {
        next = f->kinds->next;
        release_kind(f->kinds);
    }
    f->n_kinds = 0;
}

/* Remember what a function returned for arguments whose shapes are `key`, which this takes. */
static int learn(run *r, function *f, vector *key, const value *result)
{
    vector words = {0}, tensors = {0};
    const int found = form_of(result, &words, &tensors);
    object **arrays = tensors.data;
    for (long k = 0; k < tensors.count; k++) arrays[k] = ((value **)tensors.data)[k]->of.object;
    kind_of *kind = found > 0 ? new_kind(r, &words, arrays, tensors.count, 0) : NULL;
    free(words.data);
    free(tensors.data);
    if (kind) {
        if (f->n_kinds == KINDS) forget_kinds(f);
        kind->key = key->data;
        kind->n_key = key->count;
        *key = (vector){0};
        kind->next = f->kinds;
        f->kinds = kind;
        f->n_kinds++;
    }
    return found && !kind ? -1 : 0;
}

/* Placeholders of a form for a call of a group, of which `leaf` is the next result; NULL after an error. */
static value *placeholders(const long **form, group *g, long row, int *leaf)
{
    const long n = *(*form)++;
    if (n < 0) {
        value *v = new_value(PENDING, (*leaf)++, 0);
        if (!v) return NULL;
        v->count = row;
        v->of.group = g;
        g->refs++;
        return v;
    }
    value *v = new_value(TUPLE, 0, n);
    for (long k = 0; v && k < n; k++) {
        if (!(v->fields[k] = placeholders(form, g, row, leaf))) {
            release(v);
            v = NULL;
        }
    }
    return v;
}

static value *placeholder(group *g, long row)
{
    const long *form = g->kind->words;
    int leaf = 0;
    return placeholders(&form, g, row, &leaf);
}

static group *new_group(long number, kind_of *kind, long level)
{
    group *g = room(sizeof(group));
    if (!g) return NULL;
    kind->refs++;
    *g = (group){.refs = 1, .function = number, .kind = kind, .level = level};
    return g;
}

/* The values in one array, a row each, or a part of where they stand, if they stand there in order. */
static object *gathered(run *r, value *const *values, long stride, long n)
{
    const value *first = values[0];
    if (first->kind == PENDING) {
        long k = 1;
        while (k < n && values[k * stride]->kind == PENDING && values[k * stride]->of.group == first->of.group
               && values[k * stride]->tag == first->tag && values[k * stride]->count == first->count + k) k++;
        if (k == n) return py.slice(first->of.group->results[first->tag], first->count, first->count + n);
    }
    shape s;
    has_shape(first, &s);
    const long bytes = first->kind == PENDING ? first->of.group->kind->bytes[first->tag] : bytes_of(r, first->of.object);
    object *whole = bytes < 0 ? NULL : empty(r, s, n);
    if (!whole) return NULL;
    char *to = array_of(whole)->data;
    for (long k = 0; k < n; k++, to += bytes) {
        const value *v = values[k * stride];
        const int pending = v->kind == PENDING;
        const char *from = array_of(pending ? v->of.group->results[v->tag] : v->of.object)->data;
        memcpy(to, from + (pending ? v->count * bytes : 0), (size_t)bytes);
    }
    return whole;
}

/* The arguments of a call as a list of Python's. */
static object *arguments(run *r, value *const *args, long n)
{
    object *list = py.list_new(n);
    for (long k = 0; list && k < n; k++) put(&list, py.list_set, k, object_of(r, args[k], 0));
    return list;
}

/* What a function of Python's returns for arguments that this takes. */
static object *call_python(run *r, long number, object *args, object *sizes)
{
    object *given[] = {py.number(number), args, sizes};
    return host(r, CALL, 3, given);
}

static object *no_sizes(void) { return py.tuple_new(0); }

/* Whether an object is the results of a group: as many arrays, of these shapes and with a row for each call. */
static int is_result_of(run *r, const group *g, object *found)
{
    if (type_of(found) != r->m->tuple || py.tuple_size(found) != g->kind->width) return 0;
    for (long k = 0; k < g->kind->width; k++) {
        const object *one = py.tuple_item(found, k);
        const shape want = g->kind->shapes[k];
        if (!is_array(r->m, one) || !is_dense(array_of(one))) return 0;
        const array *a = array_of(one);
        if (a->nd < 1 || a->dims[0] != g->calls || !same_shape((shape){a->dtype, a->nd - 1, a->dims + 1}, want)) return 0;
    }
    return 1;
}

/* All calls of a group at once; NULL where they cannot be, without an error where one by one they may. */
static object *together(run *r, group *g, value *const *given)
{
    const function *f = r->m->functions + g->function;
    object *args = py.list_new(f->leaves);
    for (long k = 0; args && k < f->leaves; k++) put(&args, py.list_set, k, f->shared[k] ? object_of(r, given[k], 0) : gathered(r, given + k, f->leaves, g->calls));
    object *found = args ? call_python(r, f->batched, args, no_sizes()) : NULL;
    if (!found && py.matches(r->m->error)) py.clear();
    return found;
}

/* The calls of a group one by one, with their results in one array each. */
static object *one_by_one(run *r, group *g)
{
    const function *f = r->m->functions + g->function;
    const long n = g->calls, width = g->kind->width;
    value **results = calloc((size_t)(n * width) + 1, sizeof(value *));
    object *whole = NULL;
    int status = results ? 0 : -1;
    if (!results) py.no_memory();
    for (long i = 0; i < n && !status; i++) {
        value *const *call = (value **)g->args.data + i * f->parameters;
        object *args = arguments(r, call, f->parameters);
        object *found = args ? call_python(r, g->function, args, no_sizes()) : NULL;
        int unfit;
        value *v = found ? value_of(r, UNTYPED, found, 0, &unfit) : NULL;
        if (found) py.decref(found);
        vector words = {0}, tensors = {0};
        status = !v || form_of(v, &words, &tensors) < 0 ? -1 : 0;
        if (!status) {
            int same = words.count == g->kind->n_words && tensors.count == width;
            same = same && !memcmp(words.data, g->kind->words, (size_t)words.count * sizeof(long));
            for (long k = 0; same && k < width; k++) {
                value *t = ((value **)tensors.data)[k];
                same = same_shape(shape_of_array(t->of.object), g->kind->shapes[k]);
                if (same) results[i * width + k] = retained(t);
            }
            if (!same) status = fail(r, OTHER_RESULTS, g->function, 0);
        }
        release(v);
        free(words.data);
        free(tensors.data);
    }
    if (!status) whole = py.tuple_new(width);
    for (long k = 0; whole && k < width; k++) put(&whole, py.tuple_set, k, gathered(r, results + k, width, n));
    for (long k = 0; results && k < n * width; k++) release(results[k]);
    free(results);
    return whole;
}

/* The arrays of a tuple, which this takes, become the results of a group. */
static int deliver_results(group *g, object *found)
{
    object **results = room((size_t)g->kind->width * sizeof(object *));
    for (long k = 0; results && k < g->kind->width; k++) results[k] = kept(py.tuple_item(found, k));
    py.decref(found);
    g->results = results;
    return results ? 0 : -1;
}

/* Compute the results of a group; -1 with the error of its calls. */
static int run_group(run *r, group *g)
{
    const function *f = r->m->functions + g->function;
    vector given = {0};
    int status = 0;
    for (long i = 0; i < g->calls && !status; i++) {
        if (!flat_arguments(f, (value **)g->args.data + i * f->parameters, &given)) status = fail(r, MALFORMED, g->function, 0);
    }
    object *found = NULL;
    if (!status) {
        if (g->calls > 1) found = together(r, g, given.data);
        if (!found && !py.occurred()) found = one_by_one(r, g);
        if (found && !is_result_of(r, g, found)) {
            py.decref(found);
            found = NULL;
            fail(r, OTHER_RESULTS, g->function, 0);
        }
        status = found ? deliver_results(g, found) : -1;
    }
    free(given.data);
    forget_args(g);
    return status;
}

/* Let go of groups by level: first of all arguments, so that what waits for others is not the last to hold them. */
static void release_levels(vector *levels)
{
    for (int forget = 1; forget >= 0; forget--) {
        for (long level = 0; level < levels->count; level++) {
            for (group *g = ((group **)levels->data)[level], *next; g; g = next) {
                next = g->next;
                if (forget) {
                    forget_args(g);
                } else {
                    release_group(g);
                }
            }
        }
    }
    free(levels->data);
}

/* Run all that is recorded. */
static int flush(run *r)
{
    vector levels = r->levels;
    r->levels = (vector){0};
    r->recorded = 0;
    int status = 0;
    for (long level = 0; level < levels.count && !status; level++) {
        for (group *g = ((group **)levels.data)[level]; g && !status; g = g->next) status = run_group(r, g);
    }
    release_levels(&levels);
    return status;
}

/* The site of a call whose tensors and shapes are given: NULL where its results are not known yet, or after an error (-1). */
static int find_site(run *r, long number, value *const *given, const vector *key, site **found)
{
    function *f = r->m->functions + number;
    *found = NULL;
    for (site *s = r->sites[number]; s; s = s->next) {
        if (!same_key(s->kind->key, s->kind->n_key, key)) continue;
        long k = 0;
        while (k < f->leaves && (!f->shared[k] || is_same(s->shared[k], given[k]))) k++;
        if (k == f->leaves) {
            *found = s;
            return 0;
        }
    }
    kind_of *kind = f->kinds;
    while (kind && !same_key(kind->key, kind->n_key, key)) kind = kind->next;
    if (!kind) return 0;
    site *s = calloc(1, sizeof(site));
    value **shared = calloc((size_t)f->leaves + 1, sizeof(value *));
    if (!s || !shared) {
        free(s);
        free(shared);
        py.no_memory();
        return -1;
    }
    for (long k = 0; k < f->leaves; k++) shared[k] = f->shared[k] ? retained(given[k]) : NULL;
    kind->refs++;
    *s = (site){.next = r->sites[number], .kind = kind, .shared = shared};
    r->sites[number] = *found = s;
    return 0;
}

/* The group of a site for calls of a level, which have not run. */
static group *find_group(run *r, site *s, long number, long level)
{
    while (s->groups.count <= level) {
        group **to = pushed(&s->groups, 1, sizeof(group *));
        if (!to) return NULL;
        *to = NULL;
    }
    group **at = (group **)s->groups.data + level;
    if (*at && !(*at)->results) return *at;
    while (r->levels.count <= level) {
        group **to = pushed(&r->levels, 1, sizeof(group *));
        if (!to) return NULL;
        *to = NULL;
    }
    group *g = new_group(number, s->kind, level);
    if (!g) return NULL;
    if (*at) release_group(*at);
    *at = g;
    g->refs++;
    group **list = (group **)r->levels.data + level;
    g->next = *list;
    *list = g;
    return g;
}

/* Record a call of a function with a batched form; its result is of placeholders. 1 where it has to run at once, of which `key` then
 * is what to learn; -1 after an error. */
static int record(run *r, long number, value *const *args, vector *key, value **result)
{
    function *f = r->m->functions + number;
    vector *given = &r->given;
    given->count = 0;
    if (!flat_arguments(f, args, given)) return py.occurred() ? -1 : 1;
    value **all = given->data;
    long level = 0;
    for (long k = 0; k < f->leaves; k++) {
        const int known = shape_key(key, all[k]);
        if (known <= 0 || (!f->shared[k] && all[k]->kind == TUPLE)) {
            key->count = 0;
            return known < 0 ? -1 : 1;
        }
        const group *g = all[k]->kind == PENDING ? all[k]->of.group : NULL;
        if (g && !g->results && g->level >= level) level = g->level + 1;
    }
    site *s;
    if (find_site(r, number, all, key, &s)) return -1;
    if (!s) return 1;
    group *g = find_group(r, s, number, level);
    value **to = g ? pushed(&g->args, f->parameters, sizeof(value *)) : NULL;
    if (!to) return -1;
    for (long k = 0; k < f->parameters; k++) to[k] = retained(args[k]);
    const long row = g->calls++;
    g->refs++;
    const int full = ++r->recorded > r->most && flush(r);
    *result = full ? NULL : placeholder(g, row);
    release_group(g);
    return *result ? 0 : -1;
}

static void end_recording(run *r)
{
    release_levels(&r->levels);
    for (long k = 0; r->sites && k < r->m->n_functions; k++) {
        for (site *s = r->sites[k], *next; s; s = next) {
            next = s->next;
            for (long i = 0; i < r->m->functions[k].leaves; i++) release(s->shared[i]);
            for (long i = 0; i < s->groups.count; i++) {
                group *g = ((group **)s->groups.data)[i];
                if (g) release_group(g);
            }
            free(s->shared);
            free(s->groups.data);
            release_kind(s->kind);
            free(s);
        }
    }
    free(r->sites);
    free(r->given.data);
}

#endif
