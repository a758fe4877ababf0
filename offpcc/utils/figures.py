"""Style and writing of all figures."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offpcc.utils.errors import UserError
from offpcc.utils.files import replacing
from offpcc.utils.paths import shown, why_no_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito's colours, which colour-blind people tell apart, without black and the yellow lost on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MOST_WITHIN = 6  # lines whose legend finds a place among them
LONGEST_WITHIN = 30  # letters of a name in such a legend
LINE_STYLES = ("-", "--", ":", "-.")

STYLE: Any = {
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
    "text.parse_math": False,  # names of folders and settings may hold dollar signs
}

# What would make two pictures of the same numbers differ: dates, and the plotting library's version.
METADATA: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}
SUFFIXES = frozenset((".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".eps", ".ps"))


def save(figure: "Figure", file: Path) -> None:
    """Write a figure in `STYLE`, with a legend where its lines have names; the same numbers give the same bytes.

    Args:
        figure: made without pyplot, so that it needs no display and is freed like any object.
        file: the picture, of a kind that its suffix tells.

    Raises:
        OSError: it cannot be written.
        ValueError: there is no picture with this suffix.
    """
    import matplotlib

    with matplotlib.rc_context(STYLE), replacing(file) as temporary:
        _add_legends(figure)
        figure.savefig(temporary, dpi=150, metadata=METADATA.get(file.suffix))


def _add_legends(figure: "Figure") -> None:
    """A legend for each panel with named lines: among them, or beside it if they are many or their names are long."""
    widths = dict[int, float]()  # of legends beside panels, by column; pixels
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
    """Refuse a picture that could not be written.

    Args:
        path: of the picture.
        what: names it, such as ``--output``.
        example: of a name.

    Raises:
        UserError: its name has another suffix, or nothing can be written there.
    """
    fault = why_no_folder(path.parent)
    if path.suffix not in SUFFIXES:
        fault = f"a picture ends in one of {', '.join(sorted(SUFFIXES))}"
    elif path.is_dir():
        fault = "it is a folder"
    if fault:
        raise _refusal(path, what, example, fault)


@contextmanager
def telling_of_faults(path: Path, what: str, example: str) -> Iterator[None]:
    """Tell in one message what goes wrong while a picture is written; see `check_picture`.

    Raises:
        UserError: it cannot be written.
    """
    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise _refusal(path, what, example, error) from error


def _refusal(path: Path, what: str, example: str, fault: object) -> UserError:
    return UserError(f"{what} {shown(path)} cannot be written: {fault}; name a file such as {example}")
