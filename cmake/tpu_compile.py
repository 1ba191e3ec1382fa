#!/usr/bin/env python3
"""Compile StableHLO programs with TPU kernels in them, without a TPU, and count what comes out.

    python tpu_compile.py [--verify] [--target tpu7x|v6e|v5e|all] [--estimate] [--json FILE] FILES...

Each FILE is a StableHLO program with one or more `tpu_custom_call`s. With --verify the kernels are
first parsed by jaxlib's dialect, its op verifiers are run, and the arguments are compared with the
call's. Without a --target nothing else happens; with targets, libtpu compiles ahead of time in a
child process, so that a compiler crash costs one file.

What is counted, per kernel and target
    A *bundle* is one VLIW instruction of the final code. A *step* is one pass of the grid loop (or
    the whole kernel, if it has no grid). bundles_per_step counts every bundle of the grid loop from
    its first to its last instruction, bundles of inner loops times the trip count. A loop whose trip
    count is not known counts once and is listed with trips = null.
    cycles_per_step adds the empty bundles that the scheduler placed for latencies and the last
    compiler stage replaced by hardware interlocks. DMA waits are in neither number.
    Code behind a branch on "grid index == a constant or what does not change" (the first or last
    step of a dimension) is kept out of both and summed up as once_bundles and once_cycles; code behind any other branch is
    counted in. The list `branches` says which is which. Small conditional bodies become predicated
    instructions without a branch; these are always counted in.
    slots and capacity: occupied issue slots of each unit per step, and slots of that unit per cycle.
    estimated_cycles, only with --estimate: what the compiler makes of the whole call. Its way there takes ten times
    as long as the compilation, and gigabytes, for a large kernel.

Exit status: 0 all compiled (and verified), 1 some did not, 2 usage, 3 jax, jaxlib or libtpu missing.
"""

import argparse
import base64
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TOPOLOGIES = {"tpu7x": "tpu7x:1x1x1", "v6e": "v6e:1x1", "v5e": "v5e:1x1"}
DELAY_SLOTS = {"tpu7x": 6, "v6e": 4, "v5e": 4}  # bundles that still execute after a branch
DYNAMIC = -(2**63)  # MLIR's mark of a grid bound that is known at run time
SECONDS_PER_FILE = 600
# The stages of the compiler that are dumped (a filter of the compiler's), and those of them that are read.
STAGES = ".*(final|post-ra|pre-delay).*"
READ = re.compile(r"\d+-(?!TLP-|<).*-\d+-(schedule-analysis_final_bundles|final_bundles|packed-bundles-post-ra|post-ra|"
                  r"(pre-delay|final)_hlo-static-per-bundle-utilization)\.txt$|.*profile\.textproto$")
# Spellings that libtpu knows and jaxlib 0.10.2 does not, each with a stand-in of the same type.
NEWER = {b"contract_precision<bf16x3>": b"contract_precision<fp32>",
         b'"stable_mosaic.tpu.logistic"': b'"stable_mosaic.math.tanh"'}

# Both must be set before jax is imported.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
os.environ["JAX_PLATFORMS"] = "cpu"


class Failure(Exception):
    """A one-line message for the user."""

    def __init__(self, message):
        super().__init__(" ".join(str(message).split()))


# ---------------------------------------------------------------------------------------- programs

Call = collections.namedtuple("Call", "name body operands results")


def import_mlir():
    """jax's MLIR bindings; private modules, so they are named only here."""
    from jax._src.interpreters import mlir
    from jax._src.lib import tpu
    from jax._src.lib.mlir import ir, passmanager

    def context():
        made = mlir.make_ir_context()
        tpu.register_dialect(made)
        return made

    return ir, passmanager, context


def one_line(error):
    """The first diagnostic of an MLIR error, with its line in the kernel."""
    diagnostics = getattr(error, "error_diagnostics", None)
    if not diagnostics:
        return Failure(str(error).split("\n")[0])
    at = re.search(r'"-":(\d+):(\d+)', str(diagnostics[0].location))
    return Failure(diagnostics[0].message + (f" (line {at[1]}, column {at[2]})" if at else ""))


