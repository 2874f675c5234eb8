#!/usr/bin/env python3
# ruff: noqa
# fmt: off
"""Independent evaluator of plans on traced graphs (``tests/data/graphs``): the referee, kept slow and plain.

    evaluate_traced.py GRAPH.json.gz                 what PyTorch's partitioner does with this graph, budget by budget
    evaluate_traced.py GRAPH.json.gz PLAN.json       one plan: {"steps": [...], "backward_starts": k}
    evaluate_traced.py --table GRAPH.json.gz...      one line a graph

A plan is the list of steps in execution order. A step is a node id (run that node, again if it ran before), ["out", id]
(start copying that value to the host; the device copy is dropped when the copy has ended), ["wait", id] (stall until that copy out has ended) or
["in", id] (allocate and start bringing it back). `backward_starts` is the index
of the first step of the backward. Nothing says when memory is freed: a value lives from the step that makes it to its
last use before the same node runs again, and what must outlive the step (forward outputs, gradients) lives to the end:
the memory of its node's first run. A later run makes a copy for itself, which lives on only while a step reads it.

Rules checked: every input of a step is live; forward outputs exist when the backward starts; every gradient exists at
the end; nodes that depend on a tangent run only in the backward; random and mutating nodes, and collectives, run exactly once. With
"collective_again" in the graph collectives may run again, and their first runs keep their order and their phase.
Nodes that depend on a tangent run once, in the order of their ids; with "reruns": "all" in the graph they may run later and again, but for those that
run once. No step reads a storage that a later node has written.
Memory: bytes per storage; a node whose output shares a storage with one of its live inputs (a view) allocates nothing;
placeholders (parameters, inputs, tangents) are static and not counted. With "over": true in the graph the only output of a node that works element by
element takes over the memory of an input of its shape and bytes whose memory nobody needs after the step, that is neither static nor of an output and
that the node reads through one tensor, both all of their storages: the two count once. Peak is taken while a step runs, with its inputs and outputs live.
Time: sum over runs of max(flops / F, bytes moved / B) + launch (of collectives at most "network_bytes_per_s", if the graph has that), views free; transfers overlap compute on two lanes (out, in) and
a step that needs a value still on its way waits for it. Runs and copies take whole picoseconds each, rounded once: what ends
at one moment ends at one moment, whatever was added up on the way.
"""
import gzip, json, sys

DEVICE = {"a100": dict(F=156e12, B=1.555e12, launch=2e-6, link=25e9)}   # TF32 peak, HBM2e, one host link direction; decimal units
COLLECTIVE = "_c10d_functional."
OVER = frozenset("""abs acos acosh add addcdiv addcmul asin asinh atan atan2 atanh bitwise_and bitwise_not bitwise_or bitwise_xor ceil clamp clamp_max clamp_min copysign cos cosh div elu elu_backward eq erf erfc exp exp2 expm1 floor fmod frac ge gelu gelu_backward gt hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward le leaky_relu leaky_relu_backward lerp lgamma log log10 log1p log2 logical_and logical_not logical_or logical_xor lt masked_fill maximum minimum mish mul ne neg pow reciprocal relu remainder round rsqrt rsub sigmoid sigmoid_backward sign silu silu_backward sin sinh softplus softplus_backward sqrt square sub tan tanh tanh_backward threshold threshold_backward trunc where xlogy""".split())   # work element by element
RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal", "philox", "uniform")


def load(path):
    g = json.load(gzip.open(path))
    nodes, n = g["nodes"], len(g["nodes"])
    g["static"] = {o["storage"] for v in nodes if v["kind"] == "placeholder" for o in v["out"]}
    g["random"] = {i for i, v in enumerate(nodes) if v["kind"] != "placeholder" and any(r in v["op"].lower() for r in RANDOM)
                   and "dropout_backward" not in v["op"]}
    tangent = set()
    for i, v in enumerate(nodes):
        if v.get("role") == "tangent" or any(a in tangent for a in v["inputs"]): tangent.add(i)
    g["tangent"] = tangent
    g["hold_forward"] = {i for i in g["forward_outputs"] if i is not None and nodes[i]["kind"] != "placeholder"}
    g["hold_backward"] = {i for i in g["backward_outputs"] if i is not None and nodes[i]["kind"] != "placeholder"}
    root = []                                                                  # per node: storage -> node that allocates it
    for i, v in enumerate(nodes):
        have = {}
        for a in v["inputs"]: have.update(root[a])
        root.append({o["storage"]: have.get(o["storage"], i) for o in v["out"]})
    g["root"] = root
    g["held"] = {}                                                             # (node that allocates it, storage) -> outputs it is held for
    for h in g["hold_forward"] | g["hold_backward"]:
        for s, r in root[h].items(): g["held"].setdefault((r, s), set()).add(h)
    return g


