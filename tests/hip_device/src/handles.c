/* Opaque handles: a kind, a generation and a slot, so that stale and foreign values are noticed. */
#include <stdlib.h>

#include "state.h"

typedef struct {
    void *object;
    uint32_t next_free; /* slot number + 1, or 0 */
    uint16_t generation;
    uint8_t kind; /* 0 when free */
} Slot;

static Slot *slots;
static uint32_t slot_count, slot_capacity, first_free;

static void *encode(uint32_t slot, uint16_t generation, HandleKind kind) {
    return (void *)((uintptr_t)kind << 44 | (uintptr_t)generation << 28 | (uintptr_t)slot << 4);
}

static Slot *find(const void *handle) {
    uintptr_t bits = (uintptr_t)handle;
    uint32_t slot = (uint32_t)(bits >> 4 & 0xffffff);
    if (slot >= slot_count) {
        return NULL;
    }
    Slot *found = &slots[slot];
    bool same = found->kind != 0 &&
                encode(slot, found->generation, (HandleKind)found->kind) == handle;
    return same ? found : NULL;
}

void *handle_create(HandleKind kind, void *object) {
    uint32_t slot;
    if (first_free != 0) {
        slot = first_free - 1;
        first_free = slots[slot].next_free;
    } else {
        if (slot_count == 0x1000000) {
            return NULL;
        }
        if (slot_count == slot_capacity) {
            uint32_t capacity = slot_capacity == 0 ? 256 : slot_capacity * 2;
            Slot *grown = realloc(slots, capacity * sizeof *grown);
            if (grown == NULL) {
                return NULL;
            }
            slots = grown;
            slot_capacity = capacity;
        }
        slot = slot_count++;
        slots[slot] = (Slot){0};
    }
    Slot *entry = &slots[slot];
    entry->object = object;
    entry->kind = (uint8_t)kind;
    entry->generation++;
    return encode(slot, entry->generation, kind);
}

void *handle_lookup(HandleKind kind, const void *handle) {
    Slot *slot = find(handle);
    return slot != NULL && slot->kind == (uint8_t)kind ? slot->object : NULL;
}

void handle_destroy(const void *handle) {
    Slot *slot = find(handle);
    if (slot != NULL) {
        slot->kind = 0;
        slot->object = NULL;
        slot->next_free = first_free;
        first_free = (uint32_t)(slot - slots) + 1;
    }
}

void handle_for_each(HandleKind kind, void (*visit)(void *object, void *context), void *context) {
    for (uint32_t slot = 0; slot < slot_count; slot++) {
        if (slots[slot].kind == (uint8_t)kind) {
            visit(slots[slot].object, context);
        }
    }
}

static void count_one(void *object, void *context) {
    (void)object;
    (*(uint64_t *)context)++;
}

uint64_t handle_count(HandleKind kind) {
    uint64_t count = 0;
    handle_for_each(kind, count_one, &count);
    return count;
}
