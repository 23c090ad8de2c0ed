"""Every form of argument has the host slots and the kernarg that FlyDSL gives it."""

import pytest

from flyc_cli.manifest.model import TypeValue
from runtime_loader.element_types import ELEMENT_TYPES, SCALAR_TYPES
from runtime_loader.signature import SLOT_OF_SCALAR, StreamForm, StructForm
from tests.compile.building import (
    Outcomes,
    build,
    launches,
    pointer,
    request,
    scalar,
    tensor,
)

pytestmark = pytest.mark.compile

OUT = pointer("out", "i32")
N = scalar("n")

# (shape, strides): ≥ 0 is static, -d is dynamic and a multiple of d.
SHAPES = [
    ((4,), (1,)),
    ((-1,), (1,)),
    ((-1, -1), (-1, 1)),
    ((-1, -1), (1, -1)),
    ((4, -8), (-8, 1)),
    ((-1, 4), (4, 1)),
    ((4, 8), (-1, -1)),
    ((2, -1, 3), (-4, 1, -2)),
    ((1, 1), (1, 1)),
    ((-1, 1), (1, 1)),
    ((-1, 4), (0, 1)),
    ((2, 2, 2, 2, 2, -1), (-1, -1, 4, 3, 2, 1)),
]
ELEMENTS = [name for name in ELEMENT_TYPES if name != "index"]
BYTES = {
    name: max(ELEMENT_TYPES[name].bits if name != "index" else 64, 8) // 8 for name in SCALAR_TYPES
}

WRONG = {
    "missing argument": ([OUT], {"width": 3}, "argument n is not described: add it to args"),
    "unknown argument": (
        [OUT, N, scalar("m")],
        {"width": 3},
        "the launcher has no parameter m; its parameters are out, n, width, tag",
    ),
    "unknown constexpr": (
        [OUT, N],
        {"width": 3, "wide": 1},
        "the launcher has no parameter wide; its parameters are out, n, width, tag",
    ),
    "constexpr as argument": (
        [OUT, N, scalar("width")],
        {},
        "width is a compile-time parameter: list it under constexpr",
    ),
    "argument as constexpr": (
        [OUT],
        {"width": 3, "n": 4},
        "argument n is a run-time argument, not a constexpr: add it to args",
    ),
    "missing constexpr": (
        [OUT, N],
        {},
        "compile-time parameter width has no value: add it to constexpr",
    ),
    "wrong scalar type": (
        [OUT, scalar("n", "i64")],
        {"width": 3},
        "argument n is i64 in the manifest, but the launcher declares Int32 (i32)",
    ),
    "tensor for a pointer": (
        [tensor("out", (4,), (1,)), N],
        {"width": 3},
        "argument out is a tensor in the manifest, but the launcher declares a pointer (Pointer)",
    ),
    "pointer for a scalar": (
        [OUT, pointer("n")],
        {"width": 3},
        "argument n is a pointer in the manifest, but the launcher declares a scalar (Int32)",
    ),
    "struct for a scalar": (
        [OUT, StructForm("n", (scalar("a"),))],
        {"width": 3},
        "argument n is a struct in the manifest, but the launcher declares a scalar (Int32)",
    ),
}
INNER = StructForm("inner", (scalar("offset", "i64"), scalar("flag", "i1")))
STRUCT = StructForm("s", (scalar("count", "i8"), INNER, scalar("scale", "f32")))
WRONG_STRUCTS = {
    "missing fields": (
        StructForm("s", (scalar("count", "i8"),)),
        "argument s: Outer(...) missing required field(s): ['inner', 'scale'].",
    ),
    "unknown field": (
        StructForm("s", (*STRUCT.fields, scalar("more"))),
        "argument s: Outer(...) got unexpected field(s): ['more'].",
    ),
    "wrong field type": (
        StructForm("s", (scalar("count", "i32"), *STRUCT.fields[1:])),
        "argument count is i32 in the manifest, but the launcher declares Int8 (i8)",
    ),
    "no struct": (
        scalar("s"),
        "argument s is a scalar in the manifest, but the launcher declares a struct (Outer)",
    ),
}


def signature(name, *args, **constexpr):
    return request(f"signatures:{name}", *args, constexpr=constexpr)


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return build(
        {
            **{
                (shape, strides, bits): signature(
                    "one_tensor", tensor("x", shape, strides, stride_bits=bits), OUT
                )
                for shape, strides in SHAPES
                for bits in (32, 64)
            },
            **{
                ("elements", name): signature("one_tensor", tensor("x", (-1,), (1,), name), OUT)
                for name in ELEMENTS
            },
            **{
                ("scalars", name): signature(
                    "four_scalars",
                    OUT,
                    *(scalar("a", "i1"), scalar("b", name), scalar("c", "i8"), scalar("d", name)),
                )
                for name in SCALAR_TYPES
            },
            "tensors": signature(
                "two_tensors", tensor("x", (-1,), (1,)), tensor("y", (4, -1), (-1, 1)), OUT
            ),
            "struct": signature("nested_struct", STRUCT, OUT),
            "declared stream": signature("stream_in_the_middle", OUT, N),
            "described stream": signature("stream_in_the_middle", OUT, N, StreamForm("stream")),
            "implicit stream": signature("no_stream", OUT, N),
            "taken name": signature("scalar_called_stream", OUT, scalar("stream")),
            "constexpr": signature("compile_time", OUT, N, width=3),
            "constexpr without default": signature("compile_time", OUT, N, width=3, tag=0),
            "type": signature("element_size", OUT, dtype=TypeValue("f64")),
            "no tensor of rank 0": signature("one_tensor", tensor("x", (), ()), OUT),
            "no such type": signature("element_size", OUT, dtype=TypeValue("f8e5m2fnuz")),
            **{name: signature("compile_time", *a, **c) for name, (a, c, _) in WRONG.items()},
            **{
                name: signature("nested_struct", form, OUT)
                for name, (form, _) in WRONG_STRUCTS.items()
            },
        }
    )