def cost(g, i, dev):
    """Picoseconds, an int."""
    v = g["nodes"][i]
    if v["kind"] == "placeholder" or v["op"].endswith("getitem"): return 0
    ins = {}
    for a in v["inputs"]:
        for o in g["nodes"][a]["out"]: ins[o["storage"]] = max(ins.get(o["storage"], 0), min(o["bytes"], g["storage_bytes"][o["storage"]]))
    fresh = [o for o in v["out"] if o["storage"] not in ins]
    if not fresh and not v.get("mutates"): return 0                           # a view
    moved = sum(ins.values()) + sum(o["bytes"] for o in v["out"])
    rate = min(dev["B"], g.get("network_bytes_per_s") or dev["B"]) if v["op"].startswith(COLLECTIVE) else dev["B"]
    return int((max(v.get("flops", 0) / dev["F"], moved / rate) + dev["launch"]) * 1e12 + 0.5)


def copy(b, dev):
    return int(b / dev["link"] * 1e12 + 0.5)


def over(g, i, t, have, current, users, owner, dead):
    """Bytes that node i's output takes over from an input at step t."""
    v, nodes, sb = g["nodes"][i], g["nodes"], g["storage_bytes"]
    space, name = v["op"].split(".")[:2]
    if not g.get("over") or len(v["out"]) != 1 or not (space == "aten" and name in OVER or (space, name) in (("prims", "div"), ("prims", "fma"))): return 0
    to, reads = v["out"][0], [(a, o) for a in v["inputs"] for o in nodes[a]["out"]]
    if v.get("mutates") or to["storage"] in have or to["storage"] in g["static"] or any(o["storage"] == to["storage"] for _, o in reads): return 0
    for a, o in reads:
        s = o["storage"]
        if s in g["static"] or any((r, s) in g["held"] for r in [g["root"][a][s]]) or sum(p["storage"] == s for _, p in reads) > 1: continue
        if o["shape"] != to["shape"] or not o["bytes"] == to["bytes"] == sb[s] == sb[to["storage"]]: continue
        sid = have[s]
        if sum(sid in set(owner[x].values()) for x in dead.get(t, [])) == users[sid]: return sb[s]
    return 0


