/* The inner loops over bytes, natively: buffers in, buffers out.

   `playhead/reference.py` and the numpy and Python code beside each caller say what every function means;
   the tests hold both against each other. The first part is plain C without Python, so that
   `fuzz/driver.c` can include it alone; the second makes it the module `playhead._kernels`.

   Everything that is read may be hostile, and a mapped file may even change while it is read. So no
   part believes what another has checked: each walk carries its own end, and each write its own room. */

#ifndef PLAYHEAD_CORE_ONLY
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#ifdef __linux__
#include <sys/mman.h>
#endif
#endif

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(_M_X64)
#define CRC_X86 1
#include <nmmintrin.h>
#include <wmmintrin.h>
#ifdef _MSC_VER
#include <intrin.h>
#define TARGET_CRC
#else
#include <cpuid.h>
#define TARGET_CRC __attribute__((target("sse4.2,pclmul")))
#endif
#elif defined(__aarch64__) && (defined(__ARM_FEATURE_CRC32) || defined(__linux__))
#define CRC_ARM 1
#include <arm_acle.h>
#if defined(__ARM_FEATURE_CRC32)
#define TARGET_CRC
#else
#include <sys/auxv.h>
#ifdef __clang__
#define TARGET_CRC __attribute__((target("crc")))
#else
#define TARGET_CRC __attribute__((target("+crc")))
#endif
#endif
#endif

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(address) __builtin_prefetch(address)
#define PREFETCH_NEAR(address) __builtin_prefetch(address, 0, 2) /* not into the smallest cache */
#else
#define PREFETCH(address) ((void)(address))
#define PREFETCH_NEAR(address) ((void)(address))
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define BIG_ENDIAN_HOST 1
#else
#define BIG_ENDIAN_HOST 0
#endif

typedef struct {
    const uint8_t *data;
    size_t size;
} Bytes;

static inline uint32_t load32(const uint8_t *at)
{
#if BIG_ENDIAN_HOST
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
#else
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
#endif
}

static inline uint64_t load64(const uint8_t *at)
{
#if BIG_ENDIAN_HOST
    return (uint64_t)load32(at) | (uint64_t)load32(at + 4) << 32;
#else
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
#endif
}

/* CRC-32C. Inside, a CRC is the register of the reflected polynomial, without the two inversions.

   A processor's instruction gives its result after three cycles but can be started every cycle, so
   three stretches are taken at once, and joined: moving a register over zeros is linear. */

#define POLYNOMIAL 0x82F63B78u

static uint32_t slices8[8][256];

static void prepare_portable(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        slices8[0][byte] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++)
            slices8[k][byte] = slices8[k - 1][byte] >> 8 ^ slices8[0][slices8[k - 1][byte] & 255];
}

static uint32_t crc_portable(uint32_t crc, const uint8_t *at, size_t size)
{
    for (; size >= 8; size -= 8, at += 8) {
        uint32_t low = load32(at) ^ crc, high = load32(at + 4);
        crc = slices8[7][low & 255] ^ slices8[6][low >> 8 & 255] ^ slices8[5][low >> 16 & 255]
            ^ slices8[4][low >> 24] ^ slices8[3][high & 255] ^ slices8[2][high >> 8 & 255]
            ^ slices8[1][high >> 16 & 255] ^ slices8[0][high >> 24];
    }
    while (size--)
        crc = crc >> 8 ^ slices8[0][(crc ^ *at++) & 255];
    return crc;
}

typedef uint32_t (*Crc)(uint32_t, const uint8_t *, size_t);

#if defined(CRC_X86)
#define LANE 128 /* words of 8 bytes in each stretch, at most */

/* powers[m] is x^(64 m - 33), reflected: a carryless product with it, taken through the CRC of 8
   bytes, which multiplies by x^33, moves a register over m words of zeros. */
static uint32_t powers[2 * LANE + 1];

static void prepare_lanes(void)
{
    uint32_t power = 1;
    for (int m = 1; m <= 2 * LANE; m++) {
        uint8_t word[8] = {(uint8_t)power, (uint8_t)(power >> 8), (uint8_t)(power >> 16),
                           (uint8_t)(power >> 24), 0, 0, 0, 0};
        powers[m] = power;
        power = crc_portable(0, word, 8);
    }
}

TARGET_CRC static inline uint64_t moved(uint64_t crc, size_t words)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc),
                                           _mm_cvtsi32_si128((int)powers[words]), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

TARGET_CRC static uint32_t crc_x86(uint32_t start, const uint8_t *at, size_t size)
{
    uint64_t crc = start;
    while (size >= 96) {
        size_t words = size / 24;
        if (words > LANE)
            words = LANE;
        const uint8_t *second = at + 8 * words, *third = second + 8 * words;
        uint64_t a = crc, b = 0, c = 0;
        for (size_t k = 0; k < 8 * words; k += 8) {
            a = _mm_crc32_u64(a, load64(at + k));
            b = _mm_crc32_u64(b, load64(second + k));
            c = _mm_crc32_u64(c, load64(third + k));
        }
        crc = c ^ _mm_crc32_u64(0, moved(a, 2 * words) ^ moved(b, words));
        at += 24 * words;
        size -= 24 * words;
    }
    for (; size >= 8; size -= 8, at += 8)
        crc = _mm_crc32_u64(crc, load64(at));
    uint32_t last = (uint32_t)crc;
    if (size & 4) {
        last = _mm_crc32_u32(last, load32(at));
        at += 4;
    }
    for (size &= 3; size; size--)
        last = _mm_crc32_u8(last, *at++);
    return last;
}

static int has_instructions(void)
{
#ifdef _MSC_VER
    int registers[4];
    __cpuid(registers, 1);
    unsigned int features = (unsigned int)registers[2];
#else
    unsigned int a, b, features, d;
    if (!__get_cpuid(1, &a, &b, &features, &d))
        return 0;
#endif
    return (features >> 20 & 1) && (features >> 1 & 1);
}

#elif defined(CRC_ARM)
#define LANE 32 /* words of 8 bytes in each stretch */

/* What a register becomes over LANE words of zeros, by each of its bytes. */
static uint32_t over_zeros[4][256];

static void prepare_lanes(void)
{
    static const uint8_t zeros[8 * LANE];
    for (int k = 0; k < 4; k++)
        for (uint32_t byte = 0; byte < 256; byte++)
            over_zeros[k][byte] = crc_portable(byte << 8 * k, zeros, sizeof zeros);
}

static inline uint32_t moved(uint32_t crc)
{
    return over_zeros[0][crc & 255] ^ over_zeros[1][crc >> 8 & 255]
         ^ over_zeros[2][crc >> 16 & 255] ^ over_zeros[3][crc >> 24];
}

TARGET_CRC static uint32_t crc_arm(uint32_t crc, const uint8_t *at, size_t size)
{
    for (; size >= 24 * LANE; size -= 24 * LANE, at += 24 * LANE) {
        uint32_t b = 0, c = 0;
        for (size_t k = 0; k < 8 * LANE; k += 8) {
            crc = __crc32cd(crc, load64(at + k));
            b = __crc32cd(b, load64(at + 8 * LANE + k));
            c = __crc32cd(c, load64(at + 16 * LANE + k));
        }
        crc = moved(moved(crc) ^ b) ^ c;
    }
    for (; size >= 8; size -= 8, at += 8)
        crc = __crc32cd(crc, load64(at));
    while (size--)
        crc = __crc32cb(crc, *at++);
    return crc;
}

static int has_instructions(void)
{
#if defined(__ARM_FEATURE_CRC32)
    return 1;
#else
    return (getauxval(AT_HWCAP) >> 7 & 1) != 0;
#endif
}
#endif

static Crc crc_chosen = crc_portable;
static const char *crc_name = "portable";

/* Run before anything else; to run it again, even at the same time, changes nothing. */
static void prepare(void)
{
    prepare_portable();
#if defined(CRC_X86) || defined(CRC_ARM)
    prepare_lanes();
    if (has_instructions()) {
#if defined(CRC_X86)
        crc_chosen = crc_x86;
        crc_name = "sse4.2";
#else
        crc_chosen = crc_arm;
        crc_name = "armv8";
#endif
    }
#endif
}

static inline uint32_t crc32c(const uint8_t *at, size_t size)
{
    return ~crc_chosen(~0u, at, size);
}

static inline uint32_t masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* TFRecord frames: uint64 length, uint32 masked CRC of it, data, uint32 masked CRC of the data. */

enum { HEADER = 12, FOOTER = 4 };
enum { SOUND, TRUNCATED, BAD_LENGTH, BAD_DATA };

typedef struct {
    int64_t *offsets, *lengths;
    uint32_t *crcs;
    size_t room, count;
} Found;

/* Walk the frames that begin in [*position, stop), until `found` is full; stop is within the bytes. */
static int scan(Bytes bytes, size_t *position, size_t stop, int check, Found *found)
{
    while (*position < stop && found->count < found->room) {
        const uint8_t *frame = bytes.data + *position;
        size_t left = bytes.size - *position;
        if (left < HEADER)
            return TRUNCATED;
        uint64_t length = load64(frame);
        if (masked(crc32c(frame, 8)) != load32(frame + 8))
            return BAD_LENGTH;
        if (left < HEADER + FOOTER || length > left - HEADER - FOOTER)
            return TRUNCATED;
        uint32_t stored = load32(frame + HEADER + length);
        if (check && masked(crc32c(frame + HEADER, (size_t)length)) != stored)
            return BAD_DATA;
        found->offsets[found->count] = (int64_t)*position;
        found->lengths[found->count] = (int64_t)length;
        found->crcs[found->count++] = stored;
        *position += HEADER + (size_t)length + FOOTER;
    }
    return SOUND;
}

