/* The loop of extraction (search/labels.py), which explains what is computed. No state outlives `extract_free`, and calls on
   different states may run at the same time. A bit set has `words` words of 64 bits, a cost `length` entries. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t values, leaves, words, length;
    int64_t max_operators, max_inputs;
    const int64_t *first;     /* per value, and one more: its first derivation */
    const double *prices;     /* per derivation: its cost */
    const double *times;      /* per derivation: the weighted sum of that */
    const uint64_t *operands; /* per derivation: a bit set of values */
    const uint8_t *exp;       /* per derivation: whether it is an exp */
    const uint8_t *foreign;   /* per derivation: whether it is a foreign difference */
    const double *least;      /* per value: a lower bound of the time that it takes */
    const uint64_t *inputs;   /* the leaves that count as inputs */
    const uint64_t *goals;    /* what is open at first */
    const double *written;    /* what that costs */
    double most;              /* what takes longer is left out */
} Problem;

typedef struct {
    double time;
    int64_t parent, derivation, next;
    int32_t operators;
    uint8_t foreign, alive;
} Label;

typedef struct {
    double key;
    int64_t label;
} Item;

/* labels with the same open values and exps; `label` is the first of them, `head` the others by whether they are foreign */
typedef struct {
    int64_t label, head[2];
} Front;

typedef struct {
    Problem p;
    Label *labels;
    uint64_t *open, *exps;
    double *costs;
    int64_t count, room;
    Item *heap;
    int64_t heaped, heap_room;
    Front *fronts;
    int64_t front_count, front_room;
    int64_t *slots; /* hash table of fronts, -1 where empty */
    int64_t slot_count;
    int64_t *done;
    int64_t done_count, done_room;
    uint64_t *now, *now_exps;
    double *cost;
    int64_t looked; /* labels */
    int64_t work;   /* what a step may still do */
} State;

/* Room for one more element of each size; 0 if there is no memory. */
static int grow(void **array, int64_t size, int64_t room) {
    void *found = realloc(*array, (size_t)(size * room));
    if (!found) return 0;
    *array = found;
    return 1;
}

static int room_for_label(State *s) {
    if (s->count < s->room) return 1;
    int64_t room = s->room ? 2 * s->room : 256, words = s->p.words * (int64_t)sizeof(uint64_t);
    if (!grow((void **)&s->labels, sizeof(Label), room) || !grow((void **)&s->open, words, room) ||
        !grow((void **)&s->exps, words, room) || !grow((void **)&s->costs, s->p.length * (int64_t)sizeof(double), room))
        return 0;
    s->room = room;
    return 1;
}

/* Of labels of equal keys, the newest comes first. */
static int before(Item a, Item b) { return a.key < b.key || (a.key == b.key && a.label > b.label); }

