"""Data for tests, benchmarks, examples and the demo: seeded generators and loaders.

Generators give points with known structure (:func:`clusters`, :func:`sphere`,
:func:`low_intrinsic_dimension`, :func:`one_huge_cluster`), :func:`robot_arm` a regression, and
:func:`vectors` what to multiply with. Loaders read real data and find model weights, from an
installed package or from a path; each says what to install when its data are missing. Nothing is
ever downloaded or unpickled.
"""

from approxkmv.datasets.generators import (
    Points,
    Regression,
    bandwidth_for_row_sum,
    clusters,
    low_intrinsic_dimension,
    one_huge_cluster,
    robot_arm,
    sphere,
    vectors,
)
from approxkmv.datasets.images import Images, digits, fashion_mnist, mnist
from approxkmv.datasets.text import english_prose, squad_contexts
from approxkmv.datasets.weights import minilm_directory, smollm2_file, stories15m_file
from approxkmv.datasets.words import WordVectors, glove

__all__ = [
    "Images",
    "Points",
    "Regression",
    "WordVectors",
    "bandwidth_for_row_sum",
    "clusters",
    "digits",
    "english_prose",
    "fashion_mnist",
    "glove",
    "low_intrinsic_dimension",
    "minilm_directory",
    "mnist",
    "one_huge_cluster",
    "robot_arm",
    "smollm2_file",
    "sphere",
    "squad_contexts",
    "stories15m_file",
    "vectors",
]
