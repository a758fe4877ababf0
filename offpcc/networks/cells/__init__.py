"""Memory cells, and the names that `Recurrent.cell` accepts for them."""

from offpcc.networks.cells.base import Cell, CellBuilder, run_chunked
from offpcc.networks.cells.concat import Concat
from offpcc.networks.cells.gru import GRU
from offpcc.networks.cells.lru import LRU
from offpcc.networks.cells.mingru import MinGRU
from offpcc.networks.cells.torch_rnn import LSTM, RNN
from offpcc.networks.cells.transformer import GPT

# To add a memory, write a file in this folder, and add a row here.
CELLS: dict[str, CellBuilder] = {
    "lstm": LSTM,
    "gru": GRU,
    "rnn": RNN,
    "mingru": MinGRU,
    "lru": LRU,
    "gpt": GPT,
    "concat": Concat,
}

__all__ = ["CELLS", "GPT", "GRU", "LRU", "LSTM", "RNN", "Cell", "CellBuilder", "Concat", "MinGRU", "run_chunked"]
