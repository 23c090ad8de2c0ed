/* Kernels and their arguments from the NT_AMDGPU_METADATA note (AMDGPUUsage, code object v4 to v6). */
#include <stdlib.h>
#include <string.h>

#include "msgpack.h"
#include "state.h"

enum { LARGEST_KERNARG = 1 << 20 };

static char *copy_string(Msgpack *reader) {
    MsgpackString string = msgpack_string(reader);
    char *copy = malloc((size_t)string.size + 1);
    if (copy == NULL) {
        reader->failed = true;
        return NULL;
    }
    memcpy(copy, string.data, string.size);
    copy[string.size] = '\0';
    return copy;
}

static uint32_t read_u32(Msgpack *reader) {
    uint64_t value = msgpack_unsigned(reader);
    if (value > UINT32_MAX) {
        reader->failed = true;
    }
    return (uint32_t)value;
}

static HiddenKind hidden_kind(MsgpackString text) {
    static const struct {
        const char *name;
        HiddenKind kind;
    } kinds[] = {
        {"hidden_block_count_x", HIDDEN_BLOCK_COUNT_X},
        {"hidden_block_count_y", HIDDEN_BLOCK_COUNT_Y},
        {"hidden_block_count_z", HIDDEN_BLOCK_COUNT_Z},
        {"hidden_group_size_x", HIDDEN_GROUP_SIZE_X},
        {"hidden_group_size_y", HIDDEN_GROUP_SIZE_Y},
        {"hidden_group_size_z", HIDDEN_GROUP_SIZE_Z},
        {"hidden_grid_dims", HIDDEN_GRID_DIMS},
        {"hidden_dynamic_lds_size", HIDDEN_DYNAMIC_LDS_SIZE},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (msgpack_is(text, kinds[i].name)) {
            return kinds[i].kind;
        }
    }
    return HIDDEN_NONE;
}

static void read_argument(Msgpack *reader, Kernel *kernel) {
    uint32_t offset = 0, size = 0;
    MsgpackString value_kind = {.data = "", .size = 0};
    for (uint32_t left = msgpack_map(reader); left > 0 && !reader->failed; left--) {
        MsgpackString key = msgpack_string(reader);
        if (msgpack_is(key, ".offset")) {
            offset = read_u32(reader);
        } else if (msgpack_is(key, ".size")) {
            size = read_u32(reader);
        } else if (msgpack_is(key, ".value_kind")) {
            value_kind = msgpack_string(reader);
        } else {
            msgpack_skip(reader);
        }
    }
    if (offset > LARGEST_KERNARG || size > LARGEST_KERNARG) {
        reader->failed = true;
        return;
    }
    bool hidden = value_kind.size >= 7 && memcmp(value_kind.data, "hidden_", 7) == 0;
    if (hidden) {
        kernel->hidden[kernel->hidden_count++] =
            (HiddenArgument){.offset = offset, .size = size, .kind = hidden_kind(value_kind)};
    } else {
        kernel->arguments[kernel->argument_count++] =
            (ExplicitArgument){.offset = offset, .size = size};
        if (offset + size > kernel->explicit_size) {
            kernel->explicit_size = offset + size;
        }
    }
}

static void read_arguments(Msgpack *reader, Kernel *kernel) {
    uint32_t count = msgpack_array(reader);
    if (kernel->arguments != NULL) {
        reader->failed = true;
        return;
    }
    kernel->arguments = calloc((size_t)count + 1, sizeof *kernel->arguments);
    kernel->hidden = calloc((size_t)count + 1, sizeof *kernel->hidden);
    if (kernel->arguments == NULL || kernel->hidden == NULL) {
        reader->failed = true;
    }
    for (; count > 0 && !reader->failed; count--) {
        read_argument(reader, kernel);
    }
}

static void read_kernel(Msgpack *reader, Kernel *kernel) {
    kernel->max_block_threads = MAX_BLOCK_THREADS;
    for (uint32_t left = msgpack_map(reader); left > 0 && !reader->failed; left--) {
        MsgpackString key = msgpack_string(reader);
        if (msgpack_is(key, ".name") && kernel->name == NULL) {
            kernel->name = copy_string(reader);
        } else if (msgpack_is(key, ".symbol") && kernel->symbol == NULL) {
            kernel->symbol = copy_string(reader);
        } else if (msgpack_is(key, ".args")) {
            read_arguments(reader, kernel);
        } else if (msgpack_is(key, ".kernarg_segment_size")) {
            kernel->kernarg_size = read_u32(reader);
        } else if (msgpack_is(key, ".group_segment_fixed_size")) {
            kernel->static_lds = read_u32(reader);
        } else if (msgpack_is(key, ".private_segment_fixed_size")) {
            kernel->private_size = read_u32(reader);
        } else if (msgpack_is(key, ".max_flat_workgroup_size")) {
            kernel->max_block_threads = read_u32(reader);
        } else if (msgpack_is(key, ".wavefront_size")) {
            kernel->wave_size = read_u32(reader);
        } else if (msgpack_is(key, ".vgpr_count")) {
            kernel->vgprs = read_u32(reader);
        } else {
            msgpack_skip(reader);
        }
    }
    bool complete = kernel->name != NULL && kernel->symbol != NULL &&
                    kernel->kernarg_size <= LARGEST_KERNARG &&
                    kernel->explicit_size <= kernel->kernarg_size;
    for (uint32_t i = 0; i < kernel->hidden_count; i++) {
        const HiddenArgument *hidden = &kernel->hidden[i];
        complete = complete && hidden->offset + hidden->size <= kernel->kernarg_size;
    }
    if (!complete) {
        reader->failed = true;
    }
}

hipError_t metadata_read(const uint8_t *note, uint64_t size, CodeObject *object) {
    Msgpack reader = {.at = note, .end = note + size};
    for (uint32_t left = msgpack_map(&reader); left > 0 && !reader.failed; left--) {
        MsgpackString key = msgpack_string(&reader);
        if (!msgpack_is(key, "amdhsa.kernels") || object->kernels != NULL) {
            msgpack_skip(&reader);
            continue;
        }
        uint32_t count = msgpack_array(&reader);
        object->kernels = calloc((size_t)count + 1, sizeof *object->kernels);
        if (object->kernels == NULL) {
            return hipErrorOutOfMemory;
        }
        for (; count > 0 && !reader.failed; count--) {
            read_kernel(&reader, &object->kernels[object->kernel_count++]);
        }
    }
    return reader.failed ? hipErrorInvalidImage : hipSuccess;
}
