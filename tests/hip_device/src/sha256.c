/* SHA-256 (FIPS 180-4), by which launches name their code object. */
#include <string.h>

#include "state.h"

static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t value, unsigned bits) { return value >> bits | value << (32 - bits); }

static void absorb(uint32_t state[8], const uint8_t *block) {
    uint32_t schedule[64];
    for (int i = 0; i < 16; i++) {
        const uint8_t *word = block + 4 * i;
        schedule[i] = (uint32_t)word[0] << 24 | (uint32_t)word[1] << 16 | (uint32_t)word[2] << 8 |
                      word[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t early = schedule[i - 15], late = schedule[i - 2];
        schedule[i] = schedule[i - 16] + schedule[i - 7] +
                      (rotate(early, 7) ^ rotate(early, 18) ^ early >> 3) +
                      (rotate(late, 17) ^ rotate(late, 19) ^ late >> 10);
    }
    uint32_t s[8];
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t first = s[7] + (rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25)) +
                         ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants[i] + schedule[i];
        uint32_t second = (rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22)) +
                          ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(&s[1], &s[0], 7 * sizeof s[0]);
        s[4] += first;
        s[0] = first + second;
    }
    for (int i = 0; i < 8; i++) {
        state[i] += s[i];
    }
}

void sha256(const void *data, uint64_t size, uint8_t digest[32]) {
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const uint8_t *bytes = data;
    uint64_t whole = size / 64 * 64;
    for (uint64_t offset = 0; offset < whole; offset += 64) {
        absorb(state, bytes + offset);
    }
    uint8_t tail[128] = {0};
    uint64_t rest = size - whole;
    uint64_t padded = rest < 56 ? 64 : 128;
    memcpy(tail, bytes + whole, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++) {
        tail[padded - 1 - (uint64_t)i] = (uint8_t)(size * 8 >> 8 * i);
    }
    for (uint64_t offset = 0; offset < padded; offset += 64) {
        absorb(state, tail + offset);
    }
    for (int i = 0; i < 32; i++) {
        digest[i] = (uint8_t)(state[i / 4] >> (24 - 8 * (i % 4)));
    }
}
