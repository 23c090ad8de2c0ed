/* torch's DLPack exchange API with the device changed: CPU tensors that say they are on a GPU. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    void *data;
    int32_t device_type, device_id;
} TensorHead;

typedef struct {
    uint32_t major, minor;
    void *previous, *allocate, *to_managed, *from_managed;
    int (*read)(void *object, void *tensor);
    void *current_stream;
} Api;

static Api theirs, ours;
static int32_t device_type = 10, device_id = 0;

static int read_as_rocm(void *object, void *tensor) {
    int failed = theirs.read(object, tensor);
    if (!failed) {
        ((TensorHead *)tensor)->device_type = device_type;
        ((TensorHead *)tensor)->device_id = device_id;
    }
    return failed;
}

/* Where the tensors are said to be, as DLPack has it. */
void set_place(int32_t type, int32_t id) { device_type = type, device_id = id; }

/* The capsule for `__dlpack_c_exchange_api__`, given torch's. */
PyObject *rocm_exchange(PyObject *capsule) {
    Api *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (api == NULL) {
        return NULL;
    }
    memcpy(&theirs, api, sizeof theirs);
    memcpy(&ours, api, sizeof ours);
    ours.previous = NULL;
    ours.read = read_as_rocm;
    return PyCapsule_New(&ours, "dlpack_exchange_api", NULL);
}
