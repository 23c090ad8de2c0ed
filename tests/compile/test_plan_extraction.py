"""Every operation that a plan may hold, from MLIR that FlyDSL need not have written."""

from collections.abc import Iterator

import pytest

from runtime_loader.evaluate import Evaluator
from runtime_loader.specialisation import KernargLayout, KernelEntry, KernelParam, Resources

pytestmark = pytest.mark.compile

ir = pytest.importorskip("flydsl._mlir.ir")


@pytest.fixture
def context() -> Iterator[object]:
    context = ir.Context()
    context.load_all_available_dialects()
    with context, ir.Location.unknown():
        yield context


def module_of(body: str, arguments: str = "%a: i32, %b: i32, %s: !llvm.ptr"):
    return ir.Module.parse(
        f"""module attributes {{gpu.container_module}} {{
          gpu.module @kernels {{ llvm.func @k() attributes {{gpu.kernel, rocdl.kernel}} {{
            llvm.return }} }}
          llvm.func @host({arguments}) {{
            %one = llvm.mlir.constant(1 : i64) : i64
            {body}
          }}
        }}"""
    )


def launch(grid="%one", args="", more=""):
    return (
        f"gpu.launch_func <%s : !llvm.ptr> @kernels::@k blocks in ({grid}, %one, %one) "
        f"threads in (%one, %one, %one) : i64 {more} args({args})"
    )


def extract(module):
    from mlir_passes.launch_plan import extract_launch_plan

    return extract_launch_plan(module, ["k"])


def grids(module, *slots):
    """The first grid dimension of each launch."""
    return [launch.grid[0] for launch in run(module, *slots)]


def run(module, *slots):
    plan = extract(module)
    types = plan.value_types()
    sizes = {"ptr": 8, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1, "f32": 4, "f64": 8}
    found = plan.launches()[0].args if plan.launches() else ()
    params, end = [], 0
    for leaves in found:
        size = sum(sizes[types[v]] for v in leaves)
        params.append(KernelParam(end, size, "by_value"))
        end += size
    return Evaluator(plan, [KernargLayout(tuple(params), end, end)])(slots)


MASK = 0xFFFFFFFF
# LLVM operation, and what it makes of (12, -5) as 32-bit patterns.
BINARY = {
    "llvm.add %a, %b : i32": 7,
    "llvm.sub %a, %b : i32": 17,
    "llvm.mul %a, %b : i32": -60,
    "llvm.sdiv %a, %b : i32": -2,
    "llvm.udiv %b, %a : i32": (2**32 - 5) // 12,
    "llvm.srem %a, %b : i32": 2,
    "llvm.urem %b, %a : i32": (2**32 - 5) % 12,
    "llvm.and %a, %b : i32": 12 & -5,
    "llvm.or %a, %b : i32": 12 | -5,
    "llvm.xor %a, %b : i32": 12 ^ -5,
    "llvm.shl %b, %a : i32": -5 << 12,
    "llvm.lshr %b, %a : i32": (2**32 - 5) >> 12,
    "llvm.ashr %b, %a : i32": -5 >> 12,
    "llvm.intr.smin(%a, %b) : (i32, i32) -> i32": -5,
    "llvm.intr.smax(%a, %b) : (i32, i32) -> i32": 12,
    "llvm.intr.umin(%a, %b) : (i32, i32) -> i32": 12,
    "llvm.intr.umax(%a, %b) : (i32, i32) -> i32": -5,
    "llvm.bitcast %b : i32 to i32": -5,
    "llvm.freeze %b : i32": -5,
}


@pytest.mark.parametrize(("operation", "result"), BINARY.items())
def test_integer_operations(context, operation, result) -> None:
    body = f"%r = {operation}\n%g = llvm.zext %r : i32 to i64\n{launch('%g')}\nllvm.return"
    assert grids(module_of(body), 12, -5 & MASK, 7) == [result & MASK]


@pytest.mark.parametrize(
    ("predicate", "holds"),
    [
        *(("eq", False), ("ne", True), ("slt", False), ("sle", False), ("sgt", True)),
        *(("sge", True), ("ult", True), ("ule", True), ("ugt", False), ("uge", False)),
    ],
)
def test_comparisons(context, predicate, holds) -> None:
    body = f"""%c = llvm.icmp "{predicate}" %a, %b : i32
      %r = llvm.select %c, %a, %b : i1, i32
      %g = llvm.zext %r : i32 to i64
      {launch("%g")}
      llvm.return"""
    assert grids(module_of(body), 12, -5 & MASK, 7) == [12 if holds else -5 & MASK]


