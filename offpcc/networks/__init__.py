"""Encoders, which map histories to summaries, and the heads that read summaries."""

from offpcc.networks.actors import DeterministicActor, FlowActor, GaussianActor, SquashedGaussianActor
from offpcc.networks.cells import Cell
from offpcc.networks.convolutional import Convolutional
from offpcc.networks.critics import Critics, QuantileCritics
from offpcc.networks.encoders import Encoder, Identity, Inputs, InputShape, PassThrough
from offpcc.networks.heads import Residual
from offpcc.networks.recurrent import Recurrent
from offpcc.networks.testing import check_encoder

__all__ = [
    "Cell",
    "Convolutional",
    "Critics",
    "DeterministicActor",
    "Encoder",
    "FlowActor",
    "GaussianActor",
    "Identity",
    "InputShape",
    "Inputs",
    "PassThrough",
    "QuantileCritics",
    "Recurrent",
    "Residual",
    "SquashedGaussianActor",
    "check_encoder",
]
