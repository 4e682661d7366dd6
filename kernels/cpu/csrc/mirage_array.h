/* Arrays of NumPy as its interface for C fixes them: objects of Python's with these fields behind their headers, the last field of
 * which is their type. `header` is the bytes of that. */
#ifndef MIRAGE_ARRAY_H
#define MIRAGE_ARRAY_H

typedef void object; /* PyObject */

/* PyArrayObject_fields. */
typedef struct {
    char *data;
    int nd;
    const long *dims;
    const long *strides;
    object *base;
    object *dtype;
    int flags;
} array;

enum { CONTIGUOUS = 0x1, ALIGNED = 0x100, WRITEABLE = 0x400 };

static inline object *type_at(const object *o, long header)
{
    return *(object *const *)((const char *)o + header - sizeof(object *));
}

static inline const array *array_at(const object *o, long header) { return (const array *)((const char *)o + header); }

static inline int is_dense(const array *a) { return (a->flags & (CONTIGUOUS | ALIGNED)) == (CONTIGUOUS | ALIGNED); }

#endif
