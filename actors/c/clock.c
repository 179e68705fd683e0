/* A cache policy in C: CLOCK with one bit. A hand goes round the frames of a set and takes the first page that was not
 * used since it passed.
 *
 * It is there to be copied. Its order is that of frames, which is that of arrival, and so that of the built-in `clock`,
 * as long as every page comes into the frame of the one that left for it. */
#include <osier_policy.h>

/* Of each frame: whether the policy has it, and whether its page was used. */
enum { HELD = 1, USED = 2 };
static uint8_t *marks;
/* Of each set: where the hand stands, counted from its first frame. */
static uint32_t *hands;
static struct osier_shape shape;

static int made(struct osier_shape given, uint64_t seed) {
    (void)seed;
    shape = given;
    marks = osier_policy_room(shape.sets * shape.ways);
    hands = osier_policy_room(shape.sets * sizeof *hands);
    return 0;
}

static void inserted(uint32_t set, uint32_t frame, uint64_t page, uint32_t recall) {
    (void)set, (void)page, (void)recall;
    marks[frame] = HELD;
}

static void touched(uint32_t set, uint32_t frame) {
    (void)set;
    marks[frame] |= USED;
}

static void removed(uint32_t set, uint32_t frame) {
    (void)set;
    marks[frame] = 0;
}

static int32_t victim(uint32_t set, uint32_t recall) {
    (void)recall;
    /* The first round clears every mark, so the second finds a page if there is one. */
    for (uint32_t step = 0; step < 2 * shape.ways; step++) {
        uint32_t frame = set * shape.ways + hands[set];
        hands[set] = hands[set] + 1 == shape.ways ? 0 : hands[set] + 1;
        if (marks[frame] == HELD) {
            marks[frame] = 0;
            return (int32_t)frame;
        }
        marks[frame] &= (uint8_t)~USED;
    }
    return OSIER_NO_FRAME;
}

OSIER_POLICY
