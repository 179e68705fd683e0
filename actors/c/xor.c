/* The actor of actors/example in C: masks every byte with a key word, which its own inverse undoes.
 *
 * It is there to be copied: a parameter, both directions, a state that survives a yield, a message in the log. It
 * protects nothing; aes256-gcm-siv does. Its parameter is `word`, a string of 1 to 32 bytes without escapes. */
#include <osier_actor.h>

#define WORD_MAX 32

/* Everything that the actor remembers lies in linear memory: when it moves, this moves along. */
static uint8_t word[WORD_MAX];
static uint32_t word_length;

/* The unit that is being worked on, and how much of it is done. */
static const uint8_t *unit_in;
static uint8_t *unit_out;
static uint32_t unit_length;
static uint32_t done;

OSIER_ACTOR

static int32_t refuse(const char *message, uint32_t length) {
    osier_log(OSIER_ERROR, message, length);
    return -OSIER_CONFIGURATION;
}
#define REFUSE(message) refuse(message, sizeof(message) - 1)

/* The parameters are lines of `key = value`; this actor has one. */
OSIER_EXPORT(osier_init)
int32_t osier_init(void) {
    static const char prefix[] = "word = \"";
    static char text[OSIER_PARAM_BYTES_MAX];
    int32_t length = osier_param(text, sizeof text);
    int32_t prefix_length = sizeof prefix - 1;
    /* The line ends with a quote and a newline. */
    if (length < prefix_length + 2) return REFUSE("`word` is missing: say what to mask with");
    for (int32_t i = 0; i < prefix_length; i++) {
        if (text[i] != prefix[i]) return REFUSE("`word` is the only parameter, and it is a string");
    }
    word_length = 0;
    for (int32_t i = prefix_length; text[i] != '"'; i++) {
        if (word_length == WORD_MAX || text[i] == '\\') return REFUSE("`word` has to have 1 to 32 bytes, no escapes");
        word[word_length++] = (uint8_t)text[i];
    }
    if (word_length == 0) return REFUSE("`word` has to have 1 to 32 bytes, no escapes");
    if (prefix_length + (int32_t)word_length + 2 != length) return REFUSE("`word` is the only parameter");
    return 0;
}

/* Goes on where `done` is. Works on `budget` bytes and no more, so that the actor can be moved soon. */
OSIER_EXPORT(osier_resume)
int64_t osier_resume(uint32_t budget) {
    uint32_t end = unit_length - done < budget ? unit_length : done + budget;
    /* The place in the word follows from the place in the unit, so how the unit is cut changes nothing. */
    uint32_t at = done % word_length;
    for (uint32_t i = done; i < end; i++) {
        unit_out[i] = unit_in[i] ^ word[at];
        at = at + 1 == word_length ? 0 : at + 1;
    }
    done = end;
    return done < unit_length ? osier_yield(done) : osier_done(done);
}

/* Begins a unit: whatever was suspended before is void. */
OSIER_EXPORT(osier_forward)
int64_t osier_forward(const uint8_t *in, uint32_t in_len, uint8_t *out, uint32_t out_cap, uint32_t budget) {
    if (in_len > out_cap) return osier_fail(OSIER_NO_ROOM);
    unit_in = in;
    unit_out = out;
    unit_length = in_len;
    done = 0;
    return osier_resume(budget);
}

/* Masking is its own inverse. */
OSIER_EXPORT(osier_inverse)
int64_t osier_inverse(const uint8_t *in, uint32_t in_len, uint8_t *out, uint32_t out_cap, uint32_t budget) {
    return osier_forward(in, in_len, out, out_cap, budget);
}
