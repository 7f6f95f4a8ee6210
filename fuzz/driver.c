/* Hostile bytes for the C kernels, under AddressSanitizer and UndefinedBehaviorSanitizer.

       make fuzz                        a minute of it; FUZZ_SECONDS=600 for more
       build/fuzz 60 [seed]             the same seed makes the same inputs
       clang -g -O1 -DLIBFUZZER -fsanitize=fuzzer,address,undefined fuzz/driver.c -o build/fuzz

   Every input and every output lies in a heap allocation of exactly its size, so that one byte too far
   ends the run. Inputs are TFRecord files and Examples, built right and then damaged. */

#define PLAYHEAD_CORE_ONLY
#include "../src/playhead/_kernels.c"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* How many Examples and whole files were understood: a run that damages all of them tests little. */
static unsigned long long examples_read, files_read;

static void demand(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

static void *exactly(size_t size)
{
    void *made = malloc(size);
    if (!made && size)
        abort();
    return made;
}

static uint8_t *copied(const uint8_t *data, size_t size)
{
    uint8_t *made = exactly(size);
    if (size)
        memcpy(made, data, size);
    return made;
}

/* What is asked of an Example: eight fields of all kinds, their counts drawn from `choice`. */

enum { FIELDS = 8 };
static const char *const NAMES[FIELDS] = {"a", "b", "", "image", "label", "x", "words", "tail"};
static const uint8_t KINDS[FIELDS] = {FLOAT, INT64, BYTES, BYTES, INT64, FLOAT, BYTES, INT64};

static void scan_it(const uint8_t *bytes, size_t size, size_t room)
{
    for (int verify = 0; verify < 2; verify++) {
        Bytes file = {bytes, size};
        Found found = {exactly(8 * room), exactly(8 * room), exactly(4 * room), room, 0};
        size_t position = 0;
        int reason = scan(file, &position, size, verify, &found);
        demand(position <= size && found.count <= room, "a scan ends inside its bytes");
        demand(reason || found.count == room || position == size, "a scan stops for a reason");
        files_read += verify && !reason && found.count && position == size;
        for (size_t i = 0; i < found.count; i++) {
            int64_t which = 0, start = found.offsets[i] + HEADER;
            int64_t stop = start + found.lengths[i];
            Records one = {&file, 1, &which, &start, &stop, 1};
            demand(records_lie_inside(&one, HEADER, FOOTER), "a frame lies inside the file");
            demand(!verify || check(&one, &found.crcs[i]) == -1, "a frame found is a frame");
        }
        free(found.offsets);
        free(found.lengths);
        free(found.crcs);
    }
}

static void varints_it(const uint8_t *bytes, size_t size)
{
    Bytes packed = {bytes, size};
    int64_t count = count_varints(packed);
    int64_t *values = exactly(8 * (size_t)count), *ends = exactly(8 * (size_t)count);
    demand(varints(packed, values, ends, count) == count, "numbers are counted right");
    free(values);
    free(ends);
}

/* A row gives the same alone as after others, from which the parser learns the order of entries. */
static void alone_it(const Records *records, const Field *together, size_t row, void *const *made,
                     size_t in_part)
{
    Records one = {records->buffers, 1, records->which + row, records->starts + row,
                   records->stops + row, 1};
    Field fields[FIELDS];
    int32_t table[32];
    int64_t spans[3 * FIELDS];
    uint64_t outs[FIELDS][2];
    Layout layout = {fields, FIELDS, table, 31, {NULL}};
    memcpy(fields, together, sizeof fields);
    for (int f = 0; f < FIELDS; f++) {
        fields[f].out = made[f] ? outs[f] : NULL;
        fields[f].begins = spans + 3 * f;
        fields[f].ends = spans + 3 * f + 1;
        fields[f].counts = spans + 3 * f + 2;
    }
    fill_slots(&layout);
    demand(examples(&one, NULL, &layout) == -1, "a row that is read among others is read alone");
    for (int f = 0; f < FIELDS; f++) {
        const Field *field = &together[f];
        size_t size = (size_t)field->count * (field->kind == FLOAT ? 4 : 8);
        if (made[f])
            demand(!size || !memcmp((uint8_t *)made[f] + in_part * size, outs[f], size),
                   "numbers do not depend on the rows before");
        else
            demand(field->begins[row] == spans[3 * f] && field->ends[row] == spans[3 * f + 1]
                       && field->counts[row] == spans[3 * f + 2],
                   "spans do not depend on the rows before");
    }
}

static void parse_it(const uint8_t *bytes, size_t size, uint8_t choice)
{
    static const int64_t COUNTS[4] = {1, -1, 2, 0};
    Bytes buffer = {bytes, size};
    /* The whole, nothing, and a half: three rows. */
    int64_t which[3] = {0, 0, 0}, starts[3] = {0, (int64_t)size, 0};
    int64_t stops[3] = {(int64_t)size, (int64_t)size, (int64_t)size / 2};
    size_t rows = 1 + choice % 3;
    Records records = {&buffer, 1, which, starts, stops, rows};
    Field fields[FIELDS];
    int32_t table[32];
    Layout layout = {fields, FIELDS, table, 31, {NULL}};
    int64_t fallback[2] = {7, -7};
    int64_t part_ends[2] = {(int64_t)(choice / 3 % (rows + 1)), (int64_t)rows};
    size_t first = (size_t)part_ends[0];
    void *outs[2 * FIELDS] = {NULL};
    memset(fields, 0, sizeof fields);
    for (int f = 0; f < FIELDS; f++) {
        Field *field = &fields[f];
        field->name.data = (const uint8_t *)NAMES[f];
        field->name.size = strlen(NAMES[f]);
        field->kind = KINDS[f];
        field->count = choice & 128 ? -1 : COUNTS[choice & 64 ? (choice >> f % 4) % 4 : f % 2];
        field->fallback = (choice >> f % 5) % 4 == 3 ? NULL : fallback;
        for (int p = 0; p < 2 && KINDS[f] != BYTES && field->count >= 0; p++)
            outs[p * FIELDS + f] = exactly((p ? rows - first : first) * (size_t)field->count
                                           * (KINDS[f] == FLOAT ? 4 : 8));
        field->begins = exactly(8 * rows);
        field->ends = exactly(8 * rows);
        field->counts = exactly(8 * rows);
    }
    fill_slots(&layout);
    int64_t bad = examples_apart(&records, NULL, &layout, part_ends, 0, 2, outs);
    examples_read += bad == -1;
    demand(bad >= -1 && bad < (int64_t)rows, "what is not understood is a row");
    for (size_t i = 0; bad == -1 && i < rows; i++)
        alone_it(&records, fields, i, outs + (i < first ? 0 : FIELDS), i < first ? i : i - first);
    for (int f = 0; f < FIELDS; f++) {
        Field *field = &fields[f];
        if (bad == -1 && !outs[f] && !(field->kind == BYTES && field->count == 1)) {
            Records lists = {&buffer, 1, which, field->begins, field->ends, rows};
            size_t total = 0, width = KINDS[f] == FLOAT ? 4 : 8;
            for (size_t i = 0; i < rows; i++)
                total += field->counts[i] > 0 ? (size_t)field->counts[i] : 0;
            void *out = exactly(total * width);
            int64_t *ends = KINDS[f] == BYTES ? exactly(8 * total) : NULL;
            demand(records_lie_inside(&lists, 0, 0), "a list lies inside its record");
            demand(values_of(&lists, KINDS[f], field->counts, out, ends, (int64_t)total),
                   "a list has as many values as were counted");
            for (size_t k = 0; ends && k < total; k++)
                demand(((int64_t *)out)[k] <= ends[k] && ends[k] <= (int64_t)size,
                       "a value lies inside its record");
            free(out);
            free(ends);
            if (total--) { /* as if the bytes had changed in between: less room than values */
                out = exactly(total * width);
                ends = KINDS[f] == BYTES ? exactly(8 * total) : NULL;
                demand(!values_of(&lists, KINDS[f], field->counts, out, ends, (int64_t)total),
                       "values never go where there is no room");
                free(out);
                free(ends);
            }
        }
        free(outs[f]);
        free(outs[FIELDS + f]);
        free(field->begins);
        free(field->ends);
        free(field->counts);
    }
}

/* The bytes as numbers of records in three files, of which some may be empty. */
static void frames_it(const uint8_t *bytes, size_t size, uint8_t choice)
{
    enum { FILES = 3 };
    size_t count = size / 8, records = choice % 11, mask = 1;
    int64_t *index = exactly(8 * count), *edges = exactly(8 * (records + FILES));
    int64_t firsts[FILES] = {0, (int64_t)(choice % (records + 1)), (int64_t)records};
    uint32_t *crcs = exactly(4 * records);
    for (size_t i = 0; i < count; i++) {
        index[i] = (int64_t)load64(bytes + 8 * i);
        if ((choice & 16) && records)
            index[i] = (int64_t)((uint64_t)index[i] % records);
    }
    for (size_t r = 0; r < records + FILES; r++)
        edges[r] = (int64_t)(100 * r);
    for (size_t r = 0; r < records; r++)
        crcs[r] = (uint32_t)r;
    while (mask < 2 * count)
        mask = 2 * mask + 1;
    Frames frames = {firsts, edges, crcs, FILES, records, exactly(8 * count), exactly(8 * count),
                     exactly(8 * count), exactly(8 * count), exactly(4 * count),
                     exactly(8 * (mask + 1)), mask, 0};
    int64_t bad = find_frames(&frames, index, count);
    demand(bad < 0 || (uint64_t)index[bad] >= records, "what is refused does not exist");
    for (size_t i = 0; bad < 0 && i < count; i++) {
        demand((uint64_t)frames.which[i] < frames.different, "a file is one of those named");
        int64_t file = frames.names[frames.which[i]];
        demand(firsts[file] <= index[i] && (file + 1 == FILES || index[i] < firsts[file + 1]),
               "a record lies in its file");
        demand(frames.starts[i] == 100 * (index[i] + file) + HEADER
                   && frames.stops[i] == 100 * (index[i] + file + 1) - FOOTER
                   && frames.found[i] == (uint32_t)index[i],
               "a record is what the index says");
    }
    free(index);
    free(edges);
    free(crcs);
    free(frames.which);
    free(frames.starts);
    free(frames.stops);
    free(frames.names);
    free(frames.found);
    free(frames.slots);
}

/* Three parts of the bytes, which overlap, one after the other over three arrays. */
static void join_it(const uint8_t *bytes, size_t size, uint8_t choice)
{
    Bytes buffer = {bytes, size}, outs[3];
    int64_t cut = (int64_t)(size ? choice % size : 0), whole = (int64_t)size;
    int64_t which[3] = {0, 0, 0}, starts[3] = {cut, 0, 0}, stops[3] = {whole, whole, cut};
    Records records = {&buffer, 1, which, starts, stops, 3};
    size_t first = size ? (size_t)choice * 7 % (2 * size) : 0;
    size_t second = choice & 1 ? 0 : (2 * size - first) / 2;
    size_t sizes[3] = {first, second, 2 * size - first - second};
    uint8_t *joined = exactly(2 * size);
    for (int k = 0; k < 3; k++) {
        outs[k].data = exactly(sizes[k]);
        outs[k].size = sizes[k];
    }
    join(&records, outs);
    for (size_t k = 0, filled = 0; k < 3; filled += sizes[k++])
        if (sizes[k])
            memcpy(joined + filled, outs[k].data, sizes[k]);
    size_t behind = size - (size_t)cut;
    demand(!size || (!memcmp(joined, bytes + cut, behind) && !memcmp(joined + behind, bytes, size)
                     && !memcmp(joined + behind + size, bytes, (size_t)cut)),
           "parts are joined in order");
    for (int k = 0; k < 3; k++)
        free((void *)outs[k].data);
    free(joined);
}

/* The bytes as places, or as rows' numbers: those in range give distinct elements in range. */
static void permute_it(const uint8_t *bytes, size_t size, uint8_t choice)
{
    static Network network;
    size_t count = size / 8;
    int64_t *index = exactly(8 * count), *out = exactly(8 * count);
    uint64_t *keys = exactly(8 * (count ? count : 1)), length = 1;
    keys[0] = choice;
    for (size_t i = 0; i < count; i++) {
        index[i] = (int64_t)load64(bytes + 8 * i);
        keys[i] = (uint64_t)index[i] >> choice % 64;
        if ((choice & 64) && index[i] < 0)
            index[i] &= INT64_MAX >> 1;
        if ((choice & 128) && (uint64_t)index[i] >= length && (uint64_t)index[i] < (uint64_t)1 << 62)
            length = (uint64_t)index[i] + 1;
    }
    if (permute(&network, index, count, length, keys, choice % 2, out))
        for (size_t i = 0; i < count; i++)
            demand((uint64_t)out[i] < length, "an element is in range");
    Column column = {bytes, choice % 7, size / (choice % 7 + 1), choice % 7};
    for (size_t i = 0; i < count; i++)
        if (choice & 8)
            index[i] = (int64_t)((uint64_t)index[i] % (column.rows + 1));
    uint8_t *rows = exactly(count * column.row_size);
    gather(&column, index, count, rows);
    free(rows);
    free(index);
    free(out);
    free(keys);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int prepared;
    if (!prepared++)
        prepare();
    if (!size)
        return 0;
    uint8_t choice = data[0];
    uint8_t *bytes = copied(data + 1, --size);
    demand(crc_chosen(choice, bytes, size) == crc_portable(choice, bytes, size), "both CRCs agree");
    scan_it(bytes, size, choice % 5);
    varints_it(bytes, size);
    parse_it(bytes, size, choice);
    permute_it(bytes, size, choice);
    frames_it(bytes, size, choice);
    join_it(bytes, size, choice);
    free(bytes);
    return 0;
}

#ifndef LIBFUZZER

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state += GOLDEN;
    return mix(state) % below;
}

