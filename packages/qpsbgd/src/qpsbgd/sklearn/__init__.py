"""Estimators of scikit-learn whose networks have weights ±1, trained by QP-SBGD."""

from __future__ import annotations

try:
    from qpsbgd.sklearn.classifier import QPSBGDClassifier
    from qpsbgd.sklearn.regressor import QPSBGDRegressor
except ImportError as error:
    if (error.name or "").split(".")[0] not in ("sklearn", "tqdm"):
        raise
    raise ImportError(
        'qpsbgd.sklearn needs scikit-learn 1.6 or newer and tqdm: pip install "qpsbgd[sklearn]"', name=error.name
    ) from error

__all__ = ["QPSBGDClassifier", "QPSBGDRegressor"]