def calls_of(text):
    """The tpu_custom_calls of a program."""
    ir, _, context = import_mlir()
    calls = []

    def visit(op):
        if op.name == "stablehlo.custom_call" and op.attributes["call_target_name"].value == "tpu_custom_call":
            try:
                config = json.loads(op.attributes["backend_config"].value)["custom_call_config"]
                body = base64.b64decode(config["body"], validate=True)
            except (KeyError, ValueError) as e:
                raise Failure(f"cannot read backend_config: {e!r}")
            name = op.attributes["kernel_name"].value if "kernel_name" in op.attributes else "kernel"
            location = re.match(r'loc\("([^"]*)"', str(op.location))
            types = [[str(v.type)[len("tensor<"):-1] for v in values] for values in (op.operands, op.results)]
            calls.append(Call(location[1] if location else name, body, *types))
        return ir.WalkResult.ADVANCE

    with context(), ir.Location.unknown():
        try:
            module = ir.Module.parse(text)
            module.operation.verify()
        except ir.MLIRError as e:
            raise one_line(e)
        module.operation.walk(visit)
    if not calls:
        raise Failure("no tpu_custom_call in this file")
    return calls


def verify(call):
    """Parse a kernel with jaxlib's dialect, run the verifiers, compare the arguments with the call."""
    ir, passmanager, context = import_mlir()
    body = call.body
    for new, old in NEWER.items():
        body = body.replace(new, old)

    def reject_unregistered(op):
        if not op.context.is_registered_operation(op.name):
            raise Failure(f"unregistered operation {op.name}")
        return ir.WalkResult.ADVANCE

    with context() as made, ir.Location.unknown():
        made.allow_unregistered_dialects = True
        try:
            module = ir.Module.parse(body)
            if "stable_mosaic.version" in module.operation.attributes:
                passmanager.PassManager.parse("builtin.module(mosaic-serde{serialize=false})").run(module.operation)
            module.operation.walk(reject_unregistered)
            module.operation.verify()
            compare_arguments(ir, module, call)
        except ir.MLIRError as e:
            raise one_line(e)


def compare_arguments(ir, module, call):
    """libtpu does not compare the shapes of arguments without a window with the call's operands."""
    mains = [op for op in module.body.operations if "tpu.core_type" in op.attributes]
    if len(mains) != 1:
        raise Failure(f"expected one function with tpu.core_type, found {len(mains)}")
    attributes = mains[0].attributes
    number = lambda name: attributes[name].value if name in attributes else 0
    grid = list(attributes["iteration_bounds"]) if "iteration_bounds" in attributes else []
    windows = list(attributes["window_params"]) if "window_params" in attributes else None
    prefetch, scratch = number("scalar_prefetch"), number("scratch_operands")
    types = [str(t) for t in ir.FunctionType(attributes["function_type"].value).inputs]
    arrays = call.operands[grid.count(DYNAMIC):] + call.results
    if len(types) != len(grid) + len(arrays) + scratch:
        raise Failure(f"the function has {len(types)} arguments; the call makes it grid {len(grid)} + "
                      f"arrays {len(arrays)} + scratch {scratch}")
    if windows is not None and len(windows) != len(arrays) - prefetch:
        raise Failure(f"window_params has {len(windows)} entries for {len(arrays) - prefetch} arrays")
    for i, array in enumerate(arrays):
        memref = re.match(r"memref<([^,>]*)", types[len(grid) + i])
        block, whole = (memref[1] if memref else "").split("x"), array.split("x")
        window = windows[i - prefetch] if windows is not None and i >= prefetch else {}
        bounds = [str(n) for n in window["window_bounds"]] if len(window) else whole[:-1]
        if block != bounds + whole[-1:] or len(block) != len(whole):
            raise Failure(f"argument {len(grid) + i} is {types[len(grid) + i]}, but the call passes "
                          f"tensor<{array}> in blocks of {bounds}")


# ------------------------------------------------------------------------------------- compilation


