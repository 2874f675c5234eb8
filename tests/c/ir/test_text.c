/* Text and JSON forms: golden files, round trips, and the errors for a wrong text. `--update`
 * rewrites the golden files with what the writers produce now. */
#include <stdlib.h>

#include "ir.h"
#include "ir/graph_json.h"

static const char *read_file(const char *path, cb_arena *arena) {
    char block[4096];
    cb_str s;
    cb_str_init(&s, arena);
    cb_str_add(&s, "", 0);
    FILE *f = fopen(path, "rb");
    CHECK(f != NULL);
    for (size_t n; f && (n = fread(block, 1, sizeof block, f)) > 0;) cb_str_add(&s, block, n);
    if (f) fclose(f);
    return s.at;
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    CHECK(f != NULL);
    if (!f) return;
    CHECK(fputs(text, f) >= 0);
    fclose(f);
}

static cb_graph *parse(const char *text) {
    cb_graph *g = NULL;
    CHECK_OK(cb_graph_parse(&ir_alloc, text, strlen(text), &g, &err));
    return g;
}

static const char *json_of(const cb_graph *g, cb_arena *arena) {
    cb_str s;
    cb_str_init(&s, arena);
    CHECK_OK(cb_graph_to_json(g, &s, &err));
    return s.at ? s.at : "";
}

static bool update;

TEST(golden) {
    const char *text_path = CB_GOLDEN "/ir/joint.txt", *json_path = CB_GOLDEN "/ir/joint.json";
    cb_arena arena;
    cb_graph *back = NULL;
    cb_arena_init(&arena, &ir_alloc);
    const char *text = read_file(text_path, &arena);
    cb_graph *g = parse(text);
    if (g) {
        const char *printed = ir_text(g, &arena), *json = json_of(g, &arena);
        CHECK_OK(cb_graph_verify(g, CB_SPEC_JOINT, &err));
        if (update) write_file(text_path, printed);
        if (update) write_file(json_path, json);
        CHECK(strcmp(printed, read_file(text_path, &arena)) == 0);
        CHECK(strcmp(json, read_file(json_path, &arena)) == 0);
        CHECK_OK(cb_graph_from_json(&ir_alloc, json, strlen(json), &back, &err));
        CHECK(back && strcmp(ir_text(back, &arena), printed) == 0);
        CHECK(back && back->backward_starts == g->backward_starts && back->phase == CB_FORWARD);
    }
    cb_graph_free(g);
    cb_graph_free(back);
    cb_arena_free(&arena);
}

TEST(text_is_lenient_about_blanks) {
    cb_arena arena;
    cb_arena_init(&arena, &ir_alloc);
    cb_graph *g = parse(
        "# a remark\n\r\n  cutback.graph\t1\r\n\n%0=input{role=data,name=\"x\"}:f32[ 2 , 3 ]\n"
        "   # another\n%1 =neg ( %0 ) : f32[2,3]phase=forward constraint=free\noutput%1 result");
    if (g) {
        CHECK(strcmp(ir_text(g, &arena),
                     "cutback.graph 1\n%0 = input {role=data, name=\"x\"} : f32[2,3]\n"
                     "%1 = neg(%0) : f32[2,3]\noutput %1 result\n") == 0);
    }
    cb_graph_free(g);
    cb_arena_free(&arena);
}

/* True if the numbers are equal, including the sign of zero; any two NaNs are equal. */
static bool same_double(double a, double b) {
    return isnan(a) ? isnan(b) : a == b && !signbit(a) == !signbit(b);
}

TEST(doubles_keep_their_bits) {
    static const char *const values[] = {"0",
                                         "-0.0",
                                         "0.1",
                                         "5e-324",
                                         "1.7976931348623157e+308",
                                         "inf",
                                         "-inf",
                                         "nan",
                                         "123456789012345680",
                                         "-1.5",
                                         "2.2250738585072014e-308"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char text[200];
        cb_arena arena;
        cb_graph *back = NULL;
        cb_arena_init(&arena, &ir_alloc);
        snprintf(text, sizeof text, "cutback.graph 1\n%%0 = full {value=%s} : f64[]\n", values[i]);
        cb_graph *g = parse(text);
        double want = strtod(values[i], NULL);
        if (g) {
            double got = cb_op_attrs(g, 0)->f[0];
            CHECK(same_double(want, got));
            const char *json = json_of(g, &arena);
            CHECK_OK(cb_graph_from_json(&ir_alloc, json, strlen(json), &back, &err));
            got = back ? cb_op_attrs(back, 0)->f[0] : 0;
            CHECK(same_double(want, got));
            CHECK(back && strcmp(ir_text(g, &arena), ir_text(back, &arena)) == 0);
        }
        cb_graph_free(g);
        cb_graph_free(back);
        cb_arena_free(&arena);
    }
}

