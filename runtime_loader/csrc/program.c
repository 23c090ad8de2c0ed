/* Programs: launch plans as straight instructions, checked once when they are read, then run
 * without a check that could have been made before. */
#include "native.h"

#include <string.h>

/* The numbers are those of runtime_loader/program.py. */
enum {
    OP_COPY, OP_SELECT, OP_SEXT, OP_MASK,
    OP_ADD, OP_SUB, OP_MUL, OP_AND, OP_OR, OP_XOR, OP_SHL, OP_LSHR, OP_ASHR,
    OP_SDIV, OP_UDIV, OP_SREM, OP_UREM, OP_SMIN, OP_SMAX, OP_UMIN, OP_UMAX,
    OP_EQ, OP_NE, OP_SLT, OP_SLE, OP_SGT, OP_SGE, OP_ULT, OP_ULE, OP_UGT, OP_UGE,
    OP_LAUNCH, OP_JUMP, OP_BRANCH, OP_RETURN,
    OP_COUNT
};

static bool bad(const char *what) {
    PyErr_Format(PyExc_ValueError, "native program: %s", what);
    return false;
}

static bool in_range(const Program *p, const uint16_t *values, int count) {
    for (int i = 0; i < count; i++) {
        if (values[i] >= p->value_count) {
            return bad("a value does not exist");
        }
    }
    return true;
}

static bool check_instruction(const Program *p, const Instruction *i) {
    if (i->op >= OP_COUNT) {
        return bad("unknown instruction");
    }
    if (i->bits < 1 || i->bits > 64) {
        return bad("a width is not 1 to 64 bits");
    }
    switch (i->op) {
    case OP_LAUNCH:
        return i->a < p->site_count || bad("a launch does not exist");
    case OP_JUMP:
        return i->a < p->instruction_count || bad("a jump leaves the program");
    case OP_BRANCH:
        return ((i->b < p->instruction_count && i->c < p->instruction_count) ||
                bad("a branch leaves the program")) &&
               in_range(p, &i->a, 1);
    case OP_RETURN:
        return true;
    default:
        if (i->result < p->input_count + p->constant_count || i->result >= p->value_count) {
            return bad("a result has no place");
        }
        return in_range(p, (const uint16_t[]){i->a, i->b, i->c}, 3);
    }
}

static bool read_instructions(Program *p, const char *data, Py_ssize_t size) {
    if (size % 10 != 0 || size / 10 > MAX_INSTRUCTIONS || size == 0) {
        return bad("a wrong size of instructions");
    }
    p->instruction_count = (uint32_t)(size / 10);
    p->instructions = PyMem_Calloc(p->instruction_count, sizeof *p->instructions);
    if (p->instructions == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (uint32_t n = 0; n < p->instruction_count; n++, data += 10) {
        Instruction *i = &p->instructions[n];
        i->op = (uint8_t)data[0];
        i->bits = (uint8_t)data[1];
        memcpy(&i->result, data + 2, 8);
    }
    return true;
}

static bool check_instructions(const Program *p) {
    for (uint32_t n = 0; n < p->instruction_count; n++) {
        if (!check_instruction(p, &p->instructions[n])) {
            return false;
        }
    }
    uint8_t last = p->instructions[p->instruction_count - 1].op;
    return last == OP_RETURN || last == OP_JUMP || last == OP_BRANCH ||
           bad("the program runs off its end");
}

static bool read_stores(const Program *p, Site *site, PyObject *stores) {
    site->store_count = (uint32_t)PyTuple_GET_SIZE(stores);
    site->stores = PyMem_Calloc(site->store_count + 1, sizeof *site->stores);
    if (site->stores == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (uint32_t n = 0; n < site->store_count; n++) {
        Store *store = &site->stores[n];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(stores, n), "HbH", &store->offset, &store->size,
                              &store->value)) {
            return false;
        }
        if (store->size != 1 && store->size != 2 && store->size != 4 && store->size != 8) {
            return bad("a stored value is not 1, 2, 4 or 8 bytes");
        }
        if ((uint32_t)store->offset + store->size > site->kernarg_size) {
            return bad("a value is stored outside the kernarg segment");
        }
        if (!in_range(p, &store->value, 1)) {
            return false;
        }
    }
    return true;
}

