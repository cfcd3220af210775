"""Data for tests, benchmarks, examples and the demo: seeded generators and loaders.

Generators give points with known structure (:func:`clusters`, :func:`sphere`,
:func:`low_intrinsic_dimension`, :func:`one_huge_cluster`), :func:`image_patches`,
:func:`repeated_rows` and :func:`curves` points like those of pictures, tables and scans,
:func:`robot_arm` a regression, and
:func:`vectors` what to multiply with. On the instances of :mod:`.counterexamples` a sentence of
the paper goes wrong. Loaders read real data and find model weights, from an
installed package or from a path; each says what to install when its data are missing. Nothing is
ever downloaded or unpickled.
"""

from approxkmv.datasets.counterexamples import (
    Instance,
    below_the_floors,
    hidden_one,
    isolated,
    large_entry,
    null_space,
    rounded_squares,
    row_of_ones,
)
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
from approxkmv.datasets.tables import curves, image_patches, repeated_rows
from approxkmv.datasets.text import english_prose, squad_contexts, squad_texts
from approxkmv.datasets.weights import minilm_directory, smollm2_file, stories15m_file
from approxkmv.datasets.words import WordVectors, glove

__all__ = [
    "Images",
    "Instance",
    "Points",
    "Regression",
    "WordVectors",
    "bandwidth_for_row_sum",
    "below_the_floors",
    "clusters",
    "curves",
    "digits",
    "english_prose",
    "fashion_mnist",
    "glove",
    "hidden_one",
    "image_patches",
    "isolated",
    "large_entry",
    "low_intrinsic_dimension",
    "minilm_directory",
    "mnist",
    "null_space",
    "one_huge_cluster",
    "repeated_rows",
    "robot_arm",
    "rounded_squares",
    "row_of_ones",
    "smollm2_file",
    "sphere",
    "squad_contexts",
    "squad_texts",
    "stories15m_file",
    "vectors",
]