#define HEAD "cutback.graph 1\n%0 = input {role=data} : f32[2]\n"

TEST(text_errors) {
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"", "line 1: not a graph"},
        {"cutback.plan 1\n", "line 1: not a graph"},
        {"cutback.graph 2\n", "line 1: format version 2"},
        {"cutback.graph 99999999999999999999\n", "line 1: a number does not fit"},
        {"cutback.graph 1 x\n", "line 1: expected the end of the line, found 'x'"},
        {HEAD "nonsense\n",
         "line 3: expected a value, region, output or --- backward, found 'nonsense'"},
        {HEAD "%2 = neg(%0) : f32[2]\n", "line 3: values must count up: expected %1, found %2"},
        {HEAD "%0 = neg(%0) : f32[2]\n", "line 3: values must count up"},
        {HEAD "%1 = neg(%1) : f32[2]\n", "line 3: there is no value %1 yet"},
        {HEAD "%1 = neg(%4294967295) : f32[2]\n", "line 3: unknown value"},
        {HEAD "%1 = nag(%0) : f32[2]\n", "line 3: expected the name of an op, found 'nag(%0)'"},
        {HEAD "%1 = neg(%0 : f32[2]\n", "line 3: expected ',' or ')', found ':'"},
        {HEAD "%1 = neg(%0)\n", "line 3: expected ':' and the types of the outputs"},
        {HEAD "%1 = neg(%0) : f32[3]\n", "line 3: neg: output 0 is f32 (2,), not f32 (3,)"},
        {HEAD "%1 = neg(%0) : f64[2]\n", "line 3: neg: output 0 is f32 (2,), not f64 (2,)"},
        {HEAD "%1 = neg(%0) : f33[2]\n",
         "line 3: expected an element type such as f32, found 'f33[2]'"},
        {HEAD "%1 = neg(%0) : f32[1,1,1,1,1,1,1,1,1]\n", "line 3: more than 8 axes"},
        {HEAD "%1 = neg(%0) : f32[2\n", "line 3: expected ',' or ']'"},
        {HEAD "%1 = neg(%0) {k=1} : f32[2]\n", "line 3: neg: has no attribute 'k'"},
        {HEAD "%1 = dropout(%0) {p=0.5} : f32[2]\n",
         "line 3: dropout: attribute 'stream' is missing"},
        {HEAD "%1 = dropout(%0) {p=0.5, p=0.5} : f32[2]\n",
         "line 3: dropout: attribute 'p' is given twice"},
        {HEAD "%1 = dropout(%0) {p=0.5.5, stream=0} : f32[2]\n", "line 3: "},
        {HEAD "%1 = dropout(%0) {p=true, stream=0} : f32[2]\n", "line 3: "},
        {HEAD "%1 = dropout(%0) {p=0.5, stream=x} : f32[2]\n",
         "line 3: expected an integer, found 'x}'"},
        {HEAD "%1 = full {value=0, shape=[2]} : f32[2]\n",
         "line 3: full: has no attribute 'shape'"},
        {HEAD "%1 = neg(%0) {name=\"a\", name=\"b\"} : f32[2]\n", "line 3: name is given twice"},
        {HEAD "%1 = neg(%0) {name=\"a} : f32[2]\n", "line 3: unterminated string"},
        {HEAD "%1 = neg(%0) {name=\"\\q\"} : f32[2]\n", "line 3: "},
        {HEAD "%1 = neg(%0) {name=\"\\u0000\"} : f32[2]\n", "line 3: "},
        {HEAD "%1 = neg(%0) : f32[2] region=0\n", "line 3: the graph has no region 0"},
        {HEAD "%1 = neg(%0) : f32[2] phase=sideways\n", "line 3: no phase is called 'sideways'"},
        {HEAD "%1 = neg(%0) : f32[2] constraint=maybe\n",
         "line 3: no constraint is called 'maybe'"},
        {HEAD "%1 = neg(%0) : f32[2] colour=red\n", "line 3: unknown mark"},
        {HEAD "%1, %2 = neg(%0) : f32[2], f32[2]\n", "line 3: neg: has 1 outputs, but 2 are given"},
        {HEAD "%1, %2, %3, %4, %5 = neg(%0) : f32[2]\n", "line 3: too many outputs for any op"},
        {HEAD "%1 = input {role=king} : f32[2]\n", "line 3: no role is called 'king'"},
        {HEAD "region 1 parent=none limit=none\n", "line 3: regions must count up"},
        {HEAD "region 0 parent=0 limit=none\n", "line 3: region: the graph has no region 0"},
        {HEAD "region 0 parent=none limit=-1\n",
         "line 3: a region's parent or limit is out of range"},
        {HEAD "region 0 limit=none\n", "line 3: expected parent="},
        {HEAD "output %1 result\n", "line 3: there is no value %1 yet"},
        {HEAD "output %0 reslut\n", "line 3: no output kind is called 'reslut'"},
        {HEAD "output %0 grad input=1\n", "line 3: output: gradient of input 1"},
        {HEAD "output %0 state input=0\n", "line 3: output: input 0 () takes no new state"},
        {HEAD "--- backwards\n", "line 3: expected --- backward"},
        {HEAD "--- backward\n--- backward\n", "line 4: there is already a --- backward"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cb_graph *g = NULL;
        cb_status status = cb_graph_parse(&ir_alloc, rows[i].text, strlen(rows[i].text), &g, &err);
        bool right = status != CB_OK && status != CB_NOMEM && !g && strstr(err.text, rows[i].want);
        CHECK(right);
        if (!right) printf("%s-> %s\n", rows[i].text, err.text);
        cb_graph_free(g);
    }
}

