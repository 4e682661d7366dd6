/* Values of Python as those of the machine, and back.
 *
 * Arguments are read as their types say, by nodes: words that begin with one of `node_kind`. Whatever is not as it should be is
 * left to Python, which converts what can be, or says what is wrong; what it makes is read without a type.
 *
 *     TENSOR   element type, rank, and of each dim its size, -1 for any, or -2-k for the size that dim k of all arguments has
 *     FIELDS   number of fields, their nodes
 *     ITEMS    node of the items of a list
 *     CASES    the data type, of each constructor where its fields are: their number, and of each its name and node
 *     ANYTHING
 */
#ifndef MIRAGE_CONVERT_H
#define MIRAGE_CONVERT_H

#include "mirage_run.h"

enum node_kind { TENSOR, FIELDS, ITEMS, CASES, ANYTHING };
enum { UNTYPED = -1 };

/* An object that is to be read, and where its value belongs; or, where `to` is NULL, the end of the parts of value `node`. */
typedef struct {
    long node;
    object *object;
    value **to;
} reading;

/* Values of objects with parts, by these and their nodes; `open` while the parts are read. */
typedef struct {
    object *object;
    long node, open;
    value *value;
} met;

typedef struct {
    vector tasks, met;
    long *slots, n_slots; /* numbers in `met` plus 1, by hash */
} reader;

static size_t hash_of(const object *o, long node) { return (((size_t)o >> 4) ^ (size_t)node * 0x9E3779B9u) * 0x9E3779B97F4A7C15u >> 20; }

static void place_met(reader *d, long k)
{
    const met *e = (met *)d->met.data + k;
    size_t at = hash_of(e->object, e->node) & (size_t)(d->n_slots - 1);
    while (d->slots[at]) at = (at + 1) & (size_t)(d->n_slots - 1);
    d->slots[at] = k + 1;
}

static met *find_met(reader *d, const object *o, long node)
{
    if (!d->n_slots) return NULL;
    for (size_t at = hash_of(o, node);; at++) {
        const long k = d->slots[at & (size_t)(d->n_slots - 1)];
        if (!k) return NULL;
        met *e = (met *)d->met.data + k - 1;
        if (e->object == o && e->node == node) return e;
    }
}

/* Take down the value of an object with parts, which stays alive as long as the reader; its number, or -1 after an error. */
static long add_met(reader *d, object *o, long node, value *v, int open)
{
    if (2 * (d->met.count + 1) > d->n_slots) {
        const long wanted = d->n_slots ? 2 * d->n_slots : 64;
        long *slots = calloc((size_t)wanted, sizeof(long));
        if (!slots) {
            py.no_memory();
            return -1;
        }
        free(d->slots);
        d->slots = slots;
        d->n_slots = wanted;
        for (long k = 0; k < d->met.count; k++) place_met(d, k);
    }
    met *e = pushed(&d->met, 1, sizeof(met));
    if (!e) return -1;
    *e = (met){kept(o), node, open, v};
    place_met(d, d->met.count - 1);
    return d->met.count - 1;
}

/* Have an object read, whose reference this takes, NULL after an error. */
static int then_read(reader *d, long node, object *o, value **to)
{
    reading *task = o ? pushed(&d->tasks, 1, sizeof(reading)) : NULL;
    if (!task) {
        if (o) py.decref(o);
        return -1;
    }
    *task = (reading){node, o, to};
    return 0;
}

static int fits(run *r, const long *node, const object *o)
{
    const array *a = array_of(o);
    if (a->dtype != (object *)node[1] || a->nd != node[2] || !is_dense(a)) return 0;
    for (int k = 0; k < a->nd; k++) {
        long want = node[3 + k];
        if (want < -1) {
            long *size = r->sizes - 2 - want;
            if (*size < 0) *size = a->dims[k];
            want = *size;
        }
        if (want >= 0 && want != a->dims[k]) return 0;
    }
    return 1;
}

/* An array of the caller's. */
static value *given_array(run *r, object *o)
{
    const array *a = array_of(o);
    span *s = pushed(&r->spans, 1, sizeof(span));
    const long bytes = s ? bytes_of(r, o) : -1;
    if (bytes < 0) return NULL;
    *s = (span){a->data, a->data + bytes};
    value *v = new_object(ARRAY, kept(o));
    if (v) v->tag = 1;
    return v;
}

/* What Python passes on, and does not look into: functions and references. */
#define CAPSULE "mirage.value"

static void release_capsule(object *o) { release(py.pointer(o, CAPSULE)); }

