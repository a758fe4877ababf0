"""Loggers: terminal, CSV file, TensorBoard, Weights & Biases."""

from offpcc.training.loggers.base import Logger, Loggers, Progress, Row, report_errors
from offpcc.training.loggers.console import ConsoleLogger
from offpcc.training.loggers.csv_logger import CSVLogger
from offpcc.training.loggers.tensorboard_logger import TensorBoardLogger
from offpcc.training.loggers.wandb_logger import WandbLogger, tracking_wanted

__all__ = [
    "CSVLogger",
    "ConsoleLogger",
    "Logger",
    "Loggers",
    "Progress",
    "Row",
    "TensorBoardLogger",
    "WandbLogger",
    "report_errors",
    "tracking_wanted",
]
