/* What C calls of Python: functions of its stable interface (PEP 384), by addresses, as Python's headers are seldom installed. All of
 * them need the interpreter's lock. */
#ifndef MIRAGE_PYTHON_H
#define MIRAGE_PYTHON_H

#include "mirage_array.h"

#include <stdlib.h>

/* In the order of launch/interpreter.py. */
typedef struct {
    void (*incref)(object *);
    void (*decref)(object *);
    object *(*tuple_new)(long);
    int (*tuple_set)(object *, long, object *);
    object *(*tuple_item)(object *, long);
    long (*tuple_size)(object *);
    object *(*list_new)(long);
    int (*list_set)(object *, long, object *);
    object *(*list_item)(object *, long);
    long (*list_size)(object *);
    object *(*attribute)(object *, object *);
    object *(*item)(object *, object *);
    object *(*slice)(object *, long, long);
    object *(*call)(object *, object *, object *);
    object *(*number)(long long);
    long long (*value)(object *);
    object *(*occurred)(void);
    int (*matches)(object *);
    void (*clear)(void);
    object *(*no_memory)(void);
    int (*signals)(void);
    void *(*unlock)(void);
    void (*lock)(void *);
    object *(*capsule)(void *, const char *, void (*)(object *));
    void *(*pointer)(object *, const char *);
    int (*is_capsule)(object *, const char *);
    void *(*as_pointer)(object *);
    object *(*from_pointer)(void *);
    object *(*call_objects)(object *, ...);
} python;

static python py;
/* bytes of the header of all objects */
static long header;

static void begin(const python *functions, long bytes)
{
    py = *functions;
    header = bytes;
}

static object *type_of(const object *o) { return type_at(o, header); }

static const array *array_of(const object *o) { return array_at(o, header); }

static object *kept(object *o)
{
    py.incref(o);
    return o;
}

/* Memory, or NULL with Python's error for that. */
static void *room(size_t bytes)
{
    void *found = malloc(bytes ? bytes : 1);
    if (!found) py.no_memory();
    return found;
}

/* What a function returns for so many arguments, whose references it takes, NULL after an error; one that is NULL is an error. */
static object *called(object *function, long many, object *const *args)
{
    object *tuple = py.tuple_new(many), *found = NULL;
    int whole = tuple != NULL;
    for (long k = 0; k < many; k++) {
        if (!args[k]) {
            whole = 0;
        } else if (tuple) {
            py.tuple_set(tuple, k, args[k]);
        } else {
            py.decref(args[k]);
        }
    }
    if (whole) found = py.call(function, tuple, NULL);
    if (tuple) py.decref(tuple);
    return found;
}

/* Put an item, whose reference this takes, in a new list or tuple; without one, that is dropped. */
static void put(object **whole, int (*set)(object *, long, object *), long k, object *one)
{
    if (one) {
        set(*whole, k, one);
    } else {
        py.decref(*whole);
        *whole = NULL;
    }
}

/* A vector that grows. */
typedef struct {
    void *data;
    long count, room;
} vector;

/* Room for `more` items of `size` bytes behind those that are there, which the vector then has; NULL after an error. */
static void *pushed(vector *v, long more, size_t size)
{
    if (!v->data || v->count + more > v->room) {
        const long wanted = 2 * (v->count + more) + 16;
        void *data = realloc(v->data, (size_t)wanted * size);
        if (!data) {
            py.no_memory();
            return NULL;
        }
        v->data = data;
        v->room = wanted;
    }
    v->count += more;
    return (char *)v->data + (size_t)(v->count - more) * size;
}

#endif