static object *capsule_of(value *v)
{
    object *o = py.capsule(v, CAPSULE, release_capsule);
    if (o) retained(v);
    return o;
}

static int is_tensor(const machine *m, const object *o)
{
    if (!is_array(m, o) || !is_dense(array_of(o))) return 0;
    long k = 0;
    while (k < m->n_dtypes && array_of(o)->dtype != m->dtypes[k]) k++;
    return k < m->n_dtypes;
}

/* The value of an object of no parts, or without a type. */
static value *plain_value(run *r, object *o, int given)
{
    machine *m = r->m;
    if (type_of(o) == m->integer) {
        const long n = py.value(o);
        if (n != -1 || !py.occurred()) return new_number(n);
        py.clear();
    }
    if (py.is_capsule(o, CAPSULE)) return retained(py.pointer(o, CAPSULE));
    if (!is_array(m, o)) return new_object(OBJECT, kept(o));
    if (is_tensor(m, o)) return given ? given_array(r, o) : new_object(ARRAY, kept(o));
    object *args[] = {kept(o)}, *found = host(r, TENSOR_OF, 1, args);
    if (!found) return NULL;
    value *v = is_tensor(m, found) ? given_array(r, found) : new_object(OBJECT, kept(found));
    py.decref(found);
    return v;
}

/* The fields of an object of a class, or of a record, which are read later. */
static int read_fields(run *r, reader *d, const long *node, object *o, value **made)
{
    machine *m = r->m;
    if (!node) {
        object *data = py.attribute(o, m->data_name), *index = data ? py.attribute(o, m->index_name) : NULL;
        object *fields = index ? py.attribute(o, m->fields_name) : NULL;
        long which = 0;
        int wrong = !fields;
        while (!wrong && which < m->n_data && m->data[which] != data) which++;
        if (!wrong && which == m->n_data) {
            object *args[] = {kept(data)}, *found = host(r, DATA_OF, 1, args);
            wrong = !found;
            if (found) {
                which = py.value(found);
                py.decref(found);
            }
        }
        const long tag = wrong ? 0 : py.value(index);
        value *v = wrong ? NULL : new_value(RECORD, (int)tag, py.tuple_size(fields));
        if (v) {
            v->of.data = which;
            *made = v;
            for (long k = v->count - 1; k >= 0 && !wrong; k--) {
                wrong = then_read(d, UNTYPED, kept(py.tuple_item(fields, k)), v->fields + k);
            }
        }
        if (data) py.decref(data);
        if (index) py.decref(index);
        if (fields) py.decref(fields);
        return wrong || !v ? -1 : 0;
    }
    const long data = node[1];
    const long first = m->first_class[data], cases = m->first_class[data + 1] - first;
    long k = 0;
    while (k < cases && m->classes[first + k] != type_of(o)) k++;
    if (k == cases) return 1;
    const long *fields = m->nodes + node[2 + k];
    value *v = new_value(RECORD, (int)k, fields[0]);
    if (!v) return -1;
    v->of.data = data;
    *made = v;
    for (long i = fields[0] - 1; i >= 0; i--) {
        object *part = py.attribute(o, (object *)fields[1 + 2 * i]);
        if (!part) {
            /* Python says which */
            py.clear();
            return 1;
        }
        if (then_read(d, fields[2 + 2 * i], part, v->fields + i)) return -1;
    }
    return 0;
}

static value *new_cell(const machine *m, int tag, long fields)
{
    value *v = new_value(RECORD, tag, fields);
    if (v) v->of.data = m->list;
    return v;
}

/* The items of a list or tuple as a list. */
static int read_items(run *r, reader *d, const long *node, object *o, value **made)
{
    machine *m = r->m;
    const int tuple = type_of(o) == m->tuple;
    const long n = tuple ? py.tuple_size(o) : py.list_size(o), item = node[1];
    const int tensors = m->nodes[item] == TENSOR;
    value **end = made;
    for (long k = 0; k < n; k++) {
        value *cell = *end = new_cell(m, (int)m->cons, 2);
        if (!cell) return -1;
        end = cell->fields + 1;
        object *one = tuple ? py.tuple_item(o, k) : py.list_item(o, k);
        if (!one) return -1;
        if (!tensors) {
            if (then_read(d, item, kept(one), cell->fields)) return -1;
        } else if (!is_array(m, one) || !fits(r, m->nodes + item, one)) {
            return 1;
        } else if (!(cell->fields[0] = given_array(r, one))) {
            return -1;
        }
    }
    *end = new_cell(m, (int)m->nil, 0);
    return *end ? 0 : -1;
}