/* Whether the frame around this data is as the index says. */
static int frame_holds(const uint8_t *data, size_t size, uint32_t crc)
{
    const uint8_t *head = data - HEADER;
    return load64(head) == size && load32(head + 8) == masked(crc32c(head, 8))
        && load32(data + size) == crc && masked(crc32c(data, size)) == crc;
}

/* Records as parts of buffers: record i is [starts[i], stops[i]) of buffers[which[i]]. */

typedef struct {
    const Bytes *buffers;
    size_t buffer_count;
    const int64_t *which, *starts, *stops;
    size_t count;
} Records;

/* Whether each lies inside its buffer, with so many bytes more on either side. */
static int records_lie_inside(const Records *records, size_t before, size_t after)
{
    for (size_t i = 0; i < records->count; i++) {
        int64_t which = records->which[i], start = records->starts[i], stop = records->stops[i];
        if (which < 0 || (uint64_t)which >= records->buffer_count)
            return 0;
        size_t size = records->buffers[which].size;
        if (start < 0 || stop < start || (uint64_t)start < before || size < after
            || (uint64_t)stop > size - after)
            return 0;
    }
    return 1;
}

static inline Bytes record_at(const Records *records, size_t i)
{
    const uint8_t *data = records->buffers[records->which[i]].data;
    Bytes record = {data ? data + records->starts[i] : NULL,
                    (size_t)(records->stops[i] - records->starts[i])};
    return record;
}

/* Record i of a walk over all. Shuffled ones lie anywhere, and memory takes as long to answer as a record
   takes to parse. So the ends of one some way off are asked for, which also finds out on which pages it
   lies, and all of a nearer one. */
static inline Bytes record_of_walk(const Records *records, size_t i)
{
    enum { FAR = 6, NEAR = 2, LINE = 64, MOST = 16 * LINE };
    if (i + FAR < records->count) {
        Bytes later = record_at(records, i + FAR);
        PREFETCH(later.data);
        PREFETCH(later.data + later.size);
        if (later.size > LINE)
            PREFETCH(later.data + LINE);
    }
    if (i + NEAR < records->count) {
        Bytes later = record_at(records, i + NEAR);
        for (size_t ahead = 0; ahead < later.size && ahead < MOST; ahead += LINE)
            PREFETCH_NEAR(later.data + ahead);
    }
    return record_at(records, i);
}

/* All records' bytes, one after the other, into `outs`, which together have as many. */
static void join(const Records *records, const Bytes *outs)
{
    size_t filled = 0;
    for (size_t i = 0; i < records->count; i++) {
        Bytes record = record_of_walk(records, i);
        while (record.size) {
            size_t room = outs->size - filled, some = record.size < room ? record.size : room;
            if (some)
                memcpy((uint8_t *)outs->data + filled, record.data, some);
            record.data += some;
            record.size -= some;
            filled += some;
            if (filled == outs->size) {
                outs++;
                filled = 0;
            }
        }
    }
}

/* The first record whose frame is not as the index says, or -1. */
static int64_t check(const Records *records, const uint32_t *crcs)
{
    for (size_t i = 0; i < records->count; i++) {
        Bytes record = record_of_walk(records, i);
        if (!frame_holds(record.data, record.size, crcs[i]))
            return (int64_t)i;
    }
    return -1;
}

/* Where data lie: the frame of record r, in file f, is from edges[r + f] to edges[r + f + 1]. firsts[f] is
   the number of f's first record. Files are numbered anew as they come: names[k] is the kth, which[i] the
   number of record i's. */

typedef struct {
    const int64_t *firsts, *edges;
    const uint32_t *crcs;
    size_t files, records;
    int64_t *which, *starts, *stops, *names; /* for each record */
    uint32_t *found;
    int64_t *slots; /* a hash table from files to their new numbers: -1, or one below `different` */
    size_t slot_mask, different;
} Frames;

static size_t file_of(const Frames *frames, int64_t record)
{
    size_t low = 0, high = frames->files; /* firsts[low] <= record < firsts[high] */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (frames->firsts[middle] <= record)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int64_t number_anew(Frames *frames, int64_t file)
{
    size_t slot = (size_t)((uint64_t)file * 0x9E3779B97F4A7C15u >> 32) & frames->slot_mask;
    for (; frames->slots[slot] >= 0; slot = (slot + 1) & frames->slot_mask)
        if (frames->names[frames->slots[slot]] == file)
            return frames->slots[slot];
    frames->slots[slot] = (int64_t)frames->different;
    frames->names[frames->different] = file;
    return (int64_t)frames->different++;
}

/* The first record number that does not exist, as its place in `index`, or -1. */
static int64_t find_frames(Frames *frames, const int64_t *index, size_t count)
{
    enum { FAR = 16 };
    for (size_t i = 0; i < count; i++)
        if ((uint64_t)index[i] >= frames->records)
            return (int64_t)i;
    for (size_t slot = 0; slot <= frames->slot_mask; slot++)
        frames->slots[slot] = -1;
    for (size_t i = 0; i < count; i++) {
        if (i + FAR < count) {
            PREFETCH(frames->edges + index[i + FAR]);
            PREFETCH(frames->crcs + index[i + FAR]);
        }
        size_t file = file_of(frames, index[i]), edge = (size_t)index[i] + file;
        frames->which[i] = number_anew(frames, (int64_t)file);
        /* Unsigned: an edge may be any number, and who uses these looks whether they lie in the file. */
        frames->starts[i] = (int64_t)((uint64_t)frames->edges[edge] + HEADER);
        frames->stops[i] = (int64_t)((uint64_t)frames->edges[edge + 1] - FOOTER);
        frames->found[i] = frames->crcs[index[i]];
    }
    return -1;
}

/* Base-128 numbers. */

static int64_t count_varints(Bytes bytes)
{
    int64_t count = 0;
    for (size_t i = 0; i < bytes.size; i++)
        count += bytes.data[i] < 128;
    return count;
}

/* All numbers of the bytes and where each ends, as far as there is room; says how many. */
static int64_t varints(Bytes bytes, int64_t *values, int64_t *ends, int64_t room)
{
    int64_t count = 0;
    uint64_t value = 0;
    unsigned int shift = 0;
    for (size_t i = 0; i < bytes.size && count < room; i++) {
        uint8_t byte = bytes.data[i];
        if (shift < 64)
            value |= (uint64_t)(byte & 127) << shift;
        shift = shift < 64 ? shift + 7 : shift;
        if (byte < 128) {
            values[count] = (int64_t)value;
            ends[count++] = (int64_t)i + 1;
            value = shift = 0;
        }
    }
    return count;
}

/* tf.train.Example. A record that is not understood is left to the parser in Python: it has the
   words for what is wrong. */

enum { BYTES = 0x0A, FLOAT = 0x12, INT64 = 0x1A };

typedef struct {
    const uint8_t *at, *end;
} Span;

/* One number of at most ten bytes; 0 where it is cut short or longer. */
static inline int number(Span *span, uint64_t *value)
{
    if (span->at < span->end && *span->at < 128) {
        *value = *span->at++;
        return 1;
    }
    uint64_t found = 0;
    for (unsigned int shift = 0; shift < 70 && span->at < span->end; shift += 7) {
        uint8_t byte = *span->at++;
        found |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            *value = found;
            return 1;
        }
    }
    return 0;
}

/* The next field of a message: its tag, and where its contents lie; 0 where it is malformed. */
static inline int field_of(Span *message, uint64_t *tag, Span *contents)
{
    const uint8_t *begin = message->at;
    uint64_t size;
    if (!number(message, tag) || (message->at - begin > 1 && message->at[-1] == 0))
        return 0;
    contents->at = message->at;
    switch (*tag & 7) {
    case 0:
        if (!number(message, &size))
            return 0;
        contents->end = message->at;
        return 1;
    case 1:
        size = 8;
        break;
    case 2:
        if (!number(message, &size))
            return 0;
        contents->at = message->at;
        break;
    case 5:
        size = 4;
        break;
    default:
        return 0;
    }
    if (size > (uint64_t)(message->end - message->at))
        return 0;
    contents->end = message->at += size;
    return 1;
}

/* One packed run of integers: how many; the first `room` are written. -1 where it is malformed. */
static int64_t packed_integers(Span run, int64_t *out, int64_t room)
{
    int64_t count = 0;
    uint64_t value;
    while (run.at < run.end) {
        if (!number(&run, &value))
            return -1;
        if (count < room)
            out[count] = (int64_t)value;
        count++;
    }
    return count;
}

static int64_t packed_floats(Span run, uint32_t *out, int64_t room)
{
    size_t size = (size_t)(run.end - run.at);
    int64_t count = (int64_t)(size / 4);
    if (size % 4)
        return -1;
    if (room > count)
        room = count;
    for (int64_t k = 0; k < room; k++)
        out[k] = load32(run.at + 4 * k);
    return count;
}

/* The values of one list: how many, the first `room` of them written to `out`; -1 where it is not
   understood. Of bytes, `out` gets where each begins, and `stops` where it ends, from `base` on. */
