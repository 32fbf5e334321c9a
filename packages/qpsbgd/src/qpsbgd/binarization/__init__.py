"""One or a few bits per weight without training: solves one QUBO family per layer."""

from qpsbgd.binarization.binarizing import Binarized, binarize
from qpsbgd.binarization.distillation import distill, embedding_loss, logit_loss, relative_error
from qpsbgd.binarization.layer_report import LayerLoss, Report

__all__ = ["Binarized", "LayerLoss", "Report", "binarize", "distill", "embedding_loss", "logit_loss", "relative_error"]
