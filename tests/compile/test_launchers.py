"""Launchers of every shape become plans that launch what the launcher's Python says."""

from collections.abc import Iterator

import pytest

from runtime_loader.errors import PlanError
from tests.compile.building import (
    Outcomes,
    build,
    launches,
    line_of,
    pointer,
    request,
    scalar,
)

pytestmark = pytest.mark.compile

OUT = 0x7000
NUMBERS = (0, 1, 2, 5, 99, 100, 101, 250, -1, -7, -1000)

ONE_NUMBER = (
    *("two_launches", "if_without_else", "if_else", "if_with_value", "runtime_for"),
    *("runtime_for_carrying", "runtime_while", "dynamic_lds", "offset_pointer", "endless"),
    *("prints", "reads_memory", "forgets_the_stream", "launches_nothing", "divides"),
    *("clustered", "cluster_of_one"),
)


def launcher(name, *more, target="gfx942"):
    return request(f"launchers:{name}", pointer("out", "i32"), *more, target=target)


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    n, m = scalar("n"), scalar("m")
    numbers = (scalar("a"), scalar("b"), scalar("u", "u32"), scalar("w", "i64"))
    return build(
        {
            **{name: launcher(name, n) for name in ONE_NUMBER},
            "clustered on gfx1250": launcher("clustered", n, target="gfx1250"),
            "nested_if": launcher("nested_if", n, m),
            "loop_in_if_in_loop": launcher("loop_in_if_in_loop", n, m),
            "arithmetic": launcher("arithmetic", *numbers),
            "computes_floats": launcher("computes_floats", n, scalar("scale", "f32")),
            "address_as_number": launcher("address_as_number", scalar("address", "i64")),
        }
    )


def calls(outcomes, name, *slots) -> list[tuple[str, tuple[int, int, int], int, int]]:
    """(kernel, grid, pointer, number) of each launch; the stream must be the one given."""
    built = outcomes.built(name)
    symbols = [kernel.symbol for kernel in built.specialisation.kernels]
    found = launches(built, OUT, *slots)
    assert all(launch.stream == 7 and launch.block == (64, 1, 1) for launch in found)
    return [
        (
            symbols[launch.kernel].rsplit("_", 1)[0],
            launch.grid,
            int.from_bytes(launch.kernarg[:8], "little"),
            int.from_bytes(launch.kernarg[8:12], "little", signed=True),
        )
        for launch in found
    ]


def mark(number, *grid) -> tuple[str, tuple[int, ...], int, int]:
    return "mark_kernel", u32(*grid), OUT, number


def other(number, *grid) -> tuple[str, tuple[int, ...], int, int]:
    return "other_kernel", u32(*grid), OUT, number


def u32(*grid) -> tuple[int, ...]:
    return tuple(size & 0xFFFFFFFF for size in (*grid, 1, 1, 1)[:3])


def truncated(x, y):
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


@pytest.mark.parametrize("n", NUMBERS)
def test_several_launches_go_in_order(outcomes, n) -> None:
    blocks = (n + 63) // 64
    assert calls(outcomes, "two_launches", n) == [
        mark(n, blocks),
        other(n, blocks, 2),
        mark(blocks, 1),
    ]


@pytest.mark.parametrize("n", NUMBERS)
def test_runtime_if(outcomes, n) -> None:
    assert calls(outcomes, "if_without_else", n) == ([mark(n, n)] if n > 0 else [])
    assert calls(outcomes, "if_else", n) == [mark(n, n) if n > 100 else other(n, 1, n)]
    blocks = n // 100 if n > 100 else n + 7
    assert calls(outcomes, "if_with_value", n) == [mark(blocks, blocks)]


@pytest.mark.parametrize("n", [0, 3, -3])
@pytest.mark.parametrize("m", [0, 4, -4])
def test_nested_runtime_if(outcomes, n, m) -> None:
    inner = [mark(n, n, m) if m > 0 else other(m, n)] if n > 0 else []
    assert calls(outcomes, "nested_if", n, m) == [*inner, mark(m, 1)]


@pytest.mark.parametrize("n", [0, 1, 5, 20, -3])
def test_runtime_for(outcomes, n) -> None:
    assert calls(outcomes, "runtime_for", n) == [mark(i, i + 1) for i in range(n)]
    carried = [mark(2**i, 2**i) for i in range(n)]
    assert calls(outcomes, "runtime_for_carrying", n) == [*carried, other(2 ** max(n, 0), 1)]


