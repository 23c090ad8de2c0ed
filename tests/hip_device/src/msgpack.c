/* Reading the msgpack of the AMDGPU metadata note, with every length checked. */
#include "msgpack.h"

#include <string.h>

enum { DEEPEST = 16 };

static bool take(Msgpack *reader, uint64_t size, const uint8_t **data) {
    if (reader->failed || size > (uint64_t)(reader->end - reader->at)) {
        reader->failed = true;
        return false;
    }
    *data = reader->at;
    reader->at += size;
    return true;
}

static uint64_t big_endian(Msgpack *reader, unsigned size) {
    const uint8_t *data;
    uint64_t value = 0;
    if (take(reader, size, &data)) {
        for (unsigned i = 0; i < size; i++) {
            value = value << 8 | data[i];
        }
    }
    return value;
}

static uint8_t tag(Msgpack *reader) { return (uint8_t)big_endian(reader, 1); }

static uint32_t container(Msgpack *reader, uint8_t fixed, uint8_t wide) {
    uint8_t type = tag(reader);
    uint64_t count = 0;
    if ((type & 0xf0) == fixed) {
        count = type & 0x0f;
    } else if (type == wide) {
        count = big_endian(reader, 2);
    } else if (type == wide + 1) {
        count = big_endian(reader, 4);
    } else {
        reader->failed = true;
    }
    /* Each entry takes at least a byte: a count beyond that is a lie. */
    if (reader->failed || count > (uint64_t)(reader->end - reader->at)) {
        reader->failed = true;
        return 0;
    }
    return (uint32_t)count;
}

uint32_t msgpack_map(Msgpack *reader) { return container(reader, 0x80, 0xde); }

uint32_t msgpack_array(Msgpack *reader) { return container(reader, 0x90, 0xdc); }

MsgpackString msgpack_string(Msgpack *reader) {
    uint8_t type = tag(reader);
    uint64_t size = 0;
    const uint8_t *data = NULL;
    if ((type & 0xe0) == 0xa0) {
        size = type & 0x1f;
    } else if (type >= 0xd9 && type <= 0xdb) {
        size = big_endian(reader, 1U << (type - 0xd9));
    } else {
        reader->failed = true;
    }
    if (!take(reader, size, &data)) {
        return (MsgpackString){.data = "", .size = 0};
    }
    return (MsgpackString){.data = (const char *)data, .size = (uint32_t)size};
}

uint64_t msgpack_unsigned(Msgpack *reader) {
    uint8_t type = tag(reader);
    if (type < 0x80) {
        return type;
    }
    if (type >= 0xcc && type <= 0xcf) {
        return big_endian(reader, 1U << (type - 0xcc));
    }
    reader->failed = true;
    return 0;
}

static void skip(Msgpack *reader, unsigned depth) {
    if (reader->failed || reader->at == reader->end || depth > DEEPEST) {
        reader->failed = true;
        return;
    }
    uint8_t type = *reader->at;
    const uint8_t *data;
    if ((type & 0xf0) == 0x80 || type == 0xde || type == 0xdf) {
        for (uint32_t left = msgpack_map(reader); left > 0 && !reader->failed; left--) {
            skip(reader, depth + 1);
            skip(reader, depth + 1);
        }
    } else if ((type & 0xf0) == 0x90 || type == 0xdc || type == 0xdd) {
        for (uint32_t left = msgpack_array(reader); left > 0 && !reader->failed; left--) {
            skip(reader, depth + 1);
        }
    } else if ((type & 0xe0) == 0xa0 || (type >= 0xd9 && type <= 0xdb)) {
        msgpack_string(reader);
    } else {
        reader->at++;
        if (type >= 0xcc && type <= 0xcf) {
            take(reader, 1U << (type - 0xcc), &data);
        } else if (type >= 0xd0 && type <= 0xd3) {
            take(reader, 1U << (type - 0xd0), &data);
        } else if (type == 0xca || type == 0xcb) {
            take(reader, type == 0xca ? 4 : 8, &data);
        } else if (type >= 0xc4 && type <= 0xc6) {
            take(reader, big_endian(reader, 1U << (type - 0xc4)), &data);
        } else if (type == 0xc1 || (type >= 0xc7 && type <= 0xc9) ||
                   (type >= 0xd4 && type <= 0xd8)) {
            reader->failed = true; /* unused and extension types do not occur in the note */
        }
    }
}

void msgpack_skip(Msgpack *reader) { skip(reader, 0); }

bool msgpack_is(MsgpackString string, const char *text) {
    return strlen(text) == string.size && memcmp(string.data, text, string.size) == 0;
}