@pytest.mark.parametrize(
    ("steps", "result"),
    [
        ("%g = llvm.sext %b : i32 to i64", -5),
        ("%t = llvm.trunc %b : i32 to i8\n%g = llvm.zext %t : i8 to i64", 251),
        ("%t = llvm.trunc %b : i32 to i16\n%g = llvm.sext %t : i16 to i64", -5),
        ("%p = llvm.inttoptr %a : i32 to !llvm.ptr\n%g = llvm.ptrtoint %p : !llvm.ptr to i64", 12),
        ("%i = llvm.ptrtoint %s : !llvm.ptr to i32\n%g = llvm.zext %i : i32 to i64", 7),
    ],
)
def test_conversions(context, steps, result) -> None:
    body = f"{steps}\n{launch('%g')}\nllvm.return"
    assert grids(module_of(body), 12, -5 & MASK, 7) == [result & MASK]


@pytest.mark.parametrize(
    ("pointer", "offset"),
    [
        ("llvm.getelementptr %s[%b] : (!llvm.ptr, i32) -> !llvm.ptr, i32", -20),
        ("llvm.getelementptr %s[3] : (!llvm.ptr) -> !llvm.ptr, f64", 24),
        ("llvm.getelementptr %s[%one] : (!llvm.ptr, i64) -> !llvm.ptr, i8", 1),
    ],
)
def test_pointer_arithmetic(context, pointer, offset) -> None:
    body = f"%p = {pointer}\n{launch(args='%p : !llvm.ptr')}\nllvm.return"
    (found,) = run(module_of(body), 12, -5 & MASK, 1000)
    assert int.from_bytes(found.kernarg, "little") == 1000 + offset