def evaluate(g, steps, backward_starts, device="a100", redraw_allowed=False):
    """-> dict(peak_bytes, time_ps, seconds, saved_bytes, runs, recomputed, stall_seconds); raises ValueError naming the first broken rule."""
    nodes, dev, sb = g["nodes"], DEVICE[device], g["storage_bytes"]
    kind = [("run", s) if isinstance(s, int) else tuple(s) for s in steps]
    for t, s in enumerate(kind):                                               # a run may say that it makes all; a node has no inside
        if len(s) == 3 and s[0] == "run" and (not isinstance(s[1], int) or not 0 <= s[1] < len(nodes) or list(s[2]) != list(range(len(nodes[s[1]]["out"])))): raise ValueError(f"step {t}: node {s[1]!r} makes all of its outputs in every run")
        if len(s) == 4 and (s[0] != "run" or list(s[2]) != list(range(len(nodes[s[1]]["out"]))) or s[3]): raise ValueError(f"step {t}: node {s[1]!r} takes nothing in, and makes all of its outputs")
    kind = [s[:2] if s[:1] == ("run",) else s for s in kind]
    # pass 1: last use of every instance. An instance is (node, step that made it); "in" makes a new instance.
    current, last, made, count = {}, {}, {}, {}
    newest, written = -1, {}                                                   # of nodes that depend on a tangent; storage -> who wrote it
    latest, first_backward = -1, min((i for i in g["tangent"] if nodes[i]["kind"] != "placeholder"), default=len(nodes))   # of collectives
    for t, (k, i) in enumerate(kind):
        if not isinstance(i, int) or not 0 <= i < len(nodes) or nodes[i]["kind"] == "placeholder": raise ValueError(f"step {t}: {i!r} is not the id of an op")
    for i, v in enumerate(nodes):
        if v["kind"] == "placeholder": current[i] = (i, -1)
    for t, (k, i) in enumerate(kind):
        if t == backward_starts:
            for h in g["hold_forward"]:
                if h not in current: raise ValueError(f"forward output {nodes[h]['name']} does not exist when the backward starts")
        if k == "run":
            v = nodes[i]
            if i in g["tangent"] and t < backward_starts: raise ValueError(f"step {t}: {v['name']} depends on a tangent and runs in the forward")
            for a in v["inputs"]:
                if a not in current: raise ValueError(f"step {t}: {v['name']} needs {nodes[a]['name']}, which is not live")
                last[current[a]] = max(last.get(current[a], -1), t)
            count[i] = count.get(i, 0) + 1
            if v["op"].startswith(COLLECTIVE):
                if count[i] > 1 and not g.get("collective_again"): raise ValueError(f"step {t}: {v['name']} is a collective and runs twice")
                if count[i] == 1 and g.get("collective_again"):
                    if i < first_backward <= len(nodes) and t >= backward_starts: raise ValueError(f"step {t}: {v['name']} first runs in the backward")
                    if i < latest: raise ValueError(f"step {t}: {v['name']} first runs after {nodes[latest]['name']}")
                    latest = i
            if i in g["tangent"]:
                late = count[i] == 1 and i < newest
                if g.get("reruns", "forward") != "all" and (count[i] > 1 or late): raise ValueError(f"step {t}: {v['name']} depends on a tangent and is late or runs twice")
                if late and (i in g["random"] or v.get("mutates") or v["op"].startswith(COLLECTIVE)): raise ValueError(f"step {t}: {v['name']} runs once and runs after {nodes[newest]['name']}")
                newest = max(newest, i)
            for s in {o["storage"] for a in v["inputs"] for o in nodes[a]["out"]}:
                if written.get(s, -1) > i: raise ValueError(f"step {t}: {v['name']} reads storage {s} after {nodes[written[s]]['name']} wrote it")
            if v.get("mutates"): written.update({o["storage"]: i for o in v["out"] if any(o["storage"] == b["storage"] for a in v["inputs"] for b in nodes[a]["out"])})
            if count[i] > 1 and (i in g["random"] and not redraw_allowed or v.get("mutates")): raise ValueError(f"step {t}: {v['name']} is random or mutates and runs twice")
            current[i] = (i, t)
        elif k == "out":
            if i not in current: raise ValueError(f"step {t}: cannot offload {nodes[i]['name']}, it is not live")
            last[current[i]] = max(last.get(current[i], -1), t); current.pop(i); made[i] = t
        elif k == "in":
            if i not in made: raise ValueError(f"step {t}: {nodes[i]['name']} was never offloaded")
            current[i] = (i, t)
        elif k == "wait":
            if i not in made: raise ValueError(f"step {t}: {nodes[i]['name']} was never offloaded")
        else: raise ValueError(f"step {t}: unknown step {k}")
    if backward_starts >= len(kind):
        raise ValueError("no backward step")
    for i, v in enumerate(nodes):
        if v["kind"] != "placeholder" and v["op"].startswith(COLLECTIVE) and i not in count: raise ValueError(f"{v['name']} is a collective and must run")
        if v.get("mutates") and count.get(i, 0) != 1: raise ValueError(f"{v['name']} mutates and must run exactly once, it runs {count.get(i, 0)} times")
    for h in g["hold_backward"]:
        if h not in current: raise ValueError(f"gradient {nodes[h]['name']} does not exist at the end")
    # pass 2: bytes and time
    owner, users, live, peak, saved = {}, {}, 0, 0, 0                          # owner[instance] = [storage instance ids]; users[sid] = live instances
    size, dead, clock, lane = {}, {}, 0, {"out": 0, "in": 0}                   # times in picoseconds, ints
    ready, stall, runs, nsid = {}, 0, 0, 0
    kept, left = {}, set()                                                     # of g["held"]: its storage instance; those that went to the host
    def keep(r, s, sid):                                                       # the first run's, or what comes after it went to the host
        if (r, s) in g["held"] and (r, s) not in kept: kept[r, s] = sid; users[sid] += 1
    def here(h, when):
        if any(sid in left for sid in owner[current[h]].values()): raise ValueError(f"{nodes[h]['name']} is on the host when {when}")
    for inst, t in last.items(): dead.setdefault(t, []).append(inst)
    current, store, leaving, ended = {}, {}, [], {}                            # leaving: (time the copy out ends, bytes)
    for i, v in enumerate(nodes):
        if v["kind"] == "placeholder": current[i] = (i, -1); owner[(i, -1)] = {}
    for t, (k, i) in enumerate(kind):
        if t == backward_starts:
            saved = live
            for h in g["hold_forward"]: here(h, "the backward starts")
        inst = (i, t)
        if k == "wait": stall += max(0, ended[i] - clock); clock = max(clock, ended[i])
        live -= sum(b for e, b in leaving if e <= clock); leaving = [(e, b) for e, b in leaving if e > clock]
        if k == "wait": continue
        if k == "run":
            v, have = nodes[i], {}
            for a in v["inputs"]: have.update(owner[current[a]]); clock_ready = ready.get(current[a], 0); stall += max(0, clock_ready - clock); clock = max(clock, clock_ready)
            own, spared = {}, over(g, i, t, have, current, users, owner, dead)
            for o in v["out"]:
                s = o["storage"]
                if s in g["static"]: continue
                sid = have.get(s) if s in have else own.get(s)
                if sid is None: sid = nsid; nsid += 1; size[sid] = sb[s]; users[sid] = 0; live += sb[s]
                if s not in own: users[sid] += 1
                if s not in have and s not in own: keep(i, s, sid)
                own[s] = sid
            owner[inst] = own; current[i] = inst; clock += cost(g, i, dev); runs += 1
        elif k == "out":
            b = sum(sb[s] for s in owner[current[i]]); store[i] = dict(owner[current[i]])
            lane["out"] = max(lane["out"], clock) + copy(b, dev)
            for s, x in owner[current[i]].items():
                r = g["root"][i][s]
                if kept.get((r, s)) != x: left.add(x); continue
                if t >= backward_starts and (holders := g["held"][r, s] & g["hold_forward"]):  # its memory stays, a copy goes
                    if users[x] > 2 or holders != {i}: raise ValueError(f"step {t}: {nodes[i]['name']} is offloaded while another value of its storage is held")
                else: left.add(x); del kept[r, s]; users[x] -= 1
            if any(users[x] > 1 for x in owner[current[i]].values() if x in left): raise ValueError(f"step {t}: {nodes[i]['name']} is offloaded while another value shares its storage")
            current.pop(i); live += b; leaving.append((lane["out"], b)); ended[i] = lane["out"]   # the value dies below, its bytes stay until the copy has ended
        else:
            own, b = {}, 0
            for s in store[i]: own[s] = nsid; users[nsid] = 1; size[nsid] = sb[s]; live += sb[s]; b += sb[s]; keep(g["root"][i][s], s, nsid); nsid += 1
            lane["in"] = max(lane["in"], ended[i], clock) + copy(b, dev); ready[inst] = lane["in"]; owner[inst] = own; current[i] = inst
        peak = max(peak, live - (b if k == "out" else spared if k == "run" else 0))
        if inst not in last and k != "out": dead.setdefault(t, []).append(inst)    # never used: dies at once
        for x in dead.get(t, []):
            for sid in set(owner[x].values()):
                users[sid] -= 1
                if users[sid] == 0: live -= size[sid]
    for h in g["hold_backward"]: here(h, "the step ends")
    base = sum(cost(g, i, dev) for i in count)
    return dict(peak_bytes=peak, time_ps=clock, once_ps=base, stall_ps=stall, seconds=clock * 1e-12, once_seconds=base * 1e-12, overhead=(clock - base) / base if base else 0.0, saved_bytes=saved, runs=runs,
                recomputed=sum(c - 1 for c in count.values()), stall_seconds=stall * 1e-12, redrawn=sum(1 for i in g["random"] if count.get(i, 0) > 1))


