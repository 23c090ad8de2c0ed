"""Launchers whose arguments FlyDSL takes, or refuses in its own words, and flyc refuses."""

import flydsl.compiler as flyc
import flydsl.expr as fx


@fx.struct
class Pair:
    first: fx.Int32
    second: fx.Int32


class Number:
    """A `JitArgument` that is no struct of FlyDSL's."""

    def __init__(self, value):
        self.value = value

    def __get_ir_types__(self):
        return [fx.Int32.ir_type]

    def __c_abi_spec__(self):
        return self.value.__c_abi_spec__()

    def __extract_to_ir_values__(self):
        return [self.value.ir_value()]

    @classmethod
    def __construct_from_ir_values__(cls, values, exemplar=None):
        return cls(fx.Int32(values[0]))


@flyc.kernel
def mark_kernel(out: fx.Pointer, value: fx.Int32):
    out[fx.Int64(fx.thread_idx.x)] = value


@flyc.jit
def unannotated_struct(out: fx.Pointer, pair):
    mark_kernel(out, pair.first + pair.second).launch(grid=(1, 1, 1), block=(64, 1, 1))


@flyc.jit
def default_out_of_range(out: fx.Pointer, n: fx.Int8 = 300):
    mark_kernel(out, fx.Int32(n)).launch(grid=(1, 1, 1), block=(64, 1, 1))


@flyc.jit
def any_number(out: fx.Pointer, *numbers):
    mark_kernel(out, numbers[0]).launch(grid=(1, 1, 1), block=(64, 1, 1))


@flyc.jit
def any_names(out: fx.Pointer, **numbers):
    mark_kernel(out, numbers["n"]).launch(grid=(1, 1, 1), block=(64, 1, 1))


@flyc.jit
def own_class(out: fx.Pointer, number: Number):
    mark_kernel(out, number.value).launch(grid=(1, 1, 1), block=(64, 1, 1))


@flyc.jit
def plain(out: fx.Pointer, n: fx.Int32):
    mark_kernel(out, n).launch(grid=(1, 1, 1), block=(64, 1, 1))
