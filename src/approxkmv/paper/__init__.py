"""The paper, literally: every definition, lemma and algorithm by its name.

Indyk, Kapralov, Sheth, Wagner: "Improved Algorithms for Kernel Matrix-Vector Multiplication Under
Sparsity Assumptions", ICLR 2025. ``docs/paper_map.md`` leads from each item of the paper to its
object here and to the test that shows its claim; ``docs/errata.md`` says where the code departs
from what is printed, and why.
"""

from approxkmv.paper.approx_kmv import ApproxKMVInfo as ApproxKMVInfo
from approxkmv.paper.approx_kmv import approx_kmv as approx_kmv
from approxkmv.paper.approx_light import approx_light as approx_light
from approxkmv.paper.assumption import attention_constant as attention_constant
from approxkmv.paper.assumption import constant_interval as constant_interval
from approxkmv.paper.assumption import kernel_constant as kernel_constant
from approxkmv.paper.assumption import order_ratios as order_ratios
from approxkmv.paper.assumption import prefix_constants as prefix_constants
from approxkmv.paper.assumption import softmax_constant as softmax_constant
from approxkmv.paper.attention import paper_attention as paper_attention
from approxkmv.paper.baseline import kernel_noisy_power_method as kernel_noisy_power_method
from approxkmv.paper.baseline import kernel_sum as kernel_sum
from approxkmv.paper.baseline import nonnegative_matvec as nonnegative_matvec
from approxkmv.paper.cost import cost_table as cost_table
from approxkmv.paper.cost import crossover as crossover
from approxkmv.paper.density import DensityStructure as DensityStructure
from approxkmv.paper.density import HashingBasedEstimator as HashingBasedEstimator
from approxkmv.paper.density import LevelSets as LevelSets
from approxkmv.paper.density import UniformSampling as UniformSampling
from approxkmv.paper.find_heavy import HeavyPairs as HeavyPairs
from approxkmv.paper.find_heavy import find_heavy as find_heavy
from approxkmv.paper.hashing import E2LSH as E2LSH
from approxkmv.paper.hashing import BallCarving as BallCarving
from approxkmv.paper.hashing import CrossPolytope as CrossPolytope
from approxkmv.paper.hashing import HashFamily as HashFamily
from approxkmv.paper.parameters import Parameters as Parameters
from approxkmv.paper.preprocess import preprocess as preprocess
from approxkmv.paper.reduction import attention_product as attention_product
from approxkmv.paper.reduction import attention_to_gaussian as attention_to_gaussian
from approxkmv.paper.shared_draws import shared_draws_matvec as shared_draws_matvec