def reference(g, r, device="a100"):
    return evaluate(g, r["forward"] + r["backward"], len(r["forward"]), device, redraw_allowed=True)


def main(argv):
    if argv and argv[0] == "--table":
        for p in argv[1:]:
            g = load(p); rows = [reference(g, r) for r in g["reference"]["sweep"] if "error" not in r]
            a = reference(g, g["reference"]["autograd"]); best = min(rows, key=lambda r: r["peak_bytes"])
            print(f"{g['name']:22s} {len(g['nodes']):6d} nodes  save-all peak {a['peak_bytes']/2**20:9.1f} MiB  budget 1: {rows[0]['peak_bytes']/2**20:9.1f}  "
                  f"lowest of the sweep: {best['peak_bytes']/2**20:9.1f} at +{100*best['overhead']:.1f} % time  budget 0: {rows[-1]['peak_bytes']/2**20:9.1f} at +{100*rows[-1]['overhead']:.1f} %")
        return
    g = load(argv[0])
    if len(argv) > 1:
        p = json.load(open(argv[1])); r = evaluate(g, p["steps"], p["backward_starts"]); print(json.dumps(r, indent=1)); return
    print(f"{g['name']}: {len(g['nodes'])} nodes, torch {g['torch']}; MiB, modelled time on {'a100'}")
    for tag, r in [("autograd", g["reference"]["autograd"])] + [(str(r["budget"]), r) for r in g["reference"]["sweep"]]:
        if "error" in r: print(f"  {tag:9s} {r['error']}"); continue
        e = reference(g, r)
        print(f"  budget {tag:9s} partition {r['seconds']:6.2f} s  saved {e['saved_bytes']/2**20:9.1f}  peak {e['peak_bytes']/2**20:9.1f}  time +{100*e['overhead']:6.2f} %  recomputed {e['recomputed']}" + (f"  REDRAWS {e['redrawn']} random ops: wrong gradients" if e['redrawn'] else ''))


if __name__ == "__main__":
    main(sys.argv[1:])