static int64_t list_values(Span list, uint8_t kind, void *out, int64_t *stops, int64_t room,
                           const uint8_t *base)
{
    int64_t count = 0;
    size_t parts = 0, runs = 0;
    uint64_t tag;
    Span part;
    while (list.at < list.end) {
        if (!field_of(&list, &tag, &part))
            return -1;
        int64_t left = room > count ? room - count : 0;
        if (kind == BYTES) {
            if (tag != 0x0A)
                continue;
            if (left) {
                ((int64_t *)out)[count] = part.at - base;
                stops[count] = part.end - base;
            }
            count++;
            continue;
        }
        int64_t found;
        if (tag == 0x0A) {
            runs++;
            if (kind == FLOAT)
                found = packed_floats(part, left ? (uint32_t *)out + count : NULL, left);
            else
                found = packed_integers(part, left ? (int64_t *)out + count : NULL, left);
        } else if (kind == FLOAT && tag == 0x0D) {
            found = packed_floats(part, left ? (uint32_t *)out + count : NULL, left);
        } else if (kind == INT64 && tag == 0x08) {
            found = packed_integers(part, left ? (int64_t *)out + count : NULL, left);
        } else {
            continue;
        }
        if (found < 0 || (++parts > 1 && runs))
            return -1;
        count += found;
    }
    return count;
}

typedef struct {
    Bytes name;
    uint8_t kind;
    int64_t count;         /* how many values each record has; -1: any number */
    void *out;             /* numbers of a fixed count: count for each record */
    const void *fallback;  /* what stands for a missing feature: that many numbers, or for bytes
                              anything; NULL: it may not be missing */
    int64_t *begins, *ends, *counts; /* of the others, for each record: where its list lies (of one
                                        bytes, the value itself), and how many values; -1: missing */
    Span found;
} Field;

enum { GUESSES = 32 };

typedef struct {
    Field *fields;
    size_t count;
    int32_t *slots; /* a hash table over the names: the number of a field, or -1 */
    size_t slot_mask;
    Field *guesses[GUESSES]; /* the field that the last record's entry of this number was, or NULL */
} Layout;

static size_t hash_of(Bytes name)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < name.size; i++)
        hash = (hash ^ name.data[i]) * 16777619u;
    return hash ^ hash >> 15;
}

/* `slots` has room for slot_mask + 1 numbers, a power of two above layout->count. */
static void fill_slots(Layout *layout)
{
    for (size_t slot = 0; slot <= layout->slot_mask; slot++)
        layout->slots[slot] = -1;
    for (size_t f = 0; f < layout->count; f++) {
        size_t slot = hash_of(layout->fields[f].name) & layout->slot_mask;
        while (layout->slots[slot] >= 0)
            slot = (slot + 1) & layout->slot_mask;
        layout->slots[slot] = (int32_t)f;
    }
}

static inline int is_named(const Field *field, Bytes name)
{
    return field->name.size == name.size
        && (!name.size || !memcmp(field->name.data, name.data, name.size));
}

/* Which field is asked for under this name, or NULL. Records have their entries in much the same order,
   so the one that was here in the last record is tried first. */
static Field *field_named(Layout *layout, Span name, size_t entry)
{
    Bytes bytes = {name.at, (size_t)(name.end - name.at)};
    Field *guess = entry < GUESSES ? layout->guesses[entry] : NULL;
    if (guess && is_named(guess, bytes))
        return guess;
    size_t slot = hash_of(bytes) & layout->slot_mask;
    for (; layout->slots[slot] >= 0; slot = (slot + 1) & layout->slot_mask) {
        Field *field = &layout->fields[layout->slots[slot]];
        if (is_named(field, bytes)) {
            if (entry < GUESSES)
                layout->guesses[entry] = field;
            return field;
        }
    }
    return NULL;
}

/* An entry as all writers write it: a name and a feature, in this order, and nothing else. 0 where it is
   any other, or none. */
static inline int usual_entry(Span entry, Span *name, Span *value)
{
    size_t size = (size_t)(entry.end - entry.at), length;
    uint64_t rest;
    if (size < 4 || entry.at[0] != 0x0A)
        return 0;
    length = entry.at[1];
    if (length > 127 || length > size - 4 || entry.at[2 + length] != 0x12)
        return 0;
    name->at = entry.at + 2;
    name->end = name->at + length;
    value->at = name->end + 1;
    value->end = entry.end;
    return number(value, &rest) && rest == (uint64_t)(value->end - value->at);
}

/* What lies behind one tag and a length, where that is all there is; 0 where it is not. */
static inline int only_part(Span message, uint8_t tag, Span *part)
{
    uint64_t rest;
    if (message.at == message.end || *message.at++ != tag || !number(&message, &rest)
        || rest != (uint64_t)(message.end - message.at))
        return 0;
    *part = message;
    return 1;
}

/* Find the Feature of each field in one Example; 0 where it is malformed. */
static int find_features(Span example, Layout *layout)
{
    uint64_t tag;
    size_t entries = 0;
    Span features, entry, part;
    for (size_t f = 0; f < layout->count; f++)
        layout->fields[f].found.at = NULL;
    while (example.at < example.end) {
        if (!field_of(&example, &tag, &features))
            return 0;
        if (tag != 0x0A)
            continue;
        while (features.at < features.end) {
            if (!field_of(&features, &tag, &entry))
                return 0;
            if (tag != 0x0A)
                continue;
            Span name, value;
            if (!usual_entry(entry, &name, &value)) {
                name.at = value.at = NULL;
                while (entry.at < entry.end) {
                    if (!field_of(&entry, &tag, &part))
                        return 0;
                    if (tag != 0x0A && tag != 0x12)
                        continue;
                    Span *which = tag == 0x0A ? &name : &value;
                    if (which->at)
                        return 0;
                    *which = part;
                }
                if (!name.at || !value.at)
                    return 0;
            }
            if (value.at < value.end) {
                Field *field = field_named(layout, name, entries);
                if (field)
                    field->found = value;
            }
            entries++;
        }
    }
    return 1;
}

/* The one list of a Feature, if it is of this kind; else 0. */
static int list_of(Span feature, uint8_t kind, Span *list)
{
    uint64_t tag;
    Span part;
    int lists = 0, fits = 0;
    if (only_part(feature, kind, list))
        return 1;
    while (feature.at < feature.end) {
        if (!field_of(&feature, &tag, &part))
            return 0;
        if (tag == BYTES || tag == FLOAT || tag == INT64) {
            lists++;
            fits = tag == kind;
            *list = part;
        }
    }
    return lists == 1 && fits;
}

static void take_fallback(Field *field, size_t row)
{
    if (field->out) {
        size_t size = (size_t)field->count * (field->kind == FLOAT ? 4 : 8);
        if (size)
            memcpy((uint8_t *)field->out + row * size, field->fallback, size);
        return;
    }
    field->begins[row] = field->ends[row] = 0;
    field->counts[row] = field->count < 0 ? 0 : -1;
}

/* What one record holds of a field, as row `row` of its column; 0 where it is not understood. */
static int take_field(Field *field, const uint8_t *base, size_t row)
{
    Span list, run;
    if (!field->found.at) {
        if (field->count >= 0 && !field->fallback)
            return 0;
        take_fallback(field, row);
        return 1;
    }
    if (!list_of(field->found, field->kind, &list))
        return 0;
    if (field->out) {
        size_t size = (size_t)field->count * (field->kind == FLOAT ? 4 : 8);
        void *out = (uint8_t *)field->out + row * size;
        if (field->kind == FLOAT && !BIG_ENDIAN_HOST && only_part(list, 0x0A, &run)) {
            if (size != (size_t)(run.end - run.at))
                return 0;
            if (size)
                memcpy(out, run.at, size);
            return 1;
        }
        return list_values(list, field->kind, out, NULL, field->count, base) == field->count;
    }
    field->begins[row] = list.at - base;
    field->ends[row] = list.end - base;
    int alone = field->kind == BYTES && field->count == 1;
    if (alone && only_part(list, 0x0A, &run)) {
        field->begins[row] = run.at - base;
        field->ends[row] = run.end - base;
        field->counts[row] = 1;
        return 1;
    }
    int64_t count = list_values(list, field->kind, alone ? field->begins + row : NULL,
                                alone ? field->ends + row : NULL, alone, base);
    field->counts[row] = count;
    return count >= 0 && (field->count < 0 || count == field->count);
}

/* Parse the records, and check their frames where `crcs` are given: -1, or the first record that is
   damaged or not understood. */
static int64_t examples(const Records *records, const uint32_t *crcs, Layout *layout)
{
    memset(layout->guesses, 0, sizeof layout->guesses);
    for (size_t i = 0; i < records->count; i++) {
        Bytes record = record_of_walk(records, i);
        if (crcs && !frame_holds(record.data, record.size, crcs[i]))
            return (int64_t)i;
        Span example = {record.data, record.data ? record.data + record.size : NULL};
        if (!find_features(example, layout))
            return (int64_t)i;
        const uint8_t *base = records->buffers[records->which[i]].data;
        for (size_t f = 0; f < layout->count; f++)
            if (!take_field(&layout->fields[f], base, i))
                return (int64_t)i;
    }
    return -1;
}

static void move_spans(Layout *layout, ptrdiff_t by)
{
    for (size_t f = 0; f < layout->count; f++) {
        if (!layout->fields[f].begins)
            continue;
        layout->fields[f].begins += by;
        layout->fields[f].ends += by;
        layout->fields[f].counts += by;
    }
}

/* As `examples`, from part p of the records on to part `stop`, each with outs of its own: a part ends before
   record ends[p], and outs[p * layout->count + f] is where it has the numbers of field f. Spans are those of
   the records from part p on. */
static int64_t examples_apart(const Records *records, const uint32_t *crcs, Layout *layout,
                              const int64_t *ends, size_t p, size_t stop, void *const *outs)
{
    size_t start = p ? (size_t)ends[p - 1] : 0, first = start;
    int64_t bad = -1;
    for (; p < stop; p++) {
        Records part = {records->buffers,        records->buffer_count,  records->which + first,
                        records->starts + first, records->stops + first, (size_t)ends[p] - first};
        for (size_t f = 0; f < layout->count; f++)
            layout->fields[f].out = outs[p * layout->count + f];
        bad = examples(&part, crcs ? crcs + first : NULL, layout);
        if (bad >= 0) {
            bad += (int64_t)first;
            break;
        }
        move_spans(layout, (ptrdiff_t)part.count);
        first = (size_t)ends[p];
    }
    move_spans(layout, -(ptrdiff_t)(first - start));
    return bad;
}