def worker(jobs_file):
    """The child process: compiles jobs in turn; each leaves an answer and its dumps in its own directory."""
    import numpy
    from jax._src import xla_bridge
    from jax._src.lib import _jax, xla_client

    ir, _, context = import_mlir()
    jobs = json.loads(pathlib.Path(jobs_file).read_text())
    devices = {}
    for target, directory in jobs["jobs"]:
        directory = pathlib.Path(directory)
        try:
            if target not in devices:
                topology = xla_bridge.make_pjrt_tpu_topology(TOPOLOGIES[target])
                devices[target] = topology._make_compile_only_devices()[0]
            device = devices[target]
            options = _jax.CompileOptions()
            options.num_replicas = options.num_partitions = 1
            options.device_assignment = xla_client.DeviceAssignment.create(numpy.array([[device.id]]))
            with context(), ir.Location.unknown():
                module = ir.Module.parse(directory.joinpath("program.mlir").read_text())
                device.client.compile(module, _jax.DeviceList((device,)), options)
            answer = ""
        except Exception as e:  # whatever went wrong is the answer
            answer = str(e) or repr(e)
        for path in pathlib.Path(jobs["dumps"]).iterdir():
            if READ.match(path.name):
                shutil.move(path, directory / "dump" / path.name)
            else:
                path.unlink()
        directory.joinpath("answer").write_text(answer)
    os._exit(0)


def compiler_error(text):
    """The useful line of a libtpu error message."""
    op = re.search(r'The MLIR operation involved:\s*(?:%\S+ = )?"([\w.]+)"', text)
    text = re.split("=== Source Location Trace|at location:|The MLIR operation involved", text)[0]
    text = re.sub(r"Mosaic failed to compile TPU kernel with MLIR module name `[^`]*` HLO name `[^`]*`: ", "", text)
    return str(Failure(text))[:500].rstrip(". ") + (f" [{op[1]}]" if op else "")


def compile_all(programs, work, estimating):
    """Compile [(text, target)], one after the other, in as few processes as crashes allow.

    Returns (error or "", directory of dumps) for each. A program that takes the compiler down is
    tried once more, without the cycle estimate, which has checks of its own that abort.
    """
    dumps = work / "dumps"
    dumps.mkdir()
    flags = [f"--xla_jf_dump_to={dumps}", "--xla_jf_dump_llo_text=true", f"--xla_jf_dump_llo_pass_label_regex={STAGES}"]
    estimate = [f"--xla_jf_dump_static_llo_profile_to={dumps}"] if estimating else []
    places = [work / str(n) for n in range(len(programs))]
    for place, (text, _) in zip(places, programs):
        (place / "dump").mkdir(parents=True)
        (place / "program.mlir").write_text(text)

    crashed = {}
    waiting, second_try = list(range(len(programs))), []
    while waiting or second_try:
        batch = waiting or second_try[:1]
        jobs = work / "jobs.json"
        jobs.write_text(json.dumps({"dumps": str(dumps), "jobs": [(programs[i][1], str(places[i])) for i in batch]}))
        environment = dict(os.environ, LIBTPU_INIT_ARGS=" ".join(flags + (estimate if waiting else [])))
        try:
            child = subprocess.run([sys.executable, __file__, "--worker", str(jobs)], env=environment,
                                   capture_output=True, text=True, timeout=SECONDS_PER_FILE * len(batch))
            end, log = f"the compiler crashed (status {child.returncode})", child.stderr
        except subprocess.TimeoutExpired:
            end, log = "the compiler did not finish", ""
        lost = [i for i in batch if not (places[i] / "answer").exists()]
        if lost:
            fatal = re.findall(r"^F\d{4} \S+\s+\d+ (.*)", log, re.M) or log.strip().split("\n")[-1:]
            crashed[lost[0]] = f"{end}: {fatal[0][:300]}"
            for path in dumps.iterdir():
                path.unlink()
        if waiting:
            waiting, second_try = lost[1:], second_try + lost[:1]
        else:
            second_try = second_try[1:]
    answers = []
    for i, place in enumerate(places):
        answer = place / "answer"
        error = compiler_error(answer.read_text()) if answer.exists() else crashed[i]
        answers.append((error, place / "dump"))
    return answers


# -------------------------------------------------------------------------------- reading the dumps

BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:\s*(>[> ]*)?\{", re.M)
BRANCH = re.compile(r"sbr\.\w+ (?:\((!?)%(\w+)\) )?target bundleno = (\d+)")
DEFINITION = re.compile(r"%(\w+) = ([^;]*)")
Loop = collections.namedtuple("Loop", "start end trips source")
Branch = collections.namedtuple("Branch", "start end condition once")


class Code:
    """The scheduled bundles of a kernel, before and after the last compiler stage.

    The text of the stage before the last has exact branch targets and all stall bundles; the final
    text is the same sequence with most empty bundles dropped, which is checked here. `final[i]` is 1
    if bundle i of the former is in the final code.
    """

    def __init__(self, before, after, delay_slots, grid):
        bodies, self.depth = self.split(before)
        self.bodies, self.delay_slots, self.grid = bodies, delay_slots, grid
        kept = collections.Counter()  # empty bundles in the final text, by the number of full ones before
        full = 0
        for body in self.split(after)[0]:
            full += body != ""
            kept[full] += body == ""
        if full != sum(b != "" for b in bodies):
            raise Failure(f"the dumps disagree: {full} instructions in the final bundles")
        self.final, full = [], 0
        for body in bodies:
            full += body != ""
            self.final.append(int(body != "" or kept[full] > 0))
            kept[full] -= body == ""
        self.definitions, self.spilled, self.grid_start = {}, {}, 0
        for i, body in enumerate(bodies):
            for name, value in DEFINITION.findall(body):
                self.definitions[name] = (i, value.strip())
            for slot, name in re.findall(r"sst \[smem:\[#(\w+_spill)\]\] %(\w+)", body):
                self.spilled[slot] = name
        self.branches = [(i, m) for i, body in enumerate(bodies) if "sbr." in body for m in BRANCH.finditer(body)]

    @staticmethod
    def split(text):
        """Bodies of the bundles, and their printed loop depths."""
        bodies, depths, marks = [], [], list(BUNDLE.finditer(text))
        for mark, following in zip(marks, [*marks[1:], None]):
            body = text[mark.end():following.start() if following else len(text)]
            bodies.append(re.sub(r"\}\s*(/\*[^*]*\*/)?\s*$", "", body).strip())
            depths.append((mark[1] or "").count(">"))
        return bodies, depths

    def value(self, name, depth=0):
        """(bundle, text) of a scalar's definition, seen through copies and spills."""
        where, text = self.definitions.get(name, (0, ""))
        copy = re.match(r"smov\.u32 (?:\(!?%\w+\), )?%(\w+)", text)
        spill = re.match(r"sld \[smem:\[#(\w+_spill)\]\]", text)
        source = copy[1] if copy else self.spilled.get(spill[1]) if spill else None
        if source and source != name and depth < 8:
            return self.value(source, depth + 1)
        return where, text

    def constant(self, name):
        text = re.match(r"smov\.u32 (?:\(!?%\w+\), )?(\d+)(?![\d%])", self.value(name)[1])
        return int(text[1]) if text else None

    def trips(self, start, sign, predicate):
        """Trip count of the loop that starts at a bundle and repeats while the predicate says so."""
        test = re.match(r"scmp\.ge\.s32\.totalorder %(\w+), (\d+)", self.value(predicate or "")[1])
        if not test or sign != "!":
            return None
        step = re.match(r"sadd\.s32 (\d+), %(\w+)", self.value(test[1])[1])
        phi = re.match(r"sphi %(\w+), %(\w+)", self.value(step[2])[1]) if step else None
        first = self.constant(phi[1]) if phi else None
        if first is None or self.value(step[2])[0] < start:
            return None
        return max(1, -(-(int(test[2]) - first) // int(step[1])))

    def loops(self, trips_in_text):
        """All loops in program order, the grid loop first if there is a grid."""
        found = []
        for i, m in self.branches:
            if int(m[3]) <= i:
                end = min(i + self.delay_slots, len(self.bodies) - 1)
                found.append(Loop(int(m[3]), end, self.trips(int(m[3]), m[1], m[2]), "bundles"))
        found.sort(key=lambda loop: (loop.start, -loop.end))
        # Where the counter could not be followed, the kernel text helps, if it has the same loops.
        has_grid = bool(self.grid) and any("iteration index" in self.bodies[loop.start] for loop in found[:1])
        self.grid_start = found[0].start if has_grid else 0
        inner = found[has_grid:]
        if len(trips_in_text) == len(inner):
            inner = [loop if loop.trips else loop._replace(trips=trips, source="text")
                     for loop, trips in zip(inner, trips_in_text)]
        return (found[0] if has_grid else None), inner

    def is_grid_index(self, name):
        """The grid dimension a scalar is the index of (-1: the flat index), or None."""
        _, text = self.value(name)
        raw = self.definitions.get(name, (0, ""))[1]
        for candidate in (raw, text):
            if "iteration index" in candidate:
                bound = re.search(r"iter bound = (\d+)", candidate)
                return int(bound[1]) if bound else -1
        return None

    def once(self, predicate, truth, depth=0):
        """Whether the predicate has this truth value only at one value of a grid index."""
        _, text = self.value(predicate)
        if depth > 8:
            return False
        again = lambda name, want: self.once(name, want, depth + 1)
        m = re.match(r"scmp\.(eq|ne)\.s32\.totalorder %(\w+), (\d+|%\w+)", text)
        if m:
            wanted = (m[1] == "eq") == truth
            if m[3][0] == "%" and self.value(m[3][1:])[0] >= self.grid_start:
                return False  # data of this step
            _, source = self.value(m[2])
            saved = re.match(r"scalar_select /\*predicate=\*/%(\w+), /\*on_true=\*/1, /\*on_false=\*/0", source)
            if saved and m[3] in "01":  # a predicate kept in a scalar register
                return again(saved[1], wanted == (m[3] != "0"))
            dimension = self.is_grid_index(m[2])
            extent = None if dimension is None else 0 if dimension < 0 or dimension >= len(self.grid) else self.grid[dimension]
            return wanted and extent is not None and extent != 1
        m = re.match(r"(pand|pnand|por|pnor|pneg) %(\w+)(?:, %(\w+))?", text)
        if not m:
            return False
        op, a, b = m.groups()
        if op == "pneg":
            return again(a, not truth)
        both = (op in ("pand", "pnor")) == truth  # then both operands are known
        operand = truth if op in ("pand", "por") else not truth
        if both:
            return again(a, operand) or again(b, operand)
        return again(a, operand) and again(b, operand)

    def forward_branches(self):
        """Spans of code that a branch can jump over."""
        spans = []
        for i, m in self.branches:
            start, end = i + self.delay_slots + 1, int(m[3])
            if end > start and m[2]:
                taken = m[1] != "!"
                once = self.once(m[2], not taken)
                condition = m[1] + self.value(m[2])[1].split("/*")[0].strip()
                spans.append(Branch(start, end - 1, condition, once))
        return spans


def constant_trips(body):
    """Trip counts of the scf.for of a kernel in program order; None where a bound is not constant."""
    text, constants, trips = body.decode(errors="replace"), {}, []
    pattern = r'(%[\w#]+) = "[\w.]*arith\.constant"\(\)\s*\{value = (-?\d+) : \w+|"[\w.]*scf\.for"\((%[\w#]+), (%[\w#]+), (%[\w#]+)'
    for name, value, *bounds in re.findall(pattern, text):
        if name:
            constants[name] = int(value)
        elif all(b in constants for b in bounds):
            low, high, step = (constants[b] for b in bounds)
            trips.append(max(0, -(-(high - low) // step)))
        else:
            trips.append(None)
    return trips


def grid_of(body):
    bounds = re.search(rb"iteration_bounds = array<i64: ([-\d, ]+)>", body)
    return [int(n) for n in bounds[1].split(b",")] if bounds else []


def read_utilization(text):
    """(unit names, capacities, one row of occupied slots per bundle)"""
    lines = text.split("\n")
    rows = [[int(n) for n in line.split()] for line in lines[4:] if line.strip()]
    return [s.strip() for s in lines[1].split(",")], [int(n) for n in lines[2].split()], rows


def count(code, rows, grid_loop, loops):
    """Bundles, cycles and slots of one step, and what was counted how."""
    first, last = (grid_loop.start, grid_loop.end) if grid_loop else (0, len(code.bodies) - 1)
    inside = lambda span: first <= span.start and span.end <= last
    loops = [loop for loop in loops if inside(loop)]
    branches = [b for b in code.forward_branches() if inside(b)]
    times = [1] * len(code.bodies)
    for loop in loops:
        for i in range(loop.start, loop.end + 1):
            times[i] *= loop.trips or 1
    rare = [False] * len(code.bodies)
    for branch in branches:
        if branch.once:
            rare[branch.start:branch.end + 1] = [True] * (branch.end + 1 - branch.start)
    # The final code's empty bundles behind the loop's last instruction belong to its closing branch.
    final = list(code.final)
    tail = last
    while tail > first and code.bodies[tail] == "":
        tail -= 1
    dropped = sum(final[tail + 1:last + 1])
    span = range(first, last + 1)
    bundles = sum(times[i] * final[i] for i in span if not rare[i]) - dropped
    cycles = sum(times[i] for i in span if not rare[i]) - dropped
    slots = [0] * len(rows[0])
    for i in span:
        if not rare[i]:
            slots = [s + times[i] * used for s, used in zip(slots, rows[i])]
    size = lambda s: sum(final[s.start:s.end + 1])
    return {
        "bundles_per_step": bundles, "cycles_per_step": cycles, "step": "grid" if grid_loop else "whole kernel",
        "once_bundles": sum(times[i] * final[i] for i in span if rare[i]),
        "once_cycles": sum(times[i] for i in span if rare[i]),
        "loops": [{"bundles": size(l), "cycles": l.end + 1 - l.start, "trips": l.trips,
                   "trips_from": l.source if l.trips else None} for l in loops],
        "branches": [{"bundles": size(b), "skipped_if": b.condition, "counted": not b.once} for b in branches],
        "slots": slots,
    }


def vmem_bytes(text):
    """Bytes of VMEM of all allocations, spill slots included."""
    pattern = r"#allocation\w+ \[shape = '[^']*', space=vmem, size = (0x[0-9a-f]+)(.*?)tag = '"
    return sum(int(size, 16) for size, rest in re.findall(pattern, text) if "fixed_abs" not in rest)


def read_dumps(directory, calls, target):
    """One report per TPU kernel of a compiled program; XLA's own programs are passed over."""
    reports = []
    for final in sorted(directory.glob("*-final_bundles.txt")):
        stem = re.match(r"(\d+-(.*?)-)\d+-final_bundles\.txt$", final.name)
        if not stem:
            continue
        escaped = re.sub(r"([*?[])", r"[\1]", stem[1])
        stages = {re.sub(r"^\d+-", "", path.name[len(stem[1]):-len(".txt")]): path for path in directory.glob(escaped + "*.txt")}
        read = lambda stage: stages[stage].read_text() if stage in stages else ""
        if 'custom_call_target="tpu_custom_call"' not in read("schedule-analysis_final_bundles"):
            continue
        name = re.sub(r"\.\d+$", "", stem[2])
        matching = [c for c in calls if re.sub(r"\W", "_", c.name) == re.sub(r"\W", "_", name)] or calls
        call = matching[0] if len(matching) == 1 else None
        grid = grid_of(call.body) if call else []
        code = Code(read("packed-bundles-post-ra"), final.read_text(), DELAY_SLOTS[target], grid)
        units, capacity, rows = read_utilization(read("pre-delay_hlo-static-per-bundle-utilization"))
        if len(rows) != len(code.bodies):
            raise Failure(f"the dumps disagree: {len(rows)} rows of slots for {len(code.bodies)} bundles")
        report = {"kernel": name, "grid": [None if n == DYNAMIC else n for n in grid]}
        report.update(count(code, rows, *code.loops(constant_trips(call.body) if call else [])))
        report["slots"] = dict(zip(units, report["slots"]))
        report["capacity"] = dict(zip(units, capacity))
        finals = read_utilization(read("final_hlo-static-per-bundle-utilization"))[2]
        static = {unit: sum(row[n] for row in finals) for n, unit in enumerate(units)}
        report["bundles"] = len(finals)
        report["spill_stores"], report["spill_fills"] = static.get("VSTORE:SPILL", 0), static.get("VLOAD:FILL", 0)
        report["vmem_bytes"] = vmem_bytes(read("post-ra"))
        profiles = [p.read_text() for p in directory.glob(re.sub(r"([*?[])", r"[\1]", stem[2]) + "_*profile.textproto")]
        cycles = re.search(r"estimated_cycles: (\d+)", profiles[0]) if profiles else None
        report["estimated_cycles"] = int(cycles[1]) if cycles else None
        reports.append(report)
    if len(reports) != len(calls):
        raise Failure(f"compiled, but {len(reports)} of {len(calls)} kernels were found in the dumps")
    return reports


# --------------------------------------------------------------------------------------- reporting


def show(report, heads):
    """The lines about one kernel."""
    where = f"{report['file']} [{report['target']}]"
    if not report["compiled"]:
        return [f"{where}: error: {report['error']}"]
    per_head = f" ({report['bundles_per_step'] / heads:.1f} / {report['cycles_per_step'] / heads:.1f} a head)" if heads else ""
    once = f", once-only code {report['once_bundles']} / {report['once_cycles']}" if report["once_bundles"] else ""
    whole = f", whole call {report['estimated_cycles']} cycles" if report["estimated_cycles"] else ""
    lines = [f"{where}: {report['kernel']}: {report['bundles_per_step']} bundles / {report['cycles_per_step']} cycles per "
             f"{'step' if report['step'] == 'grid' else 'call'}{per_head}{once}, spills {report['spill_stores']} stores "
             f"{report['spill_fills']} fills, VMEM {report['vmem_bytes']} B{whole}"]
    for loop in report["loops"]:
        how = f"counted x {loop['trips']}" if loop["trips"] else "trip count unknown, counted once"
        lines.append(f"    inner loop of {loop['bundles']} bundles / {loop['cycles']} cycles: {how}")
    for branch in report["branches"]:
        if not branch["counted"]:
            lines.append(f"    kept out: {branch['bundles']} bundles, skipped if {branch['skipped_if']}")
    return lines


def run(files, targets, check, jobs, estimating=False):
    """Reports of all files: one per kernel and target, or one with an error per file (and target)."""
    reports, programs, owners = [], [], []
    for path in files:
        try:
            text = pathlib.Path(path).read_text()
            calls = calls_of(text)
            for call in calls if check else []:
                try:
                    verify(call)
                except Failure as e:
                    raise Failure(f"verify: kernel {call.name}: {e}")
        except (Failure, OSError, UnicodeDecodeError) as e:
            for target in targets or ["verify"]:
                reports.append({"file": path, "kernel": None, "target": target, "compiled": False, "error": str(Failure(e))})
            continue
        if not targets:
            reports.append({"file": path, "kernel": calls[0].name, "target": "verify", "compiled": None, "error": None})
        programs += [(text, target) for target in targets]
        owners += [(path, calls, target) for target in targets]
    if not programs:
        return reports
    with tempfile.TemporaryDirectory(prefix="tpu_compile.") as work:
        jobs = min(jobs, len(programs))
        lanes = [pathlib.Path(work, str(lane)) for lane in range(jobs)]
        for lane in lanes:
            lane.mkdir()
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            parts = list(pool.map(lambda lane: compile_all(programs[lane::jobs], lanes[lane], estimating), range(jobs)))
        for i, (path, calls, target) in enumerate(owners):
            error, directory = parts[i % jobs][i // jobs]
            about = {"file": path, "kernel": None, "target": target, "compiled": not error, "error": error or None}
            try:
                kernels = [] if error else read_dumps(directory, calls, target)
            except (Failure, LookupError, ValueError, OSError) as e:
                error = f"compiled, but the dumps could not be read: {e!r}"
                about.update(compiled=False, error=error)
                kernels = []
            reports += [{**about, **kernel} for kernel in kernels] or [about]
    return reports


def main():
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--verify", action="store_true", help="run jaxlib's parser and verifiers first")
    parser.add_argument("--target", action="append", choices=[*TOPOLOGIES, "all"], default=[])
    parser.add_argument("--estimate", action="store_true", help="also the compiler's own cycles of the whole call (slow)")
    parser.add_argument("--json", metavar="FILE", help="write the reports to FILE (- is standard output)")
    parser.add_argument("--head-count", type=int, metavar="N", help="heads per step, for numbers per head")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="compiler processes at a time")
    args = parser.parse_args()
    targets = list(TOPOLOGIES) if "all" in args.target else list(dict.fromkeys(args.target))
    if not targets and not args.verify:
        parser.error("nothing to do: give --verify or --target")
    try:
        import_mlir()
        if targets:
            import libtpu  # noqa: F401
    except ImportError as e:
        print(f"tpu_compile.py: {e}; jax, jaxlib and libtpu are needed (see cmake/setup.sh)", file=sys.stderr)
        return 3
    reports = run(args.files, targets, args.verify, max(1, args.jobs), args.estimate)
    for report in reports:
        if args.json != "-" or report["error"]:
            lines = show(report, args.head_count) if report["compiled"] is not None else [f"{report['file']}: verified"]
            print("\n".join(lines), file=sys.stderr if report["error"] else sys.stdout)
    if args.json:
        text = json.dumps(reports, indent=1) + "\n"
        sys.stdout.write(text) if args.json == "-" else pathlib.Path(args.json).write_text(text)
    bad = sum(r["compiled"] is False for r in reports)
    if args.json != "-":
        print(f"{len(reports) - bad} of {len(reports)} good")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