typedef struct {
    uint8_t data[1 << 16];
    size_t size;
} Text;

static void put(Text *text, const void *data, size_t size)
{
    if (text->size + size <= sizeof text->data && size) {
        memcpy(text->data + text->size, data, size);
        text->size += size;
    }
}

static void put_number(Text *text, uint64_t value)
{
    uint8_t byte;
    for (; value > 127; value >>= 7) {
        byte = (uint8_t)(value | 128);
        put(text, &byte, 1);
    }
    byte = (uint8_t)value;
    put(text, &byte, 1);
}

/* A length now and then is a lie. */
static void put_part(Text *text, uint64_t tag, const Text *part)
{
    put_number(text, tag);
    put_number(text, draw(60) ? part->size : draw(2) ? draw(300) : (uint64_t)-1 >> draw(64));
    put(text, part->data, part->size);
}

static void put_unknown(Text *text)
{
    static const uint8_t bytes[8] = {1, 2, 3};
    switch (draw(4)) {
    case 0:
        put_number(text, 9 << 3);
        put_number(text, draw(1000));
        break;
    case 1:
        put_number(text, 9 << 3 | 1);
        put(text, bytes, 8);
        break;
    case 2:
        put_number(text, 9 << 3 | 5);
        put(text, bytes, 4);
        break;
    default:
        put_number(text, 9 << 3 | draw(8));
        put_number(text, draw(4));
    }
}

