/* Values of the machine (machine.c). Each counts who refers to it, and goes with the last one. */
#ifndef MIRAGE_VALUES_H
#define MIRAGE_VALUES_H

#include "mirage_python.h"

#include <string.h>

typedef struct value value;
typedef struct group group;

enum kind { NUMBER, OBJECT, ARRAY, TUPLE, RECORD, CLOSURE, REFERENCE, PENDING };

struct value {
    long refs;
    enum kind kind;
    int tag;    /* constructor of a record, function of a closure, result of a recorded call, 1 for an array of the caller's */
    long count; /* fields, or the number, or the row of a recorded call */
    union {
        object *object;
        group *group;
        long data; /* the data type of a record */
    } of;
    value *fields[]; /* of a closure: its sizes as a tuple, its arguments; of a reference: what it holds, and its neighbours */
};

/* Shape and element type of a tensor. */
typedef struct {
    object *dtype;
    int nd;
    const long *dims;
} shape;

/* What is known of the results of a function for arguments of some shapes. `words` is the form of the result: -1 for a tensor, or
 * the number of fields of a tuple and behind it their forms. */
typedef struct kind_of {
    long refs;
    struct kind_of *next;
    long *key, n_key; /* the shapes of the arguments, as `shape_key` has them */
    long *words, n_words;
    long width;
    shape *shapes;
    long *bytes;
} kind_of;

/* Calls of one function that run together, or rows of arrays. */
struct group {
    long refs;
    group *next;
    long function, level;
    kind_of *kind;
    vector args; /* of each call, retained */
    long calls;
    object **results; /* as many as the kind has, each with a row per call; NULL before they have run */
};

static value *retained(value *v)
{
    v->refs++;
    return v;
}

/* A value with so many fields, none of which is there yet; NULL after an error. */
static value *new_value(enum kind kind, int tag, long fields)
{
    value *v = room(sizeof(value) + (size_t)fields * sizeof(value *));
    if (!v) return NULL;
    *v = (value){.refs = 1, .kind = kind, .tag = tag, .count = fields};
    memset(v->fields, 0, (size_t)fields * sizeof(value *));
    return v;
}

static value *new_number(long n)
{
    value *v = new_value(NUMBER, 0, 0);
    if (v) v->count = n;
    return v;
}

/* A value that is an object of Python's, whose reference it takes. */
static value *new_object(enum kind kind, object *o)
{
    value *v = o ? new_value(kind, 0, 0) : NULL;
    if (v) {
        v->of.object = o;
    } else if (o) {
        py.decref(o);
    }
    return v;
}

static long owned_fields(const value *v)
{
    switch (v->kind) {
    case TUPLE: case RECORD: case CLOSURE: return v->count;
    case REFERENCE: return 1;
    default: return 0;
    }
}

static void release_kind(kind_of *k)
{
    if (!k || --k->refs) return;
    for (long i = 0; i < k->width; i++) {
        py.decref(k->shapes[i].dtype);
        free((void *)k->shapes[i].dims);
    }
    free(k->shapes);
    free(k->bytes);
    free(k->words);
    free(k->key);
    free(k);
}

static void release(value *v);

static void forget_args(group *g)
{
    vector args = g->args;
    g->args = (vector){0};
    for (long k = 0; k < args.count; k++) release(((value **)args.data)[k]);
    free(args.data);
}

static void release_group(group *g)
{
    if (--g->refs) return;
    forget_args(g);
    for (long k = 0; g->results && k < g->kind->width; k++) py.decref(g->results[k]);
    free(g->results);
    release_kind(g->kind);
    free(g);
}

/* Let go of a value. Those that go with it wait in a list, as data may be as deep as memory allows. */
static void release(value *v)
{
    if (!v || --v->refs) return;
    value *dead = v;
    v->refs = 0;
    while (dead) {
        v = dead;
        dead = (value *)v->refs;
        for (long k = 0, n = owned_fields(v); k < n; k++) {
            value *f = v->fields[k];
            if (f && !--f->refs) {
                f->refs = (long)dead;
                dead = f;
            }
        }
        switch (v->kind) {
        case OBJECT: case ARRAY: py.decref(v->of.object); break;
        case PENDING: release_group(v->of.group); break;
        case REFERENCE:
            if (v->fields[1]) v->fields[1]->fields[2] = v->fields[2];
            if (v->fields[2]) v->fields[2]->fields[1] = v->fields[1];
            break;
        default: break;
        }
        free(v);
    }
}

static shape shape_of_array(const object *o)
{
    const array *a = array_of(o);
    return (shape){a->dtype, a->nd, a->dims};
}

/* Whether two tensors are alike; a tensor of rank 0 may have no place for dims. */
static int same_shape(shape a, shape b)
{
    if (a.dtype != b.dtype || a.nd != b.nd) return 0;
    for (int k = 0; k < a.nd; k++) {
        if (a.dims[k] != b.dims[k]) return 0;
    }
    return 1;
}

/* Whether a value is a tensor, and its shape. */
static int has_shape(const value *v, shape *found)
{
    if (v->kind == ARRAY) {
        *found = shape_of_array(v->of.object);
        return 1;
    }
    if (v->kind == PENDING) {
        *found = v->of.group->kind->shapes[v->tag];
        return 1;
    }
    return 0;
}

/* Whether a value is a shape, a tuple of numbers. */
static int is_sizes(const value *v)
{
    if (v->kind != TUPLE) return 0;
    for (long k = 0; k < v->count; k++) {
        if (!v->fields[k] || v->fields[k]->kind != NUMBER) return 0;
    }
    return 1;
}

/* Append what a tensor or shape is known by; 0 for any other value, -1 after an error. */
static int shape_key(vector *key, const value *v)
{
    shape s;
    if (has_shape(v, &s)) {
        long *to = pushed(key, 2 + s.nd, sizeof(long));
        if (!to) return -1;
        to[0] = (long)s.dtype;
        to[1] = s.nd;
        for (int k = 0; k < s.nd; k++) to[2 + k] = s.dims[k];
        return 1;
    }
    if (!is_sizes(v)) return 0;
    long *to = pushed(key, 2 + v->count, sizeof(long));
    if (!to) return -1;
    to[0] = 0;
    to[1] = v->count;
    for (long k = 0; k < v->count; k++) to[2 + k] = v->fields[k]->count;
    return 1;
}

static int same_key(const long *key, long n, const vector *other)
{
    return n == other->count && !memcmp(key, other->data, (size_t)n * sizeof(long));
}

#endif
