/* A bounded reader of msgpack: a cursor over bytes that fails once and then stays failed. */
#ifndef MSGPACK_H
#define MSGPACK_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const uint8_t *at, *end;
    bool failed;
} Msgpack;

typedef struct {
    const char *data;
    uint32_t size;
} MsgpackString;

/* The number of entries; 0 after a failure. */
uint32_t msgpack_map(Msgpack *reader);
uint32_t msgpack_array(Msgpack *reader);
MsgpackString msgpack_string(Msgpack *reader);
uint64_t msgpack_unsigned(Msgpack *reader);
void msgpack_skip(Msgpack *reader);

bool msgpack_is(MsgpackString string, const char *text);

#endif
