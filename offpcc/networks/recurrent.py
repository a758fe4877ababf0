"""The recurrent encoder."""

import copy
import functools
import inspect
from typing import Annotated, Any

from torch import Tensor, nn

from offpcc.config.bindings import refuse_unknown
from offpcc.config.registry import REGISTRY, configurable
from offpcc.config.validation import NumParts, Rule, Size, either, one_of
from offpcc.core import State
from offpcc.networks.cells import CELLS, Cell, CellBuilder, run_chunked
from offpcc.networks.cells.compiled import run_as_one
from offpcc.networks.encoders import (
    Encoder,
    Inputs,
    InputShape,
    MemorylessBuilder,
    PassThrough,
    build_encoder,
    vector,
    vector_dim,
)
from offpcc.networks.numpy_inference import Array, Mirror, mirrors_of
from offpcc.networks.testing import check_cell
from offpcc.utils.errors import UserError
from offpcc.utils.torch_private import is_compiling


def _class_built(build: Any) -> Any:
    return build.func if isinstance(build, functools.partial) else build


def _builds_cells(value: Any) -> bool:
    made = _class_built(value)
    return isinstance(made, type) and issubclass(made, Cell)


def _as_cell(value: Any) -> str:
    """Return how another value becomes a cell class; "" for what is none."""
    if isinstance(value, str):
        is_known = issubclass(REGISTRY.get(value, object), Cell)
        return f"write @{value} without quotes; in Python, give the class" if is_known else ""
    cls = value if isinstance(value, type) else type(value)
    if issubclass(cls, Cell):
        return "" if cls is value else f"write @{cls.__name__} without parentheses; in Python, give the class"
    if issubclass(cls, Encoder):
        return f"an encoder is not a part of Recurrent: bind it as the algorithm's encoder = @{cls.__name__}"
    if issubclass(cls, nn.Module):
        return "a cell is a class that derives from offpcc.networks.Cell; `offpcc docs extending` has an example"
    return ""


_NAME = one_of(CELLS)
_CELL = either(_NAME, Rule("a cell class such as @LSTM", _builds_cells))
CellChoice = Annotated[str | CellBuilder, _CELL._replace(remedy=lambda value: _as_cell(value) or _NAME.remedy(value))]


@configurable
class Recurrent(Encoder):
    """Encoder with memory: a memory cell over the history (Yang & Nguyen 2021: an LSTM of 2 layers x 256).

    Args:
        shape: input shape.
        cell: the memory cell: a name from `offpcc.networks.cells`, or your own class, see `Cell`.
        hidden_dim: width of every layer.
        num_layers: number of layers.
        feature_extractor: an encoder without memory that processes each observation first, such as `Convolutional`.
        kwargs: the extra inputs, see `Encoder`.
    """

    memoryless = False

    def __init__(
        self,
        shape: InputShape,
        *,
        cell: CellChoice = "lstm",
        hidden_dim: Size = 256,
        num_layers: NumParts = 2,
        feature_extractor: MemorylessBuilder = PassThrough,
        **kwargs: bool,
    ) -> None:
        super().__init__(shape, **kwargs)
        self.feature_extractor = build_encoder(
            feature_extractor, shape, "Recurrent.feature_extractor", may_have_memory=False
        )
        num_in = vector_dim(self.feature_extractor.output_shape) + self.extra_dim
        build = CELLS[cell] if isinstance(cell, str) else cell
        self.cell = _build_cell(build, num_in=num_in, hidden_dim=hidden_dim, num_layers=num_layers)
        if not isinstance(getattr(self.cell, "dim", None), int):
            raise UserError(f"{type(self.cell).__name__}.dim is not set; set it in __init__ to the width of a summary")
        self.dim, self.context_length = self.cell.dim, self.cell.context_length
        if not type(self.cell).__module__.startswith("offpcc."):
            check_cell(copy.deepcopy(self.cell), num_in, self.dim)

    def forward(self, inputs: Inputs, state: State = None) -> tuple[Tensor, State]:
        """(B, T, *obs) -> (B, T, dim)."""
        features, _ = self.feature_extractor(inputs)
        run = run_as_one if is_compiling() else run_chunked
        h, after = run(self.cell, self.with_extras(vector(features), inputs), state)
        return h, after

    def unused_parameters(self) -> dict[str, str]:
        """Return the parameters that have no effect with this cell, each with the reason."""
        return self.cell.unused_parameters()

    def mirror(self) -> Mirror | None:
        """Return the NumPy version, or None if a part has none; see `offpcc.networks.numpy_inference`."""
        if (mirrors := mirrors_of(self.feature_extractor, self.cell)) is None:
            return None
        feature_extractor, cell = mirrors

        def step(inputs: Inputs, state: State) -> tuple[Array, State]:
            features, _ = feature_extractor(inputs, None)
            result: tuple[Array, State] = cell(self.extended(features, inputs), state)
            return result

        return step


def _build_cell(build: CellBuilder, **sizes: int) -> Cell:
    """Build a cell of these sizes."""
    try:
        signature = inspect.signature(build)
    except ValueError:  # of a partial with an argument that the class does not have
        if isinstance(build, functools.partial):
            refuse_unknown(_class_built(build).__name__, build.keywords, [*inspect.signature(build.func).parameters])
        raise
    try:
        signature.bind_partial(**sizes)
    except TypeError as error:
        taken = ", ".join(signature.parameters) or "()"
        raise UserError(
            f"{_class_built(build).__name__} takes the arguments {taken}; a cell gets num_in, hidden_dim and "
            f"num_layers by keyword, so give its arguments these names"
        ) from error
    return build(**sizes)
