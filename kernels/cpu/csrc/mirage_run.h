/* A program of the machine (machine.c), a run of it, and what a run asks of Python. Its structures are those of launch/machine.py,
 * its orders those of mirage/runtime/machine.py. */
#ifndef MIRAGE_RUN_H
#define MIRAGE_RUN_H

#include "mirage_values.h"

/* The sizes of a call: an array of Python's, and where its elements are. */
typedef struct entry {
    long refs;
    struct entry *next;
    long *key, n_key;
    object *slots;
    const long *at;
    long count;
} entry;

/* A function over a list, its first argument, with a state, its second one, as a loop (list_loops.py). `item` and `state` are the
 * forms of an item and of the state: -1 for a tensor, the number of fields of a tuple and behind it their forms. Items of more
 * bytes than `most_bytes` are read one by one, where that is not negative. */
typedef struct {
    long fewest, most_bytes, scans;
    const long *item, *state;
} list_loop;

/* `MachineFunction`. */
typedef struct {
    long stacked;          /* whether its calls are on the machine's stack; else Python calls it */
    long parameters, registers;
    const long *code;      /* of a stacked one: its instructions, see machine.c */
    value **constants;     /* what its registers hold at the start, NULL for most */
    long sized, copies;    /* whether it does anything with sizes, and whether it changes them */
    const long *shaped;    /* the parameters that have shapes, -1 behind them */
    const list_loop *loop; /* NULL without one */
    long batched;          /* the function that does many calls at once, or -1 */
    const long *forms;     /* of each parameter, as those of a list_loop */
    long leaves;           /* tensors and shapes in the arguments */
    const char *shared;    /* of each of them, whether it is the same in all calls */
    kind_of *kinds;
    entry *entries;
    long n_kinds, n_entries;
} function;

/* The functions of Python that a run calls, in the order of `_HOST`. */
enum { CALL, LOOP, SLOTS, STEP, TRUTH, INDEX, EMPTY, RECORD_OF, DATA_OF, FAIL, TENSOR_OF, N_HOST };

/* What is wrong, in the order of `_FAILURES`. */
enum { MALFORMED, TOO_DEEP, NO_CLAUSE, OTHER_RESULTS, NO_VALUE, PART_OF_ITSELF, OVER_BOUND };

/* `MachineProgram`. */
typedef struct {
    function *functions;
    long n_functions;
    object *const *host;
    const long *nodes;       /* how arguments are read, see mirage_convert.h */
    long symbols;            /* dims that arguments have in common */
    object *const *classes;  /* of each constructor of each data type, or NULL: see first_class */
    const long *first_class; /* of each data type */
    object *const *data;     /* the data types */
    long n_data, list, nil, cons;
    object *const *dtypes;   /* the element types */
    long n_dtypes;
    object *ndarray, *tuple, *list_type, *integer, *record; /* types */
    object *boolean, *ellipsis, *error; /* the element type, what stands for all other dims, and the errors of users */
    object *data_name, *index_name, *fields_name, *bytes_name; /* names of attributes */
} machine;

typedef struct {
    long function, at, base;
    entry *entry;
    long round;
    value *carried; /* of a loop that runs, else NULL */
} frame;

/* Groups of a function with the same shapes and shared values, by level. */
typedef struct site {
    struct site *next;
    kind_of *kind;
    value **shared;
    vector groups;
} site;

typedef struct {
    char *from, *to;
} span;

typedef struct {
    machine *m;
    vector frames, registers, scratch, given;
    site **sites;   /* of each function */
    vector levels;  /* groups that have not run */
    long recorded, most, deepest;
    long *sizes;    /* of the dims that arguments have in common, -1 before they are known */
    vector spans;   /* memory that results must not be in */
    value *references; /* a value without use but as the head of the list of all references */
    long ticks;
} run;

/* What a function of Python returns, as `called`. */
static object *host(run *r, int which, long many, object *const *args) { return called(r->m->host[which], many, args); }

/* Raise what is wrong, with what it is about; returns -1. */
static int fail(run *r, int what, long about, long more)
{
    object *args[] = {py.number(what), py.number(about), py.number(more)};
    object *none = host(r, FAIL, 3, args);
    if (none) py.decref(none);
    return -1;
}

/* An uninitialised array of a shape, with a dim of `rows` in front unless that is negative. */
static object *empty(run *r, shape s, long rows)
{
    const int more = rows >= 0;
    object *dims = py.tuple_new(s.nd + more);
    if (!dims) return NULL;
    for (int k = 0; k < s.nd + more; k++) py.tuple_set(dims, k, py.number(more && !k ? rows : s.dims[k - more]));
    object *args[] = {dims, kept(s.dtype)};
    return host(r, EMPTY, 2, args);
}

static long bytes_of(run *r, object *o)
{
    object *n = py.attribute(o, r->m->bytes_name);
    if (!n) return -1;
    const long found = py.value(n);
    py.decref(n);
    return found;
}

static int is_array(const machine *m, const object *o) { return type_of(o) == m->ndarray; }

static int flush(run *r);
static object *object_of(run *r, value *v, int final);

/* The tensor that a recorded call returns; whatever is recorded runs first. */
static object *row_of(run *r, value *v)
{
    group *g = v->of.group;
    if (!g->results && flush(r)) return NULL;
    if (!g->results) {
        fail(r, MALFORMED, g->function, 0);
        return NULL;
    }
    object *key = py.tuple_new(2);
    if (!key) return NULL;
    py.tuple_set(key, 0, py.number(v->count));
    py.tuple_set(key, 1, kept(r->m->ellipsis));
    object *found = py.item(g->results[v->tag], key);
    py.decref(key);
    return found;
}

#endif