/* The values of all records' lists, one after the other: counts[i] of record i, `room` in all.
   0 where the lists are not (or no longer) so. A negative count is passed over. */
static int values_of(const Records *lists, uint8_t kind, const int64_t *counts, void *out,
                     int64_t *stops, int64_t room)
{
    int64_t filled = 0;
    for (size_t i = 0; i < lists->count; i++) {
        int64_t count = counts[i];
        if (count <= 0)
            continue;
        if (count > room - filled)
            return 0;
        Bytes record = record_at(lists, i);
        Span list = {record.data, record.data ? record.data + record.size : NULL};
        uint8_t *here = (uint8_t *)out + (size_t)filled * (kind == FLOAT ? 4 : 8);
        if (list_values(list, kind, here, stops ? stops + filled : NULL, count,
                        lists->buffers[lists->which[i]].data) != count)
            return 0;
        filled += count;
    }
    return filled == room;
}

/* "feistel-1"; `playhead/plan/permutation.py` says what it is. */

#define GOLDEN 0x9E3779B97F4A7C15u
enum { ROUNDS = 10, TOGETHER = 8, TABLE_BITS = 10 };

typedef struct {
    unsigned int left_bits, right_bits;
    uint64_t left_mask, right_mask;
    uint64_t round_keys[ROUNDS];
    uint16_t tables[ROUNDS][1 << TABLE_BITS];
} Network;

static inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static void set_length(Network *network, uint64_t length)
{
    unsigned int width = 0;
    while (width < 64 && (length - 1) >> width)
        width++;
    network->left_bits = width / 2;
    network->right_bits = width - width / 2;
    network->left_mask = ((uint64_t)1 << network->left_bits) - 1;
    network->right_mask = ((uint64_t)1 << network->right_bits) - 1;
}

static void set_key(Network *network, uint64_t key)
{
    for (int r = 0; r < ROUNDS; r++)
        network->round_keys[r] = mix(key + ((uint64_t)r + 1) * GOLDEN);
}

static void set_tables(Network *network)
{
    for (int r = 0; r < ROUNDS; r++) {
        uint64_t source = r % 2 ? network->left_mask : network->right_mask;
        uint64_t target = r % 2 ? network->right_mask : network->left_mask;
        for (uint64_t half = 0; half <= source; half++)
            network->tables[r][half] = (uint16_t)(mix(half ^ network->round_keys[r]) & target);
    }
}

static inline uint64_t encipher(const Network *network, uint64_t x)
{
    uint64_t left = x >> network->right_bits, right = x & network->right_mask;
    for (int r = 0; r < ROUNDS; r += 2) {
        left ^= mix(right ^ network->round_keys[r]) & network->left_mask;
        right ^= mix(left ^ network->round_keys[r + 1]) & network->right_mask;
    }
    return left << network->right_bits | right;
}

static inline uint64_t look_up(const Network *network, uint64_t x)
{
    uint64_t left = x >> network->right_bits, right = x & network->right_mask;
    for (int r = 0; r < ROUNDS; r += 2) {
        left ^= network->tables[r][right];
        right ^= network->tables[r + 1][left];
    }
    return left << network->right_bits | right;
}

/* One key for several places. All are below `length`, so walking a cycle ends in range. */
static void permute_run(const Network *network, const int64_t *index, size_t count, uint64_t length,
                        int tables, int64_t *out)
{
    size_t i = 0;
    if (tables) {
        for (; i < count; i++) {
            uint64_t x = look_up(network, (uint64_t)index[i]);
            while (x >= length)
                x = look_up(network, x);
            out[i] = (int64_t)x;
        }
        return;
    }
    /* Several at once: one alone would wait for each of its multiplications. */
    for (; i + TOGETHER <= count; i += TOGETHER) {
        uint64_t left[TOGETHER], right[TOGETHER];
        for (int k = 0; k < TOGETHER; k++) {
            left[k] = (uint64_t)index[i + k] >> network->right_bits;
            right[k] = (uint64_t)index[i + k] & network->right_mask;
        }
        for (int r = 0; r < ROUNDS; r += 2) {
            for (int k = 0; k < TOGETHER; k++)
                left[k] ^= mix(right[k] ^ network->round_keys[r]) & network->left_mask;
            for (int k = 0; k < TOGETHER; k++)
                right[k] ^= mix(left[k] ^ network->round_keys[r + 1]) & network->right_mask;
        }
        for (int k = 0; k < TOGETHER; k++) {
            uint64_t x = left[k] << network->right_bits | right[k];
            while (x >= length)
                x = encipher(network, x);
            out[i + k] = (int64_t)x;
        }
    }
    for (; i < count; i++) {
        uint64_t x = encipher(network, (uint64_t)index[i]);
        while (x >= length)
            x = encipher(network, x);
        out[i] = (int64_t)x;
    }
}

/* The elements at the places `index`, with one key or (key_step 1) a key for each place. 0 where a
   place is outside range(length). `length` is from 1 to 2**62. */
static int permute(Network *network, const int64_t *index, size_t count, uint64_t length,
                   const uint64_t *keys, size_t key_step, int64_t *out)
{
    for (size_t i = 0; i < count; i++)
        if ((uint64_t)index[i] >= length)
            return 0;
    set_length(network, length);
    for (size_t i = 0, stop; i < count; i = stop) {
        stop = key_step ? i + 1 : count;
        while (stop < count && keys[stop] == keys[i])
            stop++;
        set_key(network, keys[i]);
        /* A table costs as much as that many places do. */
        int tables = network->right_bits <= TABLE_BITS && (stop - i) >> network->right_bits >= 2;
        if (tables)
            set_tables(network);
        permute_run(network, index + i, stop - i, length, tables, out + i);
    }
    return 1;
}

/* Rows of an array. */

typedef struct {
    const uint8_t *data;
    ptrdiff_t stride;
    size_t rows, row_size;
} Column;

/* 0 where an index is outside range(rows); then nothing is written. */
static int gather(const Column *column, const int64_t *index, size_t count, uint8_t *out)
{
    size_t size = column->row_size;
    ptrdiff_t stride = column->stride;
    for (size_t i = 0; i < count; i++)
        if ((uint64_t)index[i] >= column->rows)
            return 0;
#define GATHER(SIZE)                                                                               \
    for (size_t i = 0; i < count; i++)                                                             \
        memcpy(out + i * (SIZE), column->data + (ptrdiff_t)index[i] * stride, SIZE);               \
    return 1
    switch (size) {
    case 0:
        return 1;
    case 1:
        GATHER(1);
    case 2:
        GATHER(2);
    case 4:
        GATHER(4);
    case 8:
        GATHER(8);
    case 16:
        GATHER(16);
    }
#undef GATHER
    for (size_t i = 0; i < count; i++) {
        if (i + 2 < count) {
            const uint8_t *later = column->data + (ptrdiff_t)index[i + 2] * stride;
            for (size_t ahead = 0; ahead < size && ahead < 512; ahead += 64)
                PREFETCH(later + ahead);
        }
        memcpy(out + i * size, column->data + (ptrdiff_t)index[i] * stride, size);
    }
    return 1;
}

#ifndef PLAYHEAD_CORE_ONLY

/* The module. Every function checks the sizes of what it is given, holds the buffers while it works,
   and lets other threads run where that takes long enough to be worth it. */

#define LONG_WORK 32768 /* bytes */

#define WORK(bytes, statement)                                                                     \
    do {                                                                                           \
        if ((bytes) > LONG_WORK) {                                                                 \
            Py_BEGIN_ALLOW_THREADS statement;                                                      \
            Py_END_ALLOW_THREADS                                                                   \
        } else {                                                                                   \
            statement;                                                                             \
        }                                                                                          \
    } while (0)

/* A contiguous buffer of `count` items (any number where that is negative) of `size` bytes each. */
static int take(PyObject *object, Py_buffer *view, int writable, Py_ssize_t size, Py_ssize_t count)
{
    view->obj = NULL;
    if (PyObject_GetBuffer(object, view, writable ? PyBUF_CONTIG : PyBUF_CONTIG_RO) < 0)
        return 0;
    if (view->len % size || (count >= 0 && view->len / size != count)
        || (view->len && (size_t)(uintptr_t)view->buf % (size_t)size)) {
        PyErr_Format(PyExc_ValueError,
                     "a buffer of %zd aligned items of %zd bytes is needed, this one has %zd bytes",
                     count, size, view->len);
        PyBuffer_Release(view);
        view->obj = NULL;
        return 0;
    }
    return 1;
}

static void release(Py_buffer *views, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++)
        if (views[i].obj)
            PyBuffer_Release(&views[i]);
}

static Bytes bytes_of(const Py_buffer *view)
{
    Bytes bytes = {view->buf, (size_t)view->len};
    return bytes;
}

/* Records given as Python objects, with all that is held for them. */
typedef struct {
    PyObject *buffers;
    Py_ssize_t buffer_count;
    Py_buffer *views;
    Bytes *bytes;
    Py_buffer which, starts, stops;
    Records records;
    size_t total;
} Held;

static void let_go(Held *held)
{
    if (held->views)
        release(held->views, held->buffer_count);
    release(&held->which, 1);
    release(&held->starts, 1);
    release(&held->stops, 1);
    PyMem_Free(held->views);
    PyMem_Free(held->bytes);
    Py_XDECREF(held->buffers);
}

