"""Encoders, which map histories to summaries, and the heads that read summaries."""

from offpcc.networks.actors import DeterministicActor, GaussianActor, SquashedGaussianActor
from offpcc.networks.cells import Cell
from offpcc.networks.convolutional import Convolutional
from offpcc.networks.critics import Critics
from offpcc.networks.encoders import Encoder, Identity, Inputs, InputShape, PassThrough
from offpcc.networks.flow import FlowActor
from offpcc.networks.heads import Residual
from offpcc.networks.recurrent import Recurrent
from offpcc.networks.testing import check_encoder
from offpcc.networks.vae import VariationalAutoencoder

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
    "Recurrent",
    "Residual",
    "SquashedGaussianActor",
    "VariationalAutoencoder",
    "check_encoder",
]