static int push(State *s, Item item) {
    if (s->heaped == s->heap_room) {
        int64_t room = s->heap_room ? 2 * s->heap_room : 256;
        if (!grow((void **)&s->heap, sizeof(Item), room)) return 0;
        s->heap_room = room;
    }
    int64_t i = s->heaped++;
    for (; i && before(item, s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = item;
    return 1;
}

static Item pop(State *s) {
    Item top = s->heap[0], last = s->heap[--s->heaped];
    int64_t i = 0;
    for (int64_t child = 1; child < s->heaped; child = 2 * i + 1) {
        if (child + 1 < s->heaped && before(s->heap[child + 1], s->heap[child])) child++;
        if (!before(s->heap[child], last)) break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static uint64_t hash(const State *s, const uint64_t *open, const uint64_t *exps) {
    uint64_t h = 1469598103934665603u;
    for (int64_t i = 0; i < s->p.words; i++) {
        h = (h ^ open[i]) * 1099511628211u;
        h ^= h >> 29;
        h = (h ^ exps[i]) * 1099511628211u;
        h ^= h >> 32;
    }
    return h;
}

static int rehash(State *s, int64_t slots) {
    if (!grow((void **)&s->slots, sizeof(int64_t), slots)) return 0;
    s->slot_count = slots;
    memset(s->slots, -1, (size_t)slots * sizeof(int64_t));
    for (int64_t f = 0; f < s->front_count; f++) {
        int64_t label = s->fronts[f].label, w = s->p.words;
        uint64_t at = hash(s, s->open + w * label, s->exps + w * label) & (uint64_t)(slots - 1);
        while (s->slots[at] >= 0) at = (at + 1) & (uint64_t)(slots - 1);
        s->slots[at] = f;
    }
    return 1;
}

/* The slot of the front with these values open and these exps, which may be empty. */
static int64_t slot_of(const State *s, const uint64_t *open, const uint64_t *exps) {
    uint64_t mask = (uint64_t)(s->slot_count - 1), at = hash(s, open, exps) & mask;
    int64_t w = s->p.words;
    size_t bytes = (size_t)w * sizeof(uint64_t);
    for (; s->slots[at] >= 0; at = (at + 1) & mask) {
        int64_t label = s->fronts[s->slots[at]].label;
        if (!memcmp(s->open + w * label, open, bytes) && !memcmp(s->exps + w * label, exps, bytes)) break;
    }
    return (int64_t)at;
}

static int at_most(const State *s, const double *a, const double *b) {
    for (int64_t i = 0; i < s->p.length; i++)
        if (!(a[i] <= b[i])) return 0;
    return 1;
}

static int dominated(State *s, int64_t head, const double *cost) {
    for (int64_t l = head; l >= 0; l = s->labels[l].next) {
        s->work--;
        if (at_most(s, s->costs + s->p.length * l, cost)) return 1;
    }
    return 0;
}

/* Take the labels that cost at least as much off a list. */
static void drop(State *s, int64_t *head, const double *cost) {
    for (int64_t *l = head; *l >= 0;) {
        Label *label = s->labels + *l;
        if (at_most(s, cost, s->costs + s->p.length * *l)) {
            label->alive = 0;
            *l = label->next;
        } else {
            l = &label->next;
        }
    }
}

/* A lower bound of the time that open values still take. */
static double rest(const State *s, const uint64_t *open) {
    double found = 0;
    for (int64_t w = 0; w < s->p.words; w++)
        for (uint64_t bits = open[w]; bits; bits &= bits - 1) {
            double least = s->p.least[64 * w + __builtin_ctzll(bits)];
            if (least > found) found = least;
        }
    return found;
}

/* Add a label with what `now`, `now_exps` and `cost` hold; 0 if there is no memory. */
static int add(State *s, Label label, double key) {
    if (!room_for_label(s)) return 0;
    int64_t n = s->count++, w = s->p.words;
    s->labels[n] = label;
    memcpy(s->open + w * n, s->now, (size_t)w * sizeof(uint64_t));
    memcpy(s->exps + w * n, s->now_exps, (size_t)w * sizeof(uint64_t));
    memcpy(s->costs + s->p.length * n, s->cost, (size_t)s->p.length * sizeof(double));
    return push(s, (Item){key, n});
}

/* Choose a derivation of an open value; 0 if there is no memory. `now` is without that value when this begins. */
static int choose(State *s, int64_t from, int64_t value, int64_t d, const uint64_t *others) {
    const Problem *p = &s->p;
    const double *spent = s->costs + p->length * from;
    const uint64_t *exps = s->exps + p->words * from;
    int64_t inputs = 0;
    for (int64_t i = 0; i < p->words; i++) {
        s->now[i] = others[i] | p->operands[p->words * d + i];
        s->now_exps[i] = exps[i];
        inputs += __builtin_popcountll(s->now[i] & p->inputs[i]);
    }
    if (inputs > p->max_inputs) return 1;
    double left = rest(s, s->now);
    double time = s->labels[from].time + p->times[d];
    if (left > 1e300 || time + left > p->most) return 1;
    if (p->exp[d]) s->now_exps[value / 64] |= (uint64_t)1 << (value % 64);
    for (int64_t i = 0; i < p->length; i++) s->cost[i] = spent[i] + p->prices[p->length * d + i];
    int foreign = s->labels[from].foreign || p->foreign[d];
    if (2 * s->front_count >= s->slot_count && !rehash(s, 2 * s->slot_count)) return 0;
    int64_t slot = slot_of(s, s->now, s->now_exps), f = s->slots[slot];
    if (f >= 0) {
        Front *front = s->fronts + f;
        if (dominated(s, front->head[0], s->cost) || (foreign && dominated(s, front->head[1], s->cost))) return 1;
        drop(s, &front->head[foreign], s->cost);
    } else {
        if (s->front_count == s->front_room) {
            int64_t room = s->front_room ? 2 * s->front_room : 256;
            if (!grow((void **)&s->fronts, sizeof(Front), room)) return 0;
            s->front_room = room;
        }
        f = s->slots[slot] = s->front_count++;
        s->fronts[f] = (Front){s->count, {-1, -1}};
    }
    int64_t *head = &s->fronts[f].head[foreign];
    Label label = {time, from, d, *head, s->labels[from].operators + 1, (uint8_t)foreign, 1};
    *head = s->count;
    return add(s, label, time + left);
}

void extract_free(State *s) {
    if (!s) return;
    free(s->labels);
    free(s->open);
    free(s->exps);
    free(s->costs);
    free(s->heap);
    free(s->fronts);
    free(s->slots);
    free(s->done);
    free(s->now);
    free(s->now_exps);
    free(s->cost);
    free(s);
}

/* The state of a problem, whose arrays have to outlive it; NULL if there is no memory. */
State *extract_begin(const Problem *problem) {
    State *s = calloc(1, sizeof(State));
    if (!s) return NULL;
    s->p = *problem;
    size_t words = (size_t)s->p.words * sizeof(uint64_t);
    /* one set more: the open values without the one that is decided */
    s->now = calloc(2, words);
    s->now_exps = calloc(1, words);
    s->cost = malloc((size_t)s->p.length * sizeof(double));
    if (!s->now || !s->now_exps || !s->cost || !rehash(s, 1024)) {
        extract_free(s);
        return NULL;
    }
    memcpy(s->now, s->p.goals, words);
    memcpy(s->cost, s->p.written, (size_t)s->p.length * sizeof(double));
    if (!add(s, (Label){0, -1, -1, -1, 0, 0, 1}, 0)) {
        extract_free(s);
        return NULL;
    }
    return s;
}

/* Look at labels until that was about so much work: each of them, of their derivations and of the labels that these are compared
   with counts. 0 if that was all; -1 if there are more, -2 if there is no memory. */
int64_t extract_run(State *s, int64_t work) {
    const Problem *p = &s->p;
    uint64_t *others = s->now + p->words;
    s->work = work;
    while (s->heaped) {
        if (s->work <= 0) return -1;
        int64_t from = pop(s).label;
        if (!s->labels[from].alive) continue;
        s->looked++;
        s->work--;
        const uint64_t *open = s->open + p->words * from;
        int64_t w = p->words - 1;
        while (w > 0 && !open[w]) w--;
        int64_t value = open[w] ? 64 * w + 63 - __builtin_clzll(open[w]) : -1;
        if (value < p->leaves) {
            if (s->done_count == s->done_room) {
                int64_t room = s->done_room ? 2 * s->done_room : 64;
                if (!grow((void **)&s->done, sizeof(int64_t), room)) return -2;
                s->done_room = room;
            }
            s->done[s->done_count++] = from;
            continue;
        }
        if (s->labels[from].operators >= p->max_operators) continue;
        memcpy(others, open, (size_t)p->words * sizeof(uint64_t));
        others[value / 64] ^= (uint64_t)1 << (value % 64);
        for (int64_t d = p->first[value]; d < p->first[value + 1]; d++) {
            s->work--;
            if (!choose(s, from, value, d, others)) return -2;
        }
    }
    return 0;
}

int64_t extract_looked(const State *s) { return s->looked; }

int64_t extract_count(const State *s) { return s->done_count; }

/* The finished labels, a row each: leaves read, exps, costs, whether foreign, and the derivations, -1 after the last. */
void extract_results(
    const State *s, uint64_t *open, uint64_t *exps, double *costs, uint8_t *foreign, int64_t *derivations, int64_t width
) {
    const Problem *p = &s->p;
    size_t words = (size_t)p->words * sizeof(uint64_t);
    for (int64_t i = 0; i < s->done_count; i++) {
        int64_t l = s->done[i];
        memcpy(open + p->words * i, s->open + p->words * l, words);
        memcpy(exps + p->words * i, s->exps + p->words * l, words);
        memcpy(costs + p->length * i, s->costs + p->length * l, (size_t)p->length * sizeof(double));
        foreign[i] = s->labels[l].foreign;
        int64_t *row = derivations + width * i, n = 0;
        for (; s->labels[l].parent >= 0; l = s->labels[l].parent) row[n++] = s->labels[l].derivation;
        while (n < width) row[n++] = -1;
    }
}
