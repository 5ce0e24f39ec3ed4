"""Local training on torch: a round at a site, its device, and the model as one vector."""

from securefda.protocol.encoding import Vector
from securefda.training.batch_norm import estimate_statistics
from securefda.training.device import choose_device, describe_device
from securefda.training.local import (
    FEWEST_TARGET_STEPS,
    Evaluation,
    LocalResult,
    evaluate,
    require_steps,
    train_local,
)
from securefda.training.memory import PersonalMemory
from securefda.training.parameter_vectors import (
    LayerTable,
    build_model,
    frozen_digest,
    layer_sizes,
    layer_table,
    model_to_vector,
    vector_to_model,
)
from securefda.training.personal import PersonalModel, PersonalTrainer
from securefda.training.seeds import SecretSeed, derive_seed
from securefda.training.training_settings import AlignmentSettings, NoiseSettings, TrainingSettings

__all__ = [
    "FEWEST_TARGET_STEPS",
    "AlignmentSettings",
    "Evaluation",
    "LayerTable",
    "LocalResult",
    "NoiseSettings",
    "PersonalMemory",
    "PersonalModel",
    "PersonalTrainer",
    "SecretSeed",
    "TrainingSettings",
    "Vector",
    "build_model",
    "choose_device",
    "derive_seed",
    "describe_device",
    "estimate_statistics",
    "evaluate",
    "frozen_digest",
    "layer_sizes",
    "layer_table",
    "model_to_vector",
    "require_steps",
    "train_local",
    "vector_to_model",
]