static int hold(Held *held, PyObject *buffers, PyObject *which, PyObject *starts, PyObject *stops,
                int framed)
{
    memset(held, 0, sizeof *held);
    held->buffers = PySequence_Tuple(buffers);
    if (!held->buffers)
        return 0;
    held->buffer_count = PyTuple_Size(held->buffers);
    held->views = PyMem_Calloc((size_t)held->buffer_count + 1, sizeof(Py_buffer));
    held->bytes = PyMem_Calloc((size_t)held->buffer_count + 1, sizeof(Bytes));
    if (!held->views || !held->bytes) {
        PyErr_NoMemory();
        goto fail;
    }
    for (Py_ssize_t i = 0; i < held->buffer_count; i++) {
        if (!take(PyTuple_GetItem(held->buffers, i), &held->views[i], 0, 1, -1))
            goto fail;
        held->bytes[i] = bytes_of(&held->views[i]);
    }
    if (!take(which, &held->which, 0, 8, -1)
        || !take(starts, &held->starts, 0, 8, held->which.len / 8)
        || !take(stops, &held->stops, 0, 8, held->which.len / 8))
        goto fail;
    Records records = {held->bytes,      (size_t)held->buffer_count, held->which.buf,
                       held->starts.buf, held->stops.buf,            (size_t)held->which.len / 8};
    held->records = records;
    if (!records_lie_inside(&records, framed ? HEADER : 0, framed ? FOOTER : 0)) {
        PyErr_SetString(PyExc_ValueError, "a record does not lie inside its buffer");
        goto fail;
    }
    for (size_t i = 0; i < records.count; i++)
        held->total += (size_t)(records.stops[i] - records.starts[i]) + 16;
    return 1;
fail:
    let_go(held);
    return 0;
}

static PyObject *checksum(PyObject *data, uint32_t (*made)(uint32_t), Crc crc)
{
    Py_buffer view;
    uint32_t found;
    if (!take(data, &view, 0, 1, -1))
        return NULL;
    WORK(view.len, found = made(~crc(~0u, view.buf, (size_t)view.len)));
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(found);
}

static uint32_t unchanged(uint32_t crc)
{
    return crc;
}

static PyObject *py_crc32c(PyObject *module, PyObject *data)
{
    (void)module;
    return checksum(data, unchanged, crc_chosen);
}

static PyObject *py_crc32c_portable(PyObject *module, PyObject *data)
{
    (void)module;
    return checksum(data, unchanged, crc_portable);
}

static PyObject *py_masked_crc32c(PyObject *module, PyObject *data)
{
    (void)module;
    return checksum(data, masked, crc_chosen);
}

static PyObject *py_scan(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *buffer, *offsets, *lengths, *crcs;
    Py_ssize_t start, stop;
    int verify, reason = SOUND;
    Py_buffer views[4];
    if (!PyArg_ParseTuple(args, "OnnpOOO", &buffer, &start, &stop, &verify, &offsets, &lengths,
                          &crcs))
        return NULL;
    memset(views, 0, sizeof views);
    Found found = {NULL, NULL, NULL, 0, 0};
    size_t position = (size_t)start;
    if (!take(buffer, &views[0], 0, 1, -1) || !take(offsets, &views[1], 1, 8, -1)
        || !take(lengths, &views[2], 1, 8, views[1].len / 8)
        || !take(crcs, &views[3], 1, 4, views[1].len / 8))
        goto done;
    if (start < 0 || stop > views[0].len) {
        PyErr_SetString(PyExc_ValueError, "a scan begins and stops inside its buffer");
        goto done;
    }
    found.offsets = views[1].buf;
    found.lengths = views[2].buf;
    found.crcs = views[3].buf;
    found.room = (size_t)views[1].len / 8;
    if (start < stop)
        WORK(stop - start, reason = scan(bytes_of(&views[0]), &position, (size_t)stop, verify,
                                         &found));
done:
    release(views, 4);
    if (PyErr_Occurred())
        return NULL;
    return Py_BuildValue("nni", (Py_ssize_t)found.count, (Py_ssize_t)position, reason);
}

static PyObject *py_count_varints(PyObject *module, PyObject *data)
{
    (void)module;
    Py_buffer view;
    int64_t count;
    if (!take(data, &view, 0, 1, -1))
        return NULL;
    WORK(view.len, count = count_varints(bytes_of(&view)));
    PyBuffer_Release(&view);
    return PyLong_FromLongLong(count);
}

static PyObject *py_varints(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data, *values, *ends;
    Py_buffer views[3];
    int64_t count = 0;
    if (!PyArg_ParseTuple(args, "OOO", &data, &values, &ends))
        return NULL;
    memset(views, 0, sizeof views);
    if (take(data, &views[0], 0, 1, -1) && take(values, &views[1], 1, 8, -1)
        && take(ends, &views[2], 1, 8, views[1].len / 8))
        WORK(views[0].len, count = varints(bytes_of(&views[0]), views[1].buf, views[2].buf,
                                           views[1].len / 8));
    release(views, 3);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(count);
}

static PyObject *py_check(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *buffers, *which, *starts, *stops, *crcs;
    Py_buffer view;
    Held held;
    int64_t bad = -1;
    if (!PyArg_ParseTuple(args, "OOOOO", &buffers, &which, &starts, &stops, &crcs)
        || !hold(&held, buffers, which, starts, stops, 1))
        return NULL;
    if (take(crcs, &view, 0, 4, (Py_ssize_t)held.records.count)) {
        WORK(held.total, bad = check(&held.records, view.buf));
        PyBuffer_Release(&view);
    }
    let_go(&held);
    return PyErr_Occurred() ? NULL : PyLong_FromLongLong(bad);
}

/* How many files; raises IndexError. */
static PyObject *py_frames(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *given[9];
    Py_buffer views[9];
    int64_t bad = -1;
    Frames frames;
    if (!PyArg_ParseTuple(args, "OOOOOOOOO", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &given[5], &given[6], &given[7], &given[8]))
        return NULL;
    memset(views, 0, sizeof views);
    memset(&frames, 0, sizeof frames);
    if (!take(given[0], &views[0], 0, 8, -1) || !take(given[1], &views[1], 0, 8, -1)
        || !take(given[3], &views[3], 0, 4, -1))
        goto done;
    Py_ssize_t count = views[0].len / 8;
    frames.files = (size_t)views[1].len / 8;
    frames.records = frames.files ? (size_t)views[3].len / 4 : 0;
    if (!take(given[2], &views[2], 0, 8, (Py_ssize_t)(frames.records + frames.files)))
        goto done;
    for (int k = 4; k < 9; k++)
        if (!take(given[k], &views[k], 1, k == 7 ? 4 : 8, count))
            goto done;
    while (frames.slot_mask < 2 * (size_t)count)
        frames.slot_mask = 2 * frames.slot_mask + 1;
    frames.slots = PyMem_Malloc((frames.slot_mask + 1) * sizeof *frames.slots);
    if (!frames.slots) {
        PyErr_NoMemory();
        goto done;
    }
    frames.firsts = views[1].buf;
    frames.edges = views[2].buf;
    frames.crcs = views[3].buf;
    frames.which = views[4].buf;
    frames.starts = views[5].buf;
    frames.stops = views[6].buf;
    frames.found = views[7].buf;
    frames.names = views[8].buf;
    /* With the lock: giving it away and getting it back takes longer. */
    bad = find_frames(&frames, views[0].buf, (size_t)count);
    if (bad >= 0)
        PyErr_Format(PyExc_IndexError, "record %lld of %zu",
                     (long long)((const int64_t *)views[0].buf)[bad], frames.records);
    PyMem_Free(frames.slots);
done:
    release(views, 9);
    return PyErr_Occurred() ? NULL : PyLong_FromSize_t(frames.different);
}

static PyObject *py_slices(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *buffers, *which, *starts, *stops, *list;
    Held held;
    if (!PyArg_ParseTuple(args, "OOOO", &buffers, &which, &starts, &stops)
        || !hold(&held, buffers, which, starts, stops, 0))
        return NULL;
    list = PyList_New((Py_ssize_t)held.records.count);
    for (size_t i = 0; list && i < held.records.count; i++) {
        Bytes record = record_at(&held.records, i);
        PyObject *item
            = PyBytes_FromStringAndSize((const char *)record.data, (Py_ssize_t)record.size);
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0)
            Py_CLEAR(list);
    }
    let_go(&held);
    return list;
}

static PyObject *py_join(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *buffers, *which, *starts, *stops, *outs;
    Held held;
    if (!PyArg_ParseTuple(args, "OOOOO!", &buffers, &which, &starts, &stops, &PyTuple_Type, &outs)
        || !hold(&held, buffers, which, starts, stops, 0))
        return NULL;
    Py_ssize_t parts = PyTuple_Size(outs);
    size_t room = 0, total = 0;
    Py_buffer *views = PyMem_Calloc((size_t)parts + 1, sizeof *views);
    Bytes *into = PyMem_Calloc((size_t)parts + 1, sizeof *into);
    if (!views || !into) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t p = 0; p < parts; p++) {
        if (!take(PyTuple_GetItem(outs, p), &views[p], 1, 1, -1))
            goto done;
        into[p] = bytes_of(&views[p]);
        room = into[p].size > SIZE_MAX - room ? SIZE_MAX : room + into[p].size;
    }
    for (size_t i = 0; i < held.records.count; i++) {
        size_t size = record_at(&held.records, i).size;
        total = size > SIZE_MAX - total ? SIZE_MAX : total + size;
    }
    if (room != total || total == SIZE_MAX)
        PyErr_SetString(PyExc_ValueError, "the records do not fill the arrays they are to go to");
    else
        WORK(total, join(&held.records, into));