static int read_one(run *r, reader *d, const reading *task, int given)
{
    machine *m = r->m;
    object *o = task->object, *type = type_of(o);
    const long *node = task->node == UNTYPED ? NULL : m->nodes + task->node;
    if (node && node[0] == TENSOR) {
        if (type != m->ndarray || !fits(r, node, o)) return 1;
        return (*task->to = given_array(r, o)) ? 0 : -1;
    }
    if (node ? node[0] == ANYTHING : type != m->tuple && type != m->record) {
        if (node) return 1;
        return (*task->to = plain_value(r, o, given)) ? 0 : -1;
    }
    met *before = find_met(d, o, task->node);
    if (before) {
        if (before->open) return 1;
        *task->to = retained(before->value);
        return 0;
    }
    const long at = d->tasks.count;
    if (then_read(d, 0, kept(o), NULL)) return -1;
    int status = 1;
    if (node && node[0] == ITEMS) {
        if (type == m->list_type || type == m->tuple) status = read_items(r, d, node, o, task->to);
    } else if (node && node[0] == CASES) {
        status = read_fields(r, d, node, o, task->to);
    } else if (!node && type == m->record) {
        status = read_fields(r, d, NULL, o, task->to);
    } else if (type == m->tuple && (!node || py.tuple_size(o) == node[1])) {
        const long n = py.tuple_size(o);
        value *v = *task->to = new_value(TUPLE, 0, n);
        status = v ? 0 : -1;
        for (long k = n - 1; k >= 0 && !status; k--) {
            status = then_read(d, node ? node[2 + k] : UNTYPED, kept(py.tuple_item(o, k)), v->fields + k);
        }
    }
    if (status) return status;
    const long k = add_met(d, o, task->node, *task->to, d->tasks.count > at + 1);
    ((reading *)d->tasks.data)[at].node = k;
    return k < 0 ? -1 : 0;
}

/* The value of an object, by a node or `UNTYPED`; `given` where its arrays are the caller's. NULL with `*unfit` where it is not of
 * that type, or with an error. */
static value *value_of(run *r, long node, object *o, int given, int *unfit)
{
    *unfit = 0;
    if (node == UNTYPED && type_of(o) != r->m->tuple && type_of(o) != r->m->record) return plain_value(r, o, given);
    reader d = {0};
    value *root = NULL;
    int status = then_read(&d, node, kept(o), &root);
    while (!status && d.tasks.count) {
        const reading task = ((reading *)d.tasks.data)[--d.tasks.count];
        if (task.to) {
            status = read_one(r, &d, &task, given);
        } else {
            ((met *)d.met.data)[task.node].open = 0;
        }
        py.decref(task.object);
    }
    for (long k = 0; k < d.tasks.count; k++) py.decref(((reading *)d.tasks.data)[k].object);
    for (long k = 0; k < d.met.count; k++) py.decref(((met *)d.met.data)[k].object);
    free(d.tasks.data);
    free(d.met.data);
    free(d.slots);
    if (status) {
        release(root);
        root = NULL;
        if (status > 0 && node == UNTYPED) {
            fail(r, PART_OF_ITSELF, -1, 0);
        } else if (status > 0) {
            *unfit = 1;
        }
    }
    return root;
}

/* Results of more bytes are handed out as they are, where nobody else has them. */
#define FEW_BYTES (1 << 14)

/* A tensor of the caller's own. */
static object *own_array(run *r, value *v)
{
    const object *from;
    long row = 0;
    if (v->kind == ARRAY) {
        from = v->of.object;
    } else {
        if (!v->of.group->results && flush(r)) return NULL;
        from = v->of.group->results ? v->of.group->results[v->tag] : NULL;
        row = v->count;
        if (!from) {
            fail(r, MALFORMED, v->of.group->function, 0);
            return NULL;
        }
    }
    shape s;
    has_shape(v, &s);
    const long bytes = v->kind == ARRAY ? bytes_of(r, v->of.object) : v->of.group->kind->bytes[v->tag];
    if (bytes < 0) return NULL;
    char *data = array_of(from)->data + row * bytes;
    if (v->kind == ARRAY && !v->tag && bytes > FEW_BYTES) {
        const span *spans = r->spans.data;
        long k = 0;
        while (k < r->spans.count && (spans[k].to <= data || data + bytes <= spans[k].from)) k++;
        if (k == r->spans.count) {
            span *own = pushed(&r->spans, 1, sizeof(span));
            if (!own) return NULL;
            *own = (span){data, data + bytes};
            return kept(v->of.object);
        }
    }
    object *found = empty(r, s, -1);
    if (found) memcpy(array_of(found)->data, data, (size_t)bytes);
    return found;
}

