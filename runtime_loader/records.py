"""`dataclass` and `replace` at a fraction of what the originals cost to import.

`dataclasses` imports `inspect` and compiles five methods for every class; a server that starts to
launch one kernel waits for that. These are the parts that the loader uses, with the same meaning;
type checkers see the originals.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:

    def dataclass(*, frozen, order=False):
        """A frozen class with a field for each annotation of the class's own body."""
        assert frozen

        def build(cls):
            names = tuple(cls.__annotations__)
            defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}

            def initialise(self, *args, **named):
                if not named and len(args) == len(names):
                    self.__dict__.update(zip(names, args, strict=True))
                    return
                values = dict(zip(names, args, strict=False))
                unknown = [name for name in named if name not in names or name in values]
                values = defaults | values | named
                if unknown or len(args) > len(names) or len(values) < len(names):
                    raise TypeError(f"{cls.__name__} takes ({', '.join(names)})")
                self.__dict__.update(values)

            def key(self):
                return tuple(self.__dict__[name] for name in names)

            def refuse(self, name, *_):
                raise AttributeError(f"{cls.__name__}.{name} is frozen")

            def show(self):
                fields = ", ".join(f"{name}={self.__dict__[name]!r}" for name in names)
                return f"{cls.__name__}({fields})"

            def equal(self, other):
                return key(self) == key(other) if other.__class__ is cls else NotImplemented

            def less(self, other):
                return key(self) < key(other) if other.__class__ is cls else NotImplemented

            cls.__init__ = initialise
            cls.__repr__ = show
            cls.__eq__ = equal
            cls.__hash__ = lambda self: hash(key(self))
            cls.__setattr__ = cls.__delattr__ = refuse
            cls.__match_args__ = names
            if order:
                cls.__lt__ = less
            return cls

        return build

    def replace(record, **changes):
        """A copy of `record` with some fields changed."""
        return type(record)(**(vars(record) | changes))