done:
    if (views)
        release(views, parts);
    PyMem_Free(views);
    PyMem_Free(into);
    let_go(&held);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* Whether each record has one value, which is bytes. */
static int is_single(const Field *field)
{
    return field->kind == BYTES && field->count == 1;
}

/* Whether each record has as many numbers, which go into an array. */
static int is_array(const Field *field)
{
    return field->kind != BYTES && field->count >= 0;
}

static int take_objects(PyObject *out, Py_buffer *view, Py_ssize_t rows)
{
    if (PyObject_GetBuffer(out, view, PyBUF_CONTIG | PyBUF_FORMAT) < 0) {
        view->obj = NULL;
        return 0;
    }
    if (view->format && !strcmp(view->format, "O")
        && view->len == rows * (Py_ssize_t)sizeof(PyObject *))
        return 1;
    PyErr_SetString(PyExc_ValueError, "an array of one object for each record is needed");
    return 0;
}

/* What is known of a group's single values, for each field and record: where they begin and end, how many
   there are, and where the object is that they are copied into; 0: nowhere. */
enum { BEGINS, ENDS, COUNTS, LIST_COLUMNS, INTO = LIST_COLUMNS, SPAN_COLUMNS };

/* Objects for the bytes of the rows from `first` on, to be filled later, or of a missing one the fallback. */
static int make_objects(const Field *field, size_t first, size_t rows, PyObject *fallback,
                        PyObject **items, int64_t *into)
{
    for (size_t i = first; i < first + rows; i++) {
        PyObject *before = *items, *item = fallback;
        if (before && before != Py_None) { /* it may be one that is not filled yet */
            PyErr_SetString(PyExc_ValueError, "bytes go into an array of objects without any");
            return 0;
        }
        into[i] = 0;
        if (field->counts[i] < 0) {
            Py_INCREF(item);
        } else {
            item = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(field->ends[i] - field->begins[i]));
            if (!item)
                return 0;
            into[i] = (int64_t)(intptr_t)PyBytes_AsString(item);
        }
        *items++ = item;
        Py_XDECREF(before);
    }
    return 1;
}

/* Fill the records' objects, of each of `singles` fields: nobody else has seen them yet. */
static void fill_objects(const Records *records, const int64_t *spans, size_t singles, size_t most)
{
    for (size_t s = 0; s < singles; s++, spans += SPAN_COLUMNS * most) {
        const int64_t *begins = spans + BEGINS * most, *ends = spans + ENDS * most;
        const int64_t *into = spans + INTO * most;
        for (size_t i = 0; i < records->count; i++)
            if (into[i])
                memcpy((char *)(intptr_t)into[i],
                       records->buffers[records->which[i]].data + begins[i],
                       (size_t)(ends[i] - begins[i]));
    }
}

/* Where a part has the values of a field, for each of its records: numbers of a fixed count, or objects.
   NULL for any other field. */
static int take_out(const Field *field, Py_buffer *view, PyObject *out, Py_ssize_t rows, void **at)
{
    static uint64_t nothing;
    if (!out)
        return 0;
    int wanted = is_single(field) || is_array(field);
    if (wanted != (out != Py_None)) {
        PyErr_SetString(PyExc_ValueError, "values of a fixed count go into an array, others do not");
        return 0;
    }
    *at = NULL;
    if (!wanted)
        return 1;
    if (is_single(field))
        return take_objects(out, view, rows);
    if (PyObject_GetBuffer(out, view, PyBUF_CONTIG | PyBUF_FORMAT) < 0) {
        view->obj = NULL;
        return 0;
    }
    int objects = view->format && strchr(view->format, 'O');
    PyBuffer_Release(view);
    view->obj = NULL;
    if (objects) {
        PyErr_SetString(PyExc_ValueError, "numbers do not go into an array of objects");
        return 0;
    }
    if (!take(out, view, 1, field->kind == FLOAT ? 4 : 8, rows * (Py_ssize_t)field->count))
        return 0;
    *at = view->len ? view->buf : &nothing;
    return 1;
}

/* Fill one field of a layout from the arguments; `views` is for its name and its default. */
static int take_field_of(Field *field, Py_buffer *views, PyObject *name, PyObject *fallback,
                         Py_ssize_t rows)
{
    static uint64_t nothing;
    Py_ssize_t size = field->kind == FLOAT ? 4 : 8, given = -1;
    if (field->kind != BYTES && field->kind != FLOAT && field->kind != INT64) {
        PyErr_SetString(PyExc_ValueError, "a kind is bytes, float or int64");
        return 0;
    }
    if (field->count > PY_SSIZE_T_MAX / (rows ? rows : 1) / 8) {
        PyErr_SetString(PyExc_ValueError, "a count is too large");
        return 0;
    }
    if (!name || !fallback || !take(name, &views[0], 0, 1, -1))
        return 0;
    field->name = bytes_of(&views[0]);
    if (fallback == Py_None)
        return 1;
    if (is_single(field) && !PyBytes_Check(fallback)) {
        PyErr_SetString(PyExc_ValueError, "a default for bytes is bytes");
        return 0;
    }
    if (is_array(field))
        given = size * (Py_ssize_t)field->count;
    if (!take(fallback, &views[1], 0, 1, given))
        return 0;
    field->fallback = views[1].len ? views[1].buf : &nothing;
    return 1;
}

static int ends_fit(const int64_t *ends, size_t parts, size_t rows)
{
    int64_t before = 0;
    for (size_t p = 0; p < parts; p++) {
        if (ends[p] < before || (uint64_t)ends[p] > rows)
            return 0;
        before = ends[p];
    }
    return (uint64_t)before == rows;
}

/* What is asked of `examples`, with all that is held for it. */
typedef struct {
    Held held;
    Layout layout;
    Py_ssize_t count, rows, parts, given; /* fields, records, parts, and fields of all parts */
    size_t singles, others;               /* fields of one value of bytes, and those not of an array */
    Py_buffer kinds, counts, spans, ends, crcs;
    Py_buffer *views, *out_views;
    void **places;    /* of the outs that are numbers */
    int64_t *scratch; /* spans of single values, which are needed only for a moment */
    PyObject *fallbacks;
} Asked;

static void forget(Asked *asked)
{
    if (asked->views)
        release(asked->views, 2 * asked->count);
    if (asked->out_views)
        release(asked->out_views, asked->given);
    release(&asked->kinds, 1);
    release(&asked->counts, 1);
    release(&asked->spans, 1);
    release(&asked->ends, 1);
    release(&asked->crcs, 1);
    PyMem_Free(asked->views);
    PyMem_Free(asked->out_views);
    PyMem_Free(asked->places);
    PyMem_Free(asked->scratch);
    PyMem_Free(asked->layout.fields);
    PyMem_Free(asked->layout.slots);
    let_go(&asked->held);
}

static int64_t part_begin(const Asked *asked, Py_ssize_t part)
{
    return part ? ((const int64_t *)asked->ends.buf)[part - 1] : 0;
}

static int take_layout(Asked *asked, PyObject *names, PyObject *outs)
{
    Layout *layout = &asked->layout;
    layout->count = (size_t)asked->count;
    while (layout->slot_mask < 2 * layout->count)
        layout->slot_mask = 2 * layout->slot_mask + 1;
    layout->fields = PyMem_Calloc(layout->count + 1, sizeof(Field));
    layout->slots = PyMem_Calloc(layout->slot_mask + 1, sizeof(int32_t));
    asked->views = PyMem_Calloc(2 * layout->count + 1, sizeof(Py_buffer));
    asked->out_views = PyMem_Calloc((size_t)asked->given + 1, sizeof(Py_buffer));
    asked->places = PyMem_Calloc((size_t)asked->given + 1, sizeof(void *));
    if (!layout->fields || !layout->slots || !asked->views || !asked->out_views || !asked->places) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t f = 0; f < asked->count; f++) {
        Field *field = &layout->fields[f];
        field->kind = ((const uint8_t *)asked->kinds.buf)[f];
        field->count = ((const int64_t *)asked->counts.buf)[f];
        if (!take_field_of(field, asked->views + 2 * f, PyTuple_GetItem(names, f),
                           PyTuple_GetItem(asked->fallbacks, f), asked->rows))
            return 0;
        asked->singles += is_single(field);
        asked->others += !is_single(field) && !is_array(field);
    }
    for (Py_ssize_t k = 0; k < asked->given; k++) {
        Py_ssize_t part = k / asked->count;
        int64_t size = part_begin(asked, part + 1) - part_begin(asked, part);
        if (!take_out(&layout->fields[k % asked->count], &asked->out_views[k],
                      PyTuple_GetItem(outs, k), (Py_ssize_t)size, &asked->places[k]))
            return 0;
    }
    fill_slots(layout);
    return 1;
}

/* Where the fields have the spans of the rows from `row` on, which are `most` rows at most. */
static void place_spans(Asked *asked, Py_ssize_t row, size_t most)
{
    int64_t *others = (int64_t *)asked->spans.buf + row, *singles = asked->scratch;
    for (Py_ssize_t f = 0; f < asked->count; f++) {
        Field *field = &asked->layout.fields[f];
        int64_t **next = is_single(field) ? &singles : &others;
        size_t apart = is_single(field) ? most : (size_t)asked->rows;
        if (is_array(field))
            continue;
        field->begins = *next + BEGINS * apart;
        field->ends = *next + ENDS * apart;
        field->counts = *next + COUNTS * apart;
        *next += (is_single(field) ? SPAN_COLUMNS : LIST_COLUMNS) * apart;
    }
}

