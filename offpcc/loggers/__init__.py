"""Where a run's numbers go: the terminal, a CSV file, TensorBoard, Weights & Biases, or all of them."""

from offpcc.loggers.base import Logger, Loggers, Progress, Row
from offpcc.loggers.csv_file import CSVLogger
from offpcc.loggers.failures import going_on_without
from offpcc.loggers.tensorboard_events import TensorBoardLogger
from offpcc.loggers.terminal import ConsoleLogger
from offpcc.loggers.weights_and_biases import WandbLogger, tracking_wanted

__all__ = [
    "CSVLogger",
    "ConsoleLogger",
    "Logger",
    "Loggers",
    "Progress",
    "Row",
    "TensorBoardLogger",
    "WandbLogger",
    "going_on_without",
    "tracking_wanted",
]