static void put_list(Text *text, int kind)
{
    static Text run, value;
    uint64_t count = draw(2) ? 1 : draw(5);
    run.size = 0;
    int packed = kind != BYTES && draw(3);
    for (uint64_t k = 0; k < count; k++) {
        uint64_t number = (uint64_t)-1 >> draw(64);
        if (!packed && kind == BYTES) {
            value.size = draw(40);
            memset(value.data, (int)draw(256), value.size);
            put_part(text, 0x0A, &value);
            continue;
        }
        Text *into = packed ? &run : text;
        if (!packed)
            put_number(text, kind == FLOAT ? 0x0D : 0x08);
        if (kind == FLOAT)
            put(into, &number, 4);
        else
            put_number(into, number);
    }
    if (packed)
        put_part(text, 0x0A, &run);
    if (!draw(20))
        put_unknown(text);
}

static void build_example(Text *text)
{
    static Text features, entry, name, feature, list;
    features.size = 0;
    for (int f = 0; f < FIELDS; f++) {
        if (!draw(6))
            continue;
        name.size = entry.size = feature.size = list.size = 0;
        put(&name, NAMES[f], strlen(NAMES[f]));
        int kind = draw(40) ? KINDS[f] : BYTES;
        put_list(&list, kind);
        put_part(&feature, (uint64_t)kind, &list);
        if (!draw(40))
            put_part(&feature, (uint64_t)kind, &list);
        if (draw(30))
            put_part(&entry, 0x0A, &name);
        put_part(&entry, 0x12, &feature);
        if (!draw(30))
            put_part(&entry, 0x0A, &name);
        if (!draw(30))
            put_unknown(&entry);
        put_part(&features, 0x0A, &entry);
        if (!draw(30))
            put_unknown(&features);
        if (!draw(20))
            f--;
    }
    if (!draw(20))
        put_unknown(text);
    put_part(text, 0x0A, &features);
    if (!draw(20))
        put_unknown(text);
}