/* The records' values: -1, or the first record that is not understood; -2 where an exception was raised.

   A few parts at a time, so that what was parsed is still near when it is copied. Python's lock is held only
   to make the objects, which are filled before the next parts are parsed. After an exception some are not. */
static int64_t read_examples(Asked *asked)
{
    enum { NEARBY = 1 << 20 };
    Held *held = &asked->held;
    const int64_t *ends = asked->ends.buf;
    size_t nbytes = held->total / (size_t)(asked->parts + 1) + 1; /* of a part */
    Py_ssize_t share = 1 + (Py_ssize_t)(NEARBY / nbytes);
    size_t most = 0;
    for (Py_ssize_t p = 0; p < asked->parts; p++) {
        Py_ssize_t stop = p + share < asked->parts ? p + share : asked->parts;
        size_t rows = (size_t)(part_begin(asked, stop) - part_begin(asked, p));
        most = rows > most ? rows : most;
    }
    size_t room = SPAN_COLUMNS * most * asked->singles;
    if (most <= (size_t)PY_SSIZE_T_MAX / 32 / SPAN_COLUMNS / (asked->singles ? asked->singles : 1))
        asked->scratch = PyMem_Malloc((room + 1) * sizeof(int64_t));
    if (!asked->scratch) {
        PyErr_NoMemory();
        return -2;
    }
    Records before = held->records; /* whose objects are made and not filled */
    before.count = 0;
    for (Py_ssize_t p = 0, stop; p < asked->parts; p = stop) {
        int64_t first = part_begin(asked, p), bad;
        stop = p + share < asked->parts ? p + share : asked->parts;
        place_spans(asked, (Py_ssize_t)first, most);
        WORK(nbytes * (size_t)(stop - p),
             fill_objects(&before, asked->scratch, asked->singles, most);
             bad = examples_apart(&held->records, asked->crcs.buf, &asked->layout, ends, (size_t)p,
                                  (size_t)stop, asked->places));
        if (bad >= 0)
            return bad;
        for (Py_ssize_t k = p * asked->count; k < stop * asked->count; k++) {
            const Field *field = &asked->layout.fields[k % asked->count];
            int64_t begin = part_begin(asked, k / asked->count), end = ends[k / asked->count];
            if (is_single(field)
                && !make_objects(field, (size_t)(begin - first), (size_t)(end - begin),
                                 PyTuple_GetItem(asked->fallbacks, k % asked->count),
                                 asked->out_views[k].buf,
                                 field->begins + (INTO - BEGINS) * most))
                return -2;
        }
        before.which = held->records.which + first;
        before.count = (size_t)(part_begin(asked, stop) - first);
    }
    WORK(asked->singles ? before.count * (held->total / (held->records.count + 1)) : 0,
         fill_objects(&before, asked->scratch, asked->singles, most));
    return -1;
}

static PyObject *py_examples(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *buffers, *which, *starts, *stops, *crcs, *names, *kinds, *counts, *outs, *fallbacks;
    PyObject *spans, *ends;
    Asked asked;
    int64_t bad = -2;
    memset(&asked, 0, sizeof asked);
    asked.layout.slot_mask = 1;
    if (!PyArg_ParseTuple(args, "OOOOOO!OOOO!O!O", &buffers, &which, &starts, &stops, &crcs,
                          &PyTuple_Type, &names, &kinds, &counts, &ends, &PyTuple_Type, &outs,
                          &PyTuple_Type, &fallbacks, &spans)
        || !hold(&asked.held, buffers, which, starts, stops, crcs != Py_None))
        return NULL;
    asked.count = PyTuple_Size(names);
    asked.rows = (Py_ssize_t)asked.held.records.count;
    asked.given = PyTuple_Size(outs);
    asked.fallbacks = fallbacks;
    if (PyTuple_Size(fallbacks) != asked.count || asked.count > 1 << 20) {
        PyErr_SetString(PyExc_ValueError, "each field needs a name, and a default or None");
        goto done;
    }
    if (!take(kinds, &asked.kinds, 0, 1, asked.count)
        || !take(counts, &asked.counts, 0, 8, asked.count) || !take(ends, &asked.ends, 0, 8, -1)
        || (crcs != Py_None && !take(crcs, &asked.crcs, 0, 4, asked.rows)))
        goto done;
    asked.parts = asked.ends.len / 8;
    if (asked.parts > 1 << 20 || asked.given != asked.parts * asked.count
        || !ends_fit(asked.ends.buf, (size_t)asked.parts, (size_t)asked.rows)) {
        PyErr_SetString(PyExc_ValueError,
                        "the parts end one after the other, the last at the last record, and each "
                        "needs an array or None for every field");
        goto done;
    }
    if (take_layout(&asked, names, outs)
        && take(spans, &asked.spans, 1, 8, 3 * (Py_ssize_t)asked.others * asked.rows))
        bad = read_examples(&asked);
done:
    forget(&asked);
    return bad == -2 ? NULL : PyLong_FromLongLong(bad);
}

static PyObject *py_values(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *buffers, *which, *begins, *ends, *counts, *out;
    Py_buffer views[2];
    Held held;
    int kind, fits = 0;
    if (!PyArg_ParseTuple(args, "iOOOOOO", &kind, &buffers, &which, &begins, &ends, &counts, &out)
        || !hold(&held, buffers, which, begins, ends, 0))
        return NULL;
    memset(views, 0, sizeof views);
    Py_ssize_t size = kind == BYTES ? 16 : kind == FLOAT ? 4 : 8;
    if (kind != BYTES && kind != FLOAT && kind != INT64)
        PyErr_SetString(PyExc_ValueError, "a kind is bytes, float or int64");
    else if (take(counts, &views[0], 0, 8, (Py_ssize_t)held.records.count)
             && take(out, &views[1], 1, kind == FLOAT ? 4 : 8, -1)) {
        int64_t room = views[1].len / size;
        int64_t *stops = kind == BYTES ? (int64_t *)views[1].buf + room : NULL;
        if (views[1].len % size)
            PyErr_SetString(PyExc_ValueError, "bytes need as many ends as beginnings");
        else
            WORK(held.total, fits = values_of(&held.records, (uint8_t)kind, views[0].buf,
                                              views[1].buf, stops, room));
    }
    release(views, 2);
    let_go(&held);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(fits);
}