static bool read_site(const Program *p, Site *site, PyObject *description) {
    unsigned long long function;
    const char *kernarg;
    Py_ssize_t size;
    PyObject *stores;
    uint16_t *g = site->grid, *b = site->block;
    if (!PyTuple_Check(description) ||
        !PyArg_ParseTuple(description, "KII(HHH)(HHH)HHy#O!", &function, &site->kernel,
                          &site->max_workgroup, &g[0], &g[1], &g[2], &b[0], &b[1], &b[2],
                          &site->lds, &site->stream, &kernarg, &size, &PyTuple_Type, &stores)) {
        if (!PyErr_Occurred()) {
            return bad("a launch is no tuple");
        }
        return false;
    }
    if (size > MAX_KERNARG) {
        return bad("a kernarg segment is too large");
    }
    site->function = (void *)(uintptr_t)function;
    site->kernarg_size = (uint32_t)size;
    site->kernarg = PyMem_Calloc(1, (size_t)size + KERNARG_UNIT);
    if (site->kernarg == NULL) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(site->kernarg, kernarg, (size_t)size);
    return in_range(p, g, 3) && in_range(p, b, 3) && in_range(p, &site->lds, 1) &&
           in_range(p, &site->stream, 1) && read_stores(p, site, stores);
}

bool program_read(Program *p, PyObject *description) {
    PyObject *constants, *sites;
    const char *instructions;
    Py_ssize_t size;
    int clear;
    if (!PyArg_ParseTuple(description, "IO!Ipy#O!", &p->input_count, &PyTuple_Type, &constants,
                          &p->value_count, &clear, &instructions, &size, &PyTuple_Type, &sites)) {
        return false;
    }
    p->clear_results = clear;
    Py_ssize_t constant_count = PyTuple_GET_SIZE(constants);
    Py_ssize_t site_count = PyTuple_GET_SIZE(sites);
    if (p->value_count > MAX_VALUES || p->input_count > p->value_count ||
        constant_count > (Py_ssize_t)(p->value_count - p->input_count) || site_count > MAX_SITES) {
        return bad("it is too large");
    }
    p->constant_count = (uint32_t)constant_count;
    p->constants = PyMem_Calloc((size_t)constant_count + 1, sizeof *p->constants);
    p->sites = PyMem_Calloc((size_t)site_count + 1, sizeof *p->sites);
    if (p->constants == NULL || p->sites == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t n = 0; n < constant_count; n++) {
        p->constants[n] = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(constants, n));
        if (PyErr_Occurred()) {
            return false;
        }
    }
    for (Py_ssize_t n = 0; n < site_count; n++) {
        p->site_count++;
        if (!read_site(p, &p->sites[n], PyTuple_GET_ITEM(sites, n))) {
            return false;
        }
    }
    return read_instructions(p, instructions, size) && check_instructions(p);
}

void program_free(Program *p) {
    for (uint32_t n = 0; n < p->site_count; n++) {
        PyMem_Free(p->sites[n].kernarg);
        PyMem_Free(p->sites[n].stores);
    }
    PyMem_Free(p->sites);
    PyMem_Free(p->constants);
    PyMem_Free(p->instructions);
    memset(p, 0, sizeof *p);
}

static inline uint64_t mask_of(unsigned bits) { return UINT64_MAX >> (64 - bits); }

/* The two's complement value in the low `bits` of `x`. */
static inline int64_t sign_extend(uint64_t x, unsigned bits) {
    uint64_t sign = (uint64_t)1 << (bits - 1);
    return (int64_t)((x ^ sign) - sign);
}

/* Division as LLVM defines it; false where it leaves the result undefined. */
static bool divide(const Instruction *i, uint64_t a, uint64_t b, uint64_t *result) {
    if (b == 0) {
        return false;
    }
    if (i->op == OP_UDIV || i->op == OP_UREM) {
        *result = i->op == OP_UDIV ? a / b : a % b;
        return true;
    }
    int64_t x = sign_extend(a, i->bits), y = sign_extend(b, i->bits);
    if (y == -1 && a == (uint64_t)1 << (i->bits - 1)) {
        return false;
    }
    *result = (uint64_t)(i->op == OP_SDIV ? x / y : x % y) & mask_of(i->bits);
    return true;
}

static bool shift(const Instruction *i, uint64_t a, uint64_t b, uint64_t *result) {
    if (b >= i->bits) {
        return false;
    }
    if (i->op == OP_SHL) {
        *result = (a << b) & mask_of(i->bits);
    } else if (i->op == OP_LSHR) {
        *result = a >> b;
    } else {
        /* Arithmetic by way of the complement: C leaves a negative number's shift to compilers. */
        int64_t x = sign_extend(a, i->bits);
        uint64_t shifted = x < 0 ? ~(~(uint64_t)x >> b) : (uint64_t)x >> b;
        *result = shifted & mask_of(i->bits);
    }
    return true;
}

static void store(uint8_t *to, uint64_t value, unsigned size) {
    /* AMD GPUs and their hosts are little-endian; setup builds this for no other. */
    switch (size) {
    case 8: memcpy(to, &value, 8); break;
    case 4: memcpy(to, &value, 4); break;
    case 2: memcpy(to, &value, 2); break;
    default: memcpy(to, &value, 1); break;
    }
}