def test_aggregates_are_taken_apart(context) -> None:
    pair = "!llvm.struct<packed (i32, struct<packed (i32, i64)>)>"
    body = f"""%u = llvm.mlir.undef : {pair}
      %1 = llvm.insertvalue %a, %u[0] : {pair}
      %2 = llvm.insertvalue %b, %1[1, 0] : {pair}
      %3 = llvm.insertvalue %one, %2[1, 1] : {pair}
      %i = llvm.extractvalue %3[1] : {pair}
      %b2 = llvm.extractvalue %i[0] : !llvm.struct<packed (i32, i64)>
      %g = llvm.zext %b2 : i32 to i64
      {launch("%g", f"%3 : {pair}")}
      llvm.return"""
    (found,) = run(module_of(body), 3, 4, 7)
    assert found.grid[0] == 4
    assert found.kernarg == bytes([3, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("name", ["undef", "poison", "zero"])
def test_undefined_values_are_zero(context, name) -> None:
    body = f"%u = llvm.mlir.{name} : i64\n{launch('%u')}\nllvm.return"
    assert grids(module_of(body), 1, 2, 7) == [0]


@pytest.mark.parametrize(
    ("constant", "bits"),
    [
        ("1.5 : f32", 0x3FC00000),
        ("-2.0 : f64", 0xC000000000000000),
        ("-1 : i8", 0xFF),
        ("true", 1),
        ("0x7FC00000 : f32", 0x7FC00000),
    ],
)
def test_constants_are_bit_patterns(context, constant, bits) -> None:
    type_ = "i1" if constant == "true" else constant.split(" : ")[1]
    body = (
        f"%c = llvm.mlir.constant({constant}) : {type_}\n"
        f"{launch(args=f'%c : {type_}')}\nllvm.return"
    )
    (found,) = run(module_of(body), 1, 2, 7)
    assert int.from_bytes(found.kernarg, "little") == bits


def test_blocks_may_be_written_in_any_order(context) -> None:
    body = f"""llvm.br ^first
    ^second:
      {launch("%g")}
      llvm.return
    ^nowhere:
      {launch("%one")}
      llvm.return
    ^first:
      %g = llvm.sext %a : i32 to i64
      llvm.br ^second"""
    assert grids(module_of(body), 5, 0, 7) == [5]


def test_both_ways_of_a_branch_can_reach_one_block_with_values(context) -> None:
    body = f"""%c = llvm.icmp "slt" %a, %b : i32
      llvm.cond_br %c, ^out(%a, %b : i32, i32), ^out(%b, %a : i32, i32)
    ^out(%low: i32, %high: i32):
      %l = llvm.zext %low : i32 to i64
      %h = llvm.zext %high : i32 to i64
      {launch("%l")}
      {launch("%h")}
      llvm.return"""
    assert grids(module_of(body), 9, 4, 7) == [4, 9]
    assert grids(module_of(body), 2, 4, 7) == [2, 4]


def test_a_loop_that_swaps_its_values_swaps_them(context) -> None:
    body = f"""%zero = llvm.mlir.constant(0 : i64) : i64
      %three = llvm.mlir.constant(3 : i64) : i64
      llvm.br ^head(%zero, %one, %three : i64, i64, i64)
    ^head(%i: i64, %x: i64, %y: i64):
      {launch("%x")}
      %next = llvm.add %i, %one : i64
      %more = llvm.icmp "slt" %next, %three : i64
      llvm.cond_br %more, ^head(%next, %y, %x : i64, i64, i64), ^end
    ^end:
      llvm.return"""
    assert grids(module_of(body), 0, 0, 7) == [1, 3, 1]


def test_a_division_that_nothing_uses_is_dropped(context) -> None:
    body = f"%r = llvm.sdiv %a, %b : i32\n{launch()}\nllvm.return"
    assert grids(module_of(body), 1, 0, 7) == [1]


REFUSED = {
    "llvm.store %a, %s : i32, !llvm.ptr": "memory access on the host (llvm.store)",
    "%x = llvm.load %s : !llvm.ptr -> i32": "memory access on the host (llvm.load)",
    "%x = llvm.alloca %a x i32 : (i32) -> !llvm.ptr": "memory access on the host (llvm.alloca)",
    "%x = llvm.sitofp %a : i32 to f32": "floating-point arithmetic on the host (llvm.sitofp)",
    "%x = llvm.intr.ctpop(%a) : (i32) -> i32": "llvm.intr.ctpop",
    "llvm.call %s() : !llvm.ptr, () -> ()": "llvm.call",
    "%x = llvm.zext %a : i32 to i128": "a value of type i128",
    "%x = llvm.mlir.undef : vector<2xi32>": "a value of type vector<2xi32>",
}


@pytest.mark.parametrize(("operation", "what"), REFUSED.items())
def test_everything_else_is_refused_at_its_line(context, operation, what) -> None:
    from mlir_passes.errors import LoweringError, SourceLine

    module = module_of(f'{operation} loc("author.py":12:3)\n{launch()}\nllvm.return')
    with pytest.raises(LoweringError) as caught:
        extract(module)
    assert f"cannot hold: {what}." in caught.value.message
    assert caught.value.source == (SourceLine("author.py", 12),)


def test_an_extern_call_is_refused_by_name(context) -> None:
    from mlir_passes.errors import LoweringError

    text = str(module_of(f"{launch()}\nllvm.return"))
    declared = text.replace("llvm.func @host", "llvm.func @puts(i32)\n  llvm.func @host")
    called = declared.replace(
        "    gpu.launch_func", "    llvm.call @puts(%arg0) : (i32) -> ()\n    gpu.launch_func"
    )
    with pytest.raises(LoweringError, match="a call of @puts"):
        extract(ir.Module.parse(called))


# What LLVM's data layout gives each operand list: (offset, size) of each.
LAYOUTS = {
    "i1 i8 i16 i64": [(0, 1), (1, 1), (2, 2), (8, 8)],
    "i8 i64 i1 f16 f64": [(0, 1), (8, 8), (16, 1), (18, 2), (24, 8)],
    "i8 packed(i32)": [(0, 1), (1, 4)],
    "i8 packed(i32,i64) i32": [(0, 1), (1, 12), (16, 4)],
    "i8 plain(i32)": [(0, 1), (4, 4)],
    "i8 plain(i32,i32,i64) i8": [(0, 1), (8, 16), (24, 1)],
    "ptr bf16 f32": [(0, 8), (8, 2), (12, 4)],
}


def operand_type(word: str) -> str:
    if "(" not in word:
        return "!llvm.ptr" if word == "ptr" else word
    kind, members = word[:-1].split("(")
    inner = ", ".join(members.split(","))
    return f"!llvm.struct<{'packed ' if kind == 'packed' else ''}({inner})>"


def check(operands: str, params: list[tuple[int, int]]) -> None:
    from mlir_passes.kernarg import check_kernarg

    types = [operand_type(word) for word in operands.split()]
    arguments = ", ".join([*(f"%x{i}: {t}" for i, t in enumerate(types)), "%s: !llvm.ptr"])
    passed = ", ".join(f"%x{i} : {t}" for i, t in enumerate(types))
    module = module_of(f"{launch(args=passed)}\nllvm.return", arguments)
    end = params[-1][0] + params[-1][1]
    layout = KernargLayout(tuple(KernelParam(o, s, "by_value") for o, s in params), end, end)
    none = Resources(0, 0, 0, 0, 0, 0, 0, 64, (0, 0, 0), 1024, 8, 8)
    check_kernarg(module, {"k": KernelEntry("k", layout, none)})


@pytest.mark.parametrize(("operands", "params"), LAYOUTS.items())
def test_kernarg_layouts_follow_the_operand_types(context, operands, params) -> None:
    check(operands, params)


@pytest.mark.parametrize(("operands", "params"), LAYOUTS.items())
def test_a_note_that_contradicts_the_launch_fails(context, operands, params) -> None:
    from mlir_passes.errors import LoweringError

    doctored = [*params[:-1], (params[-1][0] + 8, params[-1][1])]
    for wrong in (doctored, [*params[:-1], (params[-1][0], params[-1][1] + 1)], params[:-1]):
        with pytest.raises(LoweringError, match="by its metadata, but the launcher passes"):
            check(operands, wrong)


@pytest.mark.parametrize("operands", ["plain(i8,i32)", "plain(i64,i8)"])
def test_padding_inside_an_operand_is_refused(context, operands) -> None:
    from mlir_passes.errors import LoweringError

    with pytest.raises(LoweringError, match="has padding inside"):
        check(operands, [(0, 8)])