static PyObject *py_feistel(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *index, *keys, *out;
    unsigned long long length;
    Py_buffer views[3];
    int inside = 0;
    if (!PyArg_ParseTuple(args, "OKOO", &index, &length, &keys, &out))
        return NULL;
    memset(views, 0, sizeof views);
    if (length < 1 || length > (uint64_t)1 << 62) {
        PyErr_SetString(PyExc_ValueError, "a length is from 1 to 2**62");
        return NULL;
    }
    Network *network = PyMem_Malloc(sizeof *network);
    if (!network)
        return PyErr_NoMemory();
    if (take(index, &views[0], 0, 8, -1) && take(keys, &views[1], 0, 8, -1)
        && take(out, &views[2], 1, 8, views[0].len / 8)) {
        Py_ssize_t count = views[0].len / 8, given = views[1].len / 8;
        if (given != 1 && given != count)
            PyErr_SetString(PyExc_ValueError, "one key is needed, or one for each place");
        else
            WORK(views[0].len * 4,
                 inside = permute(network, views[0].buf, (size_t)count, length, views[1].buf,
                                  given == 1 ? 0 : 1, views[2].buf));
    }
    release(views, 3);
    PyMem_Free(network);
    if (!PyErr_Occurred() && !inside)
        PyErr_Format(PyExc_IndexError, "a place is outside range(%llu)", length);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

/* Rows into several arrays, one after the other; 0 where an index is outside, before anything is written. */
static int gather_apart(const Column *column, const int64_t *index, size_t count,
                        const Py_buffer *outs, size_t parts)
{
    for (size_t i = 0; i < count; i++)
        if ((uint64_t)index[i] >= column->rows)
            return 0;
    for (size_t p = 0; p < parts && column->row_size; p++) {
        size_t rows = (size_t)outs[p].len / column->row_size;
        gather(column, index, rows, outs[p].buf);
        index += rows;
    }
    return 1;
}

/* False where the rows are not contiguous each. */
static PyObject *py_gather(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *array, *index, *outs;
    Py_buffer views[2], *out_views = NULL;
    int inside = 1, handled = 0;
    if (!PyArg_ParseTuple(args, "OOO!", &array, &index, &PyTuple_Type, &outs))
        return NULL;
    memset(views, 0, sizeof views);
    Py_ssize_t parts = PyTuple_Size(outs), room = 0;
    if (PyObject_GetBuffer(array, &views[0], PyBUF_STRIDED_RO) < 0)
        return NULL;
    Py_ssize_t row = views[0].itemsize;
    int contiguous = views[0].ndim > 0, uneven = 0;
    for (int axis = views[0].ndim - 1; axis > 0; axis--) {
        if (views[0].shape[axis] > 1 && views[0].strides[axis] != row)
            contiguous = 0;
        row *= views[0].shape[axis];
    }
    if (!contiguous)
        goto done;
    if (!take(index, &views[1], 0, 8, -1))
        goto done;
    Py_ssize_t count = views[1].len / 8;
    out_views = PyMem_Calloc((size_t)parts + 1, sizeof *out_views);
    if (!out_views) {
        PyErr_NoMemory();
        goto done;
    }
    for (Py_ssize_t p = 0; p < parts; p++) {
        if (!take(PyTuple_GetItem(outs, p), &out_views[p], 1, 1, -1))
            goto done;
        uneven = uneven || (row && out_views[p].len % row) || out_views[p].len > PY_SSIZE_T_MAX - room;
        room = uneven ? 0 : room + out_views[p].len;
    }
    if ((row && count > PY_SSIZE_T_MAX / row) || room != count * row || uneven) {
        PyErr_SetString(PyExc_ValueError, "the rows do not fill the arrays they are to go to");
        goto done;
    }
    Column column = {views[0].buf, views[0].strides[0], (size_t)views[0].shape[0], (size_t)row};
    WORK(room, inside = gather_apart(&column, views[1].buf, (size_t)count, out_views, (size_t)parts));
    handled = 1;
done:
    release(views, 2);
    if (out_views)
        release(out_views, parts);
    PyMem_Free(out_views);
    if (!PyErr_Occurred() && !inside)
        PyErr_SetString(PyExc_IndexError, "an index is outside the array");
    return PyErr_Occurred() ? NULL : PyBool_FromLong(handled);
}

/* Memory for batches. A piece is used again once the array over it is gone: fresh pages can cost as much
   as filling them, and a loop that drops one batch for the next gets the same few pieces. All of it is C:
   an array may die anywhere, and Python code at its end could be interrupted, with the interrupt lost. */

#define ALIGNMENT 64
#define DOUBLINGS 10
#define WORTH_KEEPING ((size_t)1 << 16)      /* bytes; below, the allocator is as quick */
#define IDLE (WORTH_KEEPING << DOUBLINGS)    /* bytes that wait for another array, at most */
#define STEPS 8                              /* sizes that are kept, from one power of two to the next */
#define SIZES (STEPS * DOUBLINGS + 1)
#define LARGE_PAGES ((size_t)4 << 20)        /* bytes; as numpy does it for its arrays */

/* Stands before its bytes. */
typedef struct Piece {
    struct Piece *next; /* while it waits */
    size_t size;        /* which of the sizes that are kept, or SIZES */
} Piece;

typedef struct {
    Piece *top;
    uint64_t used; /* when */
} Waiting;

typedef struct {
    PyTypeObject *type; /* of Memory */
    Waiting waiting[SIZES];
    size_t idle;
    uint64_t clock;
#ifdef Py_GIL_DISABLED
    PyMutex mutex;
#endif
} State;

typedef struct {
    PyObject_HEAD
    Piece *piece;
    Py_ssize_t size;
} Memory;

/* Held for a few instructions that call nothing; elsewhere Python's own lock guards the state. */
#ifdef Py_GIL_DISABLED
#define LOCK(state) PyMutex_Lock(&(state)->mutex)
#define UNLOCK(state) PyMutex_Unlock(&(state)->mutex)
#else
#define LOCK(state) ((void)(state))
#define UNLOCK(state) ((void)(state))
#endif

static size_t bytes_of_size(size_t size)
{
    size_t power = WORTH_KEEPING << size / STEPS;
    return power + size % STEPS * (power / STEPS);
}

/* The least of the sizes that holds so many bytes; SIZES where they are too few or too many to keep. */
static size_t size_for(size_t bytes)
{
    if (bytes < WORTH_KEEPING || bytes > IDLE)
        return SIZES;
    size_t size = 0;
    while (bytes_of_size(size + STEPS) < bytes)
        size += STEPS;
    while (bytes_of_size(size) < bytes)
        size++;
    return size;
}

static uint8_t *bytes_behind(Piece *piece)
{
    uintptr_t end = (uintptr_t)(piece + 1);
    return (uint8_t *)(piece + 1) + (ALIGNMENT - end % ALIGNMENT) % ALIGNMENT;
}

static Piece *new_piece(size_t size, size_t bytes)
{
    if (size < SIZES)
        bytes = bytes_of_size(size);
    Piece *piece = PyMem_Malloc(sizeof(Piece) + ALIGNMENT + bytes);
    if (!piece)
        return NULL;
    piece->size = size;
#ifdef MADV_HUGEPAGE
    if (bytes >= LARGE_PAGES) {
        uintptr_t page = ((uintptr_t)piece + 4095) / 4096 * 4096;
        madvise((void *)page, bytes - 4096, MADV_HUGEPAGE); /* where it is refused, nothing is lost */
    }
#endif
    return piece;
}

static Piece *take_piece(State *state, size_t size)
{
    LOCK(state);
    Waiting *waiting = &state->waiting[size];
    Piece *piece = waiting->top;
    if (piece) {
        waiting->top = piece->next;
        waiting->used = ++state->clock;
        state->idle -= bytes_of_size(size);
    }
    UNLOCK(state);
    return piece;
}

/* Gives back pieces of the sizes that were used longest ago, until `most` bytes wait. */
static void trim(State *state, size_t most)
{
    for (;;) {
        LOCK(state);
        size_t oldest = SIZES;
        if (state->idle > most)
            for (size_t i = 0; i < SIZES; i++)
                if (state->waiting[i].top
                    && (oldest == SIZES || state->waiting[i].used < state->waiting[oldest].used))
                    oldest = i;
        Piece *piece = NULL;
        if (oldest < SIZES) {
            piece = state->waiting[oldest].top;
            state->waiting[oldest].top = piece->next;
            state->idle -= bytes_of_size(oldest);
        }
        UNLOCK(state);
        if (!piece)
            return;
        PyMem_Free(piece);
    }
}

static void leave_piece(State *state, Piece *piece)
{
    if (piece->size == SIZES) {
        PyMem_Free(piece);
        return;
    }
    LOCK(state);
    Waiting *waiting = &state->waiting[piece->size];
    piece->next = waiting->top;
    waiting->top = piece;
    waiting->used = ++state->clock;
    state->idle += bytes_of_size(piece->size);
    UNLOCK(state);
    trim(state, IDLE);
}

static int memory_buffer(PyObject *self, Py_buffer *view, int flags)
{
    Memory *memory = (Memory *)self;
    return PyBuffer_FillInfo(view, self, bytes_behind(memory->piece), memory->size, 0, flags);
}

static void memory_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    leave_piece(PyType_GetModuleState(type), ((Memory *)self)->piece);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot memory_slots[] = {
    {Py_tp_doc, "Writable bytes, the first of them at a multiple of 64."},
    {Py_bf_getbuffer, (void *)memory_buffer},
    {Py_tp_dealloc, (void *)memory_dealloc},
    {0, NULL},
};

static PyType_Spec memory_spec = {
    .name = "playhead._kernels.Memory",
    .basicsize = sizeof(Memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = memory_slots,
};

/* So many bytes, not initialised. */
static PyObject *py_memory(PyObject *module, PyObject *count)
{
    State *state = PyModule_GetState(module);
    Py_ssize_t bytes = PyNumber_AsSsize_t(count, PyExc_MemoryError);
    if (bytes < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "memory of fewer than 0 bytes");
        return NULL;
    }
    size_t size = size_for((size_t)bytes);
    Piece *piece = size < SIZES ? take_piece(state, size) : NULL;
    if (!piece && bytes <= PY_SSIZE_T_MAX - (Py_ssize_t)sizeof(Piece) - ALIGNMENT)
        piece = new_piece(size, (size_t)bytes);
    if (!piece)
        return PyErr_Format(PyExc_MemoryError, "no %zd bytes are left for an array", bytes);
    Memory *memory = PyObject_New(Memory, state->type);
    if (!memory) {
        leave_piece(state, piece);
        return NULL;
    }
    memory->piece = piece;
    memory->size = bytes;
    return (PyObject *)memory;
}

/* Gives back memory that waits to be used again, all but that many bytes; how many wait then. */
static PyObject *py_trim(PyObject *module, PyObject *count)
{
    State *state = PyModule_GetState(module);
    Py_ssize_t most = PyNumber_AsSsize_t(count, NULL); /* as much as there can be where it is more */
    if (most < 0 && PyErr_Occurred())
        return NULL;
    trim(state, most < 0 ? 0 : (size_t)most);
    LOCK(state);
    size_t idle = state->idle;
    UNLOCK(state);
    return PyLong_FromSize_t(idle);
}

static PyMethodDef methods[] = {
    {"crc32c", py_crc32c, METH_O, NULL},
    {"crc32c_portable", py_crc32c_portable, METH_O, NULL},
    {"masked_crc32c", py_masked_crc32c, METH_O, NULL},
    {"scan", py_scan, METH_VARARGS, NULL},
    {"count_varints", py_count_varints, METH_O, NULL},
    {"varints", py_varints, METH_VARARGS, NULL},
    {"check", py_check, METH_VARARGS, NULL},
    {"frames", py_frames, METH_VARARGS, NULL},
    {"slices", py_slices, METH_VARARGS, NULL},
    {"join", py_join, METH_VARARGS, NULL},
    {"examples", py_examples, METH_VARARGS, NULL},
    {"values", py_values, METH_VARARGS, NULL},
    {"feistel", py_feistel, METH_VARARGS, NULL},
    {"gather", py_gather, METH_VARARGS, NULL},
    {"memory", py_memory, METH_O, NULL},
    {"trim", py_trim, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

#define VERSION 5 /* kernels.py names the same */

static int execute(PyObject *module)
{
    State *state = PyModule_GetState(module);
    prepare();
    state->type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &memory_spec, NULL);
    if (!state->type || PyModule_AddIntConstant(module, "VERSION", VERSION) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "CRC32C", crc_name);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = PyModule_GetState(module);
    Py_VISIT(state->type);
    return 0;
}

/* The type holds the module and every array's memory the type: none is left by then. */
static int clear(PyObject *module)
{
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->type);
    return 0;
}

static void free_state(void *module)
{
    clear(module);
    trim(PyModule_GetState(module), 0);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#if !defined(Py_LIMITED_API) && PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "playhead._kernels",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = free_state,
};

PyMODINIT_FUNC PyInit__kernels(void)
{
    return PyModuleDef_Init(&definition);
}

#endif
