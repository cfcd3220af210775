"""Whether the assumption holds for some data, and what the library would do with them."""

from approxkmv.diagnosis.growth import Growth as Growth
from approxkmv.diagnosis.heads import HeadConstants as HeadConstants
from approxkmv.diagnosis.heads import ModelDiagnosis as ModelDiagnosis
from approxkmv.diagnosis.heads import diagnose_model as diagnose_model
from approxkmv.diagnosis.heads import head_constants as head_constants
from approxkmv.diagnosis.matrix import diagnose as diagnose
from approxkmv.diagnosis.report import Diagnosis as Diagnosis
