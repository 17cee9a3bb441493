"""Says what is wrong with an attempt, and which rank it is: a pure function of what all its ranks show."""

from .diagnose import diagnose as diagnose
from .evidence import Evidence as Evidence
from .verdict import VERDICTS as VERDICTS
from .verdict import Diagnosis as Diagnosis