def kernarg(built) -> list[tuple[int, int]]:
    (kernel,) = built.specialisation.kernels
    return [(param.offset, param.size) for param in kernel.kernarg.params]


def aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize(("shape", "strides"), SHAPES)
def test_tensors(outcomes, shape, strides, bits) -> None:
    built = outcomes.built((shape, strides, bits))
    dynamic = [*["i32"] * sum(e < 0 for e in shape), *[f"i{bits}"] * sum(s < 0 for s in strides)]
    assert built.specialisation.plan.inputs == ("ptr", *dynamic, "ptr", "ptr")
    layout = sum(int(slot[1:]) // 8 for slot in dynamic)
    middle = [(8, layout)] if layout else []
    assert kernarg(built) == [(0, 8), *middle, (aligned(8 + layout, 8), 8)]


@pytest.mark.parametrize("name", ELEMENTS)
def test_tensors_of_every_element_type(outcomes, name) -> None:
    built = outcomes.built(("elements", name))
    assert built.specialisation.plan.inputs == ("ptr", "i32", "ptr", "ptr")


@pytest.mark.parametrize("name", SCALAR_TYPES)
def test_scalars_of_every_type_lie_where_the_kernel_reads_them(outcomes, name) -> None:
    built = outcomes.built(("scalars", name))
    slot, size = SLOT_OF_SCALAR[name], BYTES[name]
    assert built.specialisation.plan.inputs == ("ptr", "i1", slot, "i8", slot, "ptr")
    first = aligned(9, size)
    last = aligned(first + size + 1, size)
    assert kernarg(built) == [(0, 8), (8, 1), (first, size), (first + size, 1), (last, size)]


def test_a_packed_layout_of_one_number_is_not_aligned_and_what_follows_is(outcomes) -> None:
    built = outcomes.built("tensors")
    assert built.specialisation.plan.inputs == ("ptr", "i32", "ptr", "i32", "i64", "ptr", "ptr")
    assert kernarg(built) == [(0, 8), (8, 4), (16, 8), (24, 12), (40, 8)]
    (launch,) = launches(built, 1, 2, 3, 4, 5, 6)
    fields = [1, 2, 3, 4, 5, 6]
    sizes = [8, 8, 8, 4, 12, 8]  # the second and the fifth with the padding after them
    assert launch.kernarg == b"".join(
        value.to_bytes(size, "little") for value, size in zip(fields, sizes, strict=True)
    )


def test_structs_are_their_leaves(outcomes) -> None:
    built = outcomes.built("struct")
    assert built.specialisation.plan.inputs == ("i8", "i64", "i1", "f32", "ptr", "ptr")
    assert kernarg(built) == [(0, 1), (8, 8), (16, 1), (20, 4), (24, 8)]


def test_streams(outcomes) -> None:
    for key in ("declared stream", "described stream"):
        spec = outcomes.built(key).specialisation
        assert [form.name for form in spec.signature] == ["out", "stream", "n"]
        assert spec.plan.inputs == ("ptr", "ptr", "i32")
        (launch,) = spec.plan.launches()
        assert launch.stream == 1
    spec = outcomes.built("implicit stream").specialisation
    assert spec.signature[-1] == StreamForm("stream", implicit=True)
    spec = outcomes.built("taken name").specialisation
    assert [form.name for form in spec.signature] == ["out", "stream", "stream_"]


def test_compile_time_values_are_no_arguments(outcomes) -> None:
    for key, number in (("constexpr", 3 * 5 + 7), ("constexpr without default", 3 * 5)):
        built = outcomes.built(key)
        assert built.specialisation.plan.inputs == ("ptr", "i32", "ptr")
        (launch,) = launches(built, 0, 5)
        assert int.from_bytes(launch.kernarg[8:12], "little") == number
    (launch,) = launches(outcomes.built("type"), 0)
    assert int.from_bytes(launch.kernarg[8:12], "little") == 64


@pytest.mark.parametrize("name", WRONG)
def test_what_the_manifest_and_the_launcher_disagree_on_is_named(outcomes, name) -> None:
    failed = outcomes.failed(name)
    assert (failed.kind, failed.message) == ("input", WRONG[name][2])


@pytest.mark.parametrize("name", WRONG_STRUCTS)
def test_what_they_disagree_on_inside_a_struct_is_named(outcomes, name) -> None:
    failed = outcomes.failed(name)
    assert (failed.kind, failed.message) == ("input", WRONG_STRUCTS[name][1])


def test_what_flydsl_lacks_is_named_with_its_version(outcomes) -> None:
    assert "has no tensors of rank 0" in outcomes.failed("no tensor of rank 0").message
    failed = outcomes.failed("no such type")
    assert failed.kind == "input"
    assert "has no element type f8e5m2fnuz" in failed.message