#define WRAP(ops, outputs)                                                     \
    "{\"format\":\"cutback.graph\",\"version\":1,\"regions\":[],\"ops\":[" ops \
    "],\"outputs\":[" outputs "]}"
#define X                                                                                    \
    "{\"op\":\"input\",\"in\":[],\"attrs\":{\"role\":\"data\"},\"out\":[{\"dtype\":\"f32\"," \
    "\"shape\":[2]}]}"
#define OP(rest) \
    WRAP(X ",{\"op\":\"neg\"," rest ",\"out\":[{\"dtype\":\"f32\",\"shape\":[2]}]}", "")

TEST(json_errors) {
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"", "line 1"},
        {"[]", "a graph must be an object"},
        {"{}", "format"},
        {"{\"format\":\"cutback.plan\",\"version\":1}", "format is 'cutback.plan'"},
        {"{\"format\":\"cutback.graph\",\"version\":2}", "format version 2"},
        {"{\"format\":\"cutback.graph\",\"version\":1}", "regions"},
        {WRAP("7", ""), "an op must be an object"},
        {WRAP("{\"op\":\"nag\"}", ""), "no op is called 'nag'"},
        {OP("\"in\":[1],\"attrs\":{}"), "neg: input 0: the graph has no value %1"},
        {OP("\"in\":[-1],\"attrs\":{}"), "in"},
        {OP("\"in\":[\"0\"],\"attrs\":{}"), "in"},
        {OP("\"in\":[0],\"attrs\":{\"k\":1}"), "neg: has no attribute 'k'"},
        {OP("\"in\":[0],\"attrs\":[]"), "attrs"},
        {OP("\"in\":[0],\"attrs\":{},\"region\":0"), "the graph has no region 0"},
        {OP("\"in\":[0],\"attrs\":{},\"phase\":\"up\""), "no phase is called 'up'"},
        {OP("\"in\":[0],\"attrs\":{},\"phase\":3"), "phase must be a string"},
        {OP("\"in\":[0],\"attrs\":{},\"name\":[]"), "name must be a string"},
        {WRAP("{\"op\":\"neg\",\"in\":[],\"attrs\":{},\"out\":7}", ""), "out"},
        {WRAP("{\"op\":\"neg\",\"in\":[],\"attrs\":{},\"out\":[7]}", ""),
         "an output must be an object"},
        {WRAP("{\"op\":\"neg\",\"in\":[],\"attrs\":{},\"out\":[{},{},{},{},{}]}", ""),
         "too many outputs"},
        {WRAP(X, "{\"value\":1,\"kind\":\"result\"}"), "no value %1"},
        {WRAP(X, "{\"kind\":\"result\"}"), "no value"},
        {WRAP(X, "{\"value\":0,\"kind\":\"grid\"}"), "no output kind is called 'grid'"},
        {"{\"format\":\"cutback.graph\",\"version\":1,\"backward_starts\":1,\"regions\":[],\"ops\":"
         "[],\"outputs\":[]}",
         "backward_starts is 1"},
        {"{\"format\":\"cutback.graph\",\"version\":1,\"regions\":[{\"parent\":0}],\"ops\":[],"
         "\"outputs\":[]}",
         "no region 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cb_graph *g = NULL;
        cb_status status =
            cb_graph_from_json(&ir_alloc, rows[i].text, strlen(rows[i].text), &g, &err);
        bool right = status != CB_OK && status != CB_NOMEM && !g && strstr(err.text, rows[i].want);
        CHECK(right);
        if (!right) printf("%s -> %s\n", rows[i].text, err.text);
        cb_graph_free(g);
    }
}

int main(int argc, char **argv) {
    cb_alloc_init(&ir_alloc);
    update = argc > 1 && strcmp(argv[1], "--update") == 0;
    RUN(golden);
    RUN(text_is_lenient_about_blanks);
    RUN(doubles_keep_their_bits);
    RUN(text_errors);
    RUN(json_errors);
    return ir_report();
}