/* A value that is to be written, or, where `parts` is not negative, is made of so many that are there. */
typedef struct {
    value *value;
    long parts;
} writing;

static object *made_of(run *r, value *v, long parts, object *const *done, int final)
{
    machine *m = r->m;
    const int list = final && v->kind == RECORD && v->of.data == m->list;
    object *whole = list ? py.list_new(parts) : py.tuple_new(parts);
    if (!whole) return NULL;
    for (long k = 0; k < parts; k++) {
        if (list) {
            py.list_set(whole, k, kept(done[k]));
        } else {
            py.tuple_set(whole, k, kept(done[k]));
        }
    }
    if (list || v->kind == TUPLE) return whole;
    const long first = m->first_class[v->of.data];
    const int known = v->tag >= 0 && first + v->tag < m->first_class[v->of.data + 1];
    object *class = known ? m->classes[first + v->tag] : NULL;
    if (final && class) {
        object *found = py.call(class, whole, NULL);
        py.decref(whole);
        return found;
    }
    object *args[] = {py.number(v->of.data), py.number(v->tag), whole};
    return host(r, RECORD_OF, 3, args);
}

static int then_write(run *r, vector *tasks, value *v, long parts)
{
    if (!v) return fail(r, MALFORMED, -1, 0);
    writing *task = pushed(tasks, 1, sizeof(writing));
    if (!task) return -1;
    *task = (writing){v, parts};
    return 0;
}

static int open_value(run *r, vector *tasks, value *v, int final)
{
    machine *m = r->m;
    const int list = final && v->kind == RECORD && v->of.data == m->list;
    long n = v->count;
    if (list) {
        n = 0;
        for (const value *c = v; c->kind == RECORD && c->tag == m->cons && c->count == 2 && c->fields[1]; c = c->fields[1]) n++;
    }
    if (then_write(r, tasks, v, n)) return -1;
    const long at = tasks->count;
    for (long k = 0; k < n; k++) {
        if (then_write(r, tasks, list ? v->fields[0] : v->fields[k], -1)) return -1;
        if (list) v = v->fields[1];
    }
    /* the first one is on top */
    writing *t = (writing *)tasks->data + at;
    for (long k = 0; k < n / 2; k++) {
        const writing swapped = t[k];
        t[k] = t[n - 1 - k];
        t[n - 1 - k] = swapped;
    }
    return 0;
}

static object *object_of_leaf(run *r, value *v, int final)
{
    switch (v->kind) {
    case NUMBER: return py.number(v->count);
    case OBJECT: return kept(v->of.object);
    case ARRAY: return final ? own_array(r, v) : kept(v->of.object);
    case PENDING: return final ? own_array(r, v) : row_of(r, v);
    default:
        if (!final) return capsule_of(v);
        fail(r, NO_VALUE, -1, 0);
        return NULL;
    }
}

static int is_leaf(const value *v) { return v->kind != TUPLE && v->kind != RECORD; }

/* What Python gets for a value: `final` for a caller, who has lists, objects of classes and arrays of his own. */
static object *object_of(run *r, value *v, int final)
{
    if (is_leaf(v)) return object_of_leaf(r, v, final);
    vector tasks = {0}, done = {0};
    int status = then_write(r, &tasks, v, -1);
    while (!status && tasks.count) {
        const writing task = ((writing *)tasks.data)[--tasks.count];
        if (task.parts < 0 && !is_leaf(task.value)) {
            status = open_value(r, &tasks, task.value, final);
            continue;
        }
        object *found;
        if (task.parts >= 0) {
            done.count -= task.parts;
            object **parts = (object **)done.data + done.count;
            found = made_of(r, task.value, task.parts, parts, final);
            for (long k = 0; k < task.parts; k++) py.decref(parts[k]);
        } else {
            found = object_of_leaf(r, task.value, final);
        }
        object **to = found ? pushed(&done, 1, sizeof(object *)) : NULL;
        if (to) {
            *to = found;
        } else {
            if (found) py.decref(found);
            status = -1;
        }
    }
    object *result = status ? NULL : *(object **)done.data;
    for (long k = 0; status && k < done.count; k++) py.decref(((object **)done.data)[k]);
    free(tasks.data);
    free(done.data);
    return result;
}

#endif
