"""Loggers: terminal, CSV file, TensorBoard, Weights & Biases."""

from offpcc.training.loggers.base import Logger, Loggers, Progress, Row, report_errors
from offpcc.training.loggers.console import ConsoleLogger
from offpcc.training.loggers.csv_logger import CSVLogger
from offpcc.training.loggers.tensorboard_logger import TensorBoardLogger
from offpcc.training.loggers.wandb_logger import WandbLogger, check_installed, tracking_wanted, upload_report

__all__ = [
    "CSVLogger",
    "ConsoleLogger",
    "Logger",
    "Loggers",
    "Progress",
    "Row",
    "TensorBoardLogger",
    "WandbLogger",
    "check_installed",
    "report_errors",
    "tracking_wanted",
    "upload_report",
]
