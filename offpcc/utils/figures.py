"""Shared style of all figures, and functions that save them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offpcc.utils.errors import UserError
from offpcc.utils.files import replacing
from offpcc.utils.paths import shown, why_no_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito's colours for colour-blind readers, without black and without yellow, which is hard to see on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MOST_WITHIN = 6  # lines in a panel; with more, the legend goes beside the panel
LONGEST_WITHIN = 30  # letters of a name; with more, the legend goes beside the panel
LINE_STYLES = ("-", "--", ":", "-.")

STYLE: Any = {
    "figure.dpi": 100,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.hashsalt": "offpcc",
    "text.parse_math": False,  # names of folders and settings may contain dollar signs
}

# Removed from pictures, so that the same numbers give the same bytes: dates and the version of matplotlib.
METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}
SUFFIXES = frozenset((".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".eps", ".ps"))


def line_looks(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the colour and the style of each name's line, as arguments of matplotlib."""
    return {
        name: {"color": COLORS[i % len(COLORS)], "linestyle": LINE_STYLES[i // len(COLORS) % len(LINE_STYLES)]}
        for i, name in enumerate(dict.fromkeys(names))
    }


@contextmanager
def new_figure(width: float, height: float) -> Iterator["Figure"]:
    """Yield an empty figure of this size in inches; what the block draws is in `STYLE`.

    It is made without pyplot, so it needs no display, and the garbage collector frees it.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: "Figure", file: Path) -> None:
    """Write a figure in `STYLE`, with a legend if its lines have names; the same numbers give the same bytes.

    The suffix of `file` selects the format.

    Raises:
        OSError: the file cannot be written.
        ValueError: matplotlib does not support this suffix.
    """
    import matplotlib

    file.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE), replacing(file) as temporary:
        _add_legends(figure)
        figure.savefig(temporary, dpi=150, metadata=METADATA.get(file.suffix))


def _add_legends(figure: "Figure") -> None:
    """Add a legend to each panel with named lines; beside the panel if the lines are many or their names are long."""
    widths = dict[int, float]()  # width in pixels of the legends beside panels, by column
    for axes in figure.axes:
        names = axes.get_legend_handles_labels()[1]
        if len(names) > MOST_WITHIN or max(map(len, names), default=0) > LONGEST_WITHIN:
            legend = axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
            place = axes.get_subplotspec()
            column = 0 if place is None else place.colspan.start
            widths[column] = max(widths.get(column, 0.0), legend.get_window_extent().width)
        elif names:
            axes.legend()
    width, height = figure.get_size_inches()
    figure.set_size_inches(width + sum(widths.values()) / figure.dpi, height)  # panels keep their width


def check_picture(path: Path, what: str, example: str) -> None:
    """Raise an error if a picture cannot be written; `what` is the option, and `example` a file, for messages."""
    with explain_picture_errors(path, what, example):
        if path.suffix not in SUFFIXES:
            raise ValueError(f"its name must end in one of {', '.join(sorted(SUFFIXES))}")
        if fault := "it is a folder" if path.is_dir() else why_no_folder(path.parent):
            raise ValueError(fault)


@contextmanager
def explain_picture_errors(path: Path, what: str, example: str) -> Iterator[None]:
    """Turn errors from writing a picture into one `UserError`; see `check_picture`."""
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{what} {shown(path)} cannot be written: {error}; name a file such as {example}") from error
