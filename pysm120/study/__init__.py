"""What each precision of attention costs in error and buys in time, measured on given inputs."""

from pysm120.study.errors import Errors, Outcome, errors_of
from pysm120.study.formats import COMBINATIONS, Combination
from pysm120.study.recommend import Recommendation, Tried, recommend

__all__ = ["COMBINATIONS", "Combination", "Errors", "Outcome", "Recommendation", "Tried", "errors_of", "recommend"]