static void put_little(Text *text, uint64_t value, size_t size)
{
    uint8_t bytes[8];
    for (int k = 0; k < 8; k++)
        bytes[k] = (uint8_t)(value >> 8 * k);
    put(text, bytes, size);
}

static void build_file(Text *text)
{
    static Text record;
    for (uint64_t count = draw(5); count; count--) {
        uint8_t length[8];
        record.size = 0;
        build_example(&record);
        uint64_t size = draw(15) ? record.size : (uint64_t)-1 >> draw(64);
        for (int k = 0; k < 8; k++)
            length[k] = (uint8_t)(size >> 8 * k);
        put(text, length, 8);
        put_little(text, masked(crc32c(length, 8)), 4);
        put(text, record.data, record.size);
        put_little(text, masked(crc32c(record.data, record.size)), 4);
    }
}

static void damage(Text *text)
{
    for (uint64_t edits = draw(4); edits && text->size; edits--) {
        size_t at = (size_t)draw(text->size);
        switch (draw(5)) {
        case 0:
            text->data[at] ^= (uint8_t)(1 << draw(8));
            break;
        case 1:
            text->data[at] = (uint8_t)(draw(3) ? draw(256) : 255 - draw(2) * 128);
            break;
        case 2:
            text->size = at;
            break;
        case 3: {
            size_t gone = 1 + (size_t)draw(text->size - at);
            memmove(text->data + at, text->data + at + gone, text->size - at - gone);
            text->size -= gone;
            break;
        }
        default:
            if (text->size < sizeof text->data) {
                memmove(text->data + at + 1, text->data + at, text->size - at);
                text->data[at] = (uint8_t)(draw(2) ? 0xFF : draw(256));
                text->size++;
            }
        }
    }
}

int main(int count, char **words)
{
    static Text text;
    double seconds = count > 1 ? atof(words[1]) : 60;
    state = count > 2 ? strtoull(words[2], NULL, 10) : (uint64_t)time(NULL);
    prepare();
    printf("seed %llu, CRC-32C %s\n", (unsigned long long)state, crc_name);
    uint64_t inputs = 0;
    for (time_t begun = time(NULL); difftime(time(NULL), begun) < seconds;) {
        for (int k = 0; k < 1000; k++, inputs++) {
            uint8_t choice = (uint8_t)draw(256);
            text.size = 0;
            if (draw(2))
                build_example(&text);
            else
                build_file(&text);
            if (draw(4))
                damage(&text);
            if (text.size == sizeof text.data)
                text.size--;
            memmove(text.data + 1, text.data, text.size++);
            text.data[0] = choice;
            LLVMFuzzerTestOneInput(text.data, text.size);
        }
    }
    printf("%llu inputs (%llu read as Examples, %llu as whole files), and nothing gave way\n",
           (unsigned long long)inputs, examples_read, files_read);
    return 0;
}

#endif