/* Packs one launch; false for one that is empty, too large or too many. */
static bool pack(const Site *site, const uint64_t *v, Batch *batch) {
    uint32_t start = (batch->used + KERNARG_UNIT - 1) / KERNARG_UNIT * KERNARG_UNIT;
    if (batch->count == MAX_PENDING || start + site->kernarg_size > MAX_KERNARG) {
        return false;
    }
    Pending *p = &batch->launches[batch->count];
    for (int axis = 0; axis < 3; axis++) {
        p->grid[axis] = (uint32_t)v[site->grid[axis]];
        p->block[axis] = (uint32_t)v[site->block[axis]];
        if (p->grid[axis] == 0 || p->block[axis] == 0) {
            return false;
        }
    }
    /* Compared after each factor, so that no product leaves 64 bits. */
    uint64_t plane = (uint64_t)p->block[0] * p->block[1];
    if (plane > site->max_workgroup || plane * p->block[2] > site->max_workgroup) {
        return false;
    }
    p->site = site;
    p->lds = (uint32_t)v[site->lds];
    p->stream = (void *)(uintptr_t)v[site->stream];
    uint8_t *kernarg = batch->kernarg + start;
    /* In whole units, which need no call; both sides have room for the last. */
    for (uint32_t at = 0; at < site->kernarg_size; at += KERNARG_UNIT) {
        memcpy(kernarg + at, site->kernarg + at, KERNARG_UNIT);
    }
    for (uint32_t n = 0; n < site->store_count; n++) {
        const Store *s = &site->stores[n];
        store(kernarg + s->offset, v[s->value], s->size);
    }
    p->kernarg = kernarg;
    batch->count++;
    batch->used = start + site->kernarg_size;
    return true;
}

void program_start(const Program *p, uint64_t *v) {
    memcpy(v + p->input_count, p->constants, p->constant_count * sizeof *v);
}

Outcome program_run(const Program *p, uint64_t *v, Batch *batch) {
    uint32_t first_result = p->input_count + p->constant_count;
    if (p->clear_results) {
        memset(v + first_result, 0, (p->value_count - first_result) * sizeof *v);
    }
    uint32_t left = STEP_BUDGET;
    const Instruction *i = p->instructions;
    while (left-- > 0) {
        uint64_t a = 0, b = 0, mask = mask_of(i->bits);
        if (i->op < OP_LAUNCH) {
            a = v[i->a];
            b = v[i->b];
        }
        uint64_t *result = &v[i->result];
        switch (i->op) {
        case OP_COPY: *result = a; break;
        case OP_SELECT: *result = a ? b : v[i->c]; break;
        /* `bits` is the operand's width; `c` holds a constant with the result's mask. */
        case OP_SEXT: *result = (uint64_t)sign_extend(a, i->bits) & v[i->c]; break;
        case OP_MASK: *result = a & mask; break;
        case OP_ADD: *result = (a + b) & mask; break;
        case OP_SUB: *result = (a - b) & mask; break;
        case OP_MUL: *result = (a * b) & mask; break;
        case OP_AND: *result = a & b; break;
        case OP_OR: *result = a | b; break;
        case OP_XOR: *result = a ^ b; break;
        case OP_SHL: case OP_LSHR: case OP_ASHR:
            if (!shift(i, a, b, result)) {
                return DECLINED;
            }
            break;
        case OP_SDIV: case OP_UDIV: case OP_SREM: case OP_UREM:
            if (!divide(i, a, b, result)) {
                return DECLINED;
            }
            break;
        case OP_SMIN: *result = sign_extend(a, i->bits) < sign_extend(b, i->bits) ? a : b; break;
        case OP_SMAX: *result = sign_extend(a, i->bits) > sign_extend(b, i->bits) ? a : b; break;
        case OP_UMIN: *result = a < b ? a : b; break;
        case OP_UMAX: *result = a > b ? a : b; break;
        case OP_EQ: *result = a == b; break;
        case OP_NE: *result = a != b; break;
        case OP_SLT: *result = sign_extend(a, i->bits) < sign_extend(b, i->bits); break;
        case OP_SLE: *result = sign_extend(a, i->bits) <= sign_extend(b, i->bits); break;
        case OP_SGT: *result = sign_extend(a, i->bits) > sign_extend(b, i->bits); break;
        case OP_SGE: *result = sign_extend(a, i->bits) >= sign_extend(b, i->bits); break;
        case OP_ULT: *result = a < b; break;
        case OP_ULE: *result = a <= b; break;
        case OP_UGT: *result = a > b; break;
        case OP_UGE: *result = a >= b; break;
        case OP_LAUNCH:
            if (!pack(&p->sites[i->a], v, batch)) {
                return DECLINED;
            }
            break;
        case OP_JUMP: i = p->instructions + i->a; continue;
        case OP_BRANCH: i = p->instructions + (v[i->a] ? i->b : i->c); continue;
        default: return DONE;
        }
        i++;
    }
    return DECLINED;
}