@pytest.mark.parametrize("n", [0, 1, 2, 250, -5])
def test_runtime_while(outcomes, n) -> None:
    def sizes(size: int) -> Iterator[int]:
        while size > 1:
            yield size
            size //= 2

    assert calls(outcomes, "runtime_while", n) == [mark(size, size) for size in sizes(n)]


@pytest.mark.parametrize(("n", "m"), [(0, 3), (1, 0), (4, 3), (5, 2)])
def test_loops_and_choices_nest(outcomes, n, m) -> None:
    expected = []
    for i in range(n):
        if i % 2 == 0:
            expected += [mark(i * 10 + j, j + 1) for j in range(m)]
        else:
            expected.append(other(i, 1))
    assert calls(outcomes, "loop_in_if_in_loop", n, m) == expected


def test_an_endless_loop_is_stopped(outcomes) -> None:
    assert calls(outcomes, "endless", 1) == []
    with pytest.raises(PlanError, match="did not end within"):
        calls(outcomes, "endless", 2)


def test_a_division_by_zero_raises_before_anything_is_launched(outcomes) -> None:
    assert calls(outcomes, "divides", 8) == [mark(8, 128)]
    with pytest.raises(PlanError, match="divided by zero"):
        calls(outcomes, "divides", 0)


@pytest.mark.parametrize("a", [0, 7, -7, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("b", [1, -3, 256])
@pytest.mark.parametrize("u", [0, 5, 2**32 - 1])
@pytest.mark.parametrize("w", [0, 10**10, -(10**10)])
def test_integer_arithmetic(outcomes, a, b, u, w) -> None:
    def i32(x: int) -> int:
        return (x + 2**31) % 2**32 - 2**31

    # FlyDSL rounds quotients down; a remainder is LLVM's, with the sign of the dividend.
    remainder = a - b * truncated(a, b)
    blocks = i32(i32(a + 255) // 256 + remainder - (i32(a * b) >> 3) + i32(b << 2))
    unsigned = u // 7 + u % 5 + (u >> 2)
    quotient = w // 3
    wide = quotient - 11 * truncated(quotient, 11) + a
    bits = (a & b) | (a ^ 15)
    assert calls(outcomes, "arithmetic", a, b, u, w) == [
        mark(bits, blocks, unsigned, a if a < b else b),
        mark(i32(wide), wide),
    ]


def test_dynamic_lds_is_computed_at_run_time(outcomes) -> None:
    (launch,) = launches(outcomes.built("dynamic_lds"), OUT, 300)
    assert launch.lds == 1200


@pytest.mark.parametrize("n", [0, 3, -2])
def test_pointer_arithmetic_counts_elements(outcomes, n) -> None:
    assert calls(outcomes, "offset_pointer", n) == [("mark_kernel", (1, 1, 1), OUT + n * 16, n)]


def test_an_address_can_be_a_number(outcomes) -> None:
    assert calls(outcomes, "address_as_number", 0x5000) == [mark(5, 1)]


def test_clusters_exist_on_gfx1250_only(outcomes) -> None:
    (launch,) = launches(outcomes.built("clustered on gfx1250"), OUT, 3)
    assert (launch.grid, launch.cluster) == ((6, 1, 1), (2, 1, 1))
    failed = outcomes.failed("clustered")
    assert failed.stage == "launch-plan"
    assert "clusters of workgroups, which gfx942 does not have" in failed.message
    assert failed.source[0] == line_of("launchers", "cluster=(2, 1, 1)")
    assert outcomes.built("cluster_of_one")


@pytest.mark.parametrize(
    ("name", "what", "line"),
    [
        ("prints", "host printf", 'fx.printf("n={}", n)'),
        ("computes_floats", "floating-point arithmetic on the host", "fx.Float32(n) * scale"),
        ("reads_memory", "memory access on the host (llvm.load)", "fx.Int32(out[n])"),
    ],
)
def test_what_a_plan_cannot_hold_is_refused_at_its_line(outcomes, name, what, line) -> None:
    failed = outcomes.failed(name)
    assert (failed.kind, failed.stage) == ("failed", "launch-plan")
    assert what in failed.message
    assert failed.source[0] == line_of("launchers", line)


def test_a_launch_without_a_stream_is_refused(outcomes) -> None:
    failed = outcomes.failed("forgets_the_stream")
    assert "pass stream= to launch" in failed.message
    file, line = line_of("launchers", "def forgets_the_stream(")
    assert failed.source[0] == (file, line + 1)


def test_a_launcher_that_launches_nothing_is_refused(outcomes) -> None:
    assert outcomes.failed("launches_nothing").message == "the launcher launches no kernel"
